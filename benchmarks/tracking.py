"""What tracking adds to an RPC: the wrapper beside a plain pass-through closure, and both behind the real dispatcher.

Compare the ratios, not the nanoseconds: machines differ. The bar is 2.2 times a plain closure.
"""

import timeit
import types
from collections.abc import Callable, Iterator
from typing import Any

from oslo_messaging import Target
from oslo_messaging.rpc.dispatcher import RPCDispatcher

from benchmarks.measure import Sample
from retryflow.tracking import TaskTracker, TrackingEndpointWrapper

CALLS = 20_000


class Endpoint:
    """What is called: as little as possible."""

    target = Target(version="1.1")

    def update_order(self, context: Any, order_id: str, task_id: str) -> None:
        """Do nothing."""


class PassThrough:
    """What any wrapper costs: one closure, made once."""

    target = Endpoint.target

    def __init__(self, endpoint: Endpoint) -> None:
        method = endpoint.update_order

        def update_order(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        self.update_order = update_order


def best(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Nanoseconds per call, the best of ``rounds``; in turns, so that all meet the same noise."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            found[name] = min(found[name], timeit.timeit(function, number=CALLS) / CALLS * 1e9)
    return found


def direct(endpoint: Any) -> Callable[[], Any]:
    """A call as the dispatcher makes it: looked up by name, arguments by keyword."""
    context = {"request_id": "req-1"}
    return lambda: endpoint.update_order(context, order_id="order-1", task_id="task-1")


def dispatched(endpoint: Any) -> Callable[[], Any]:
    """A message through oslo.messaging's dispatcher."""
    message = {"method": "update_order", "args": {"order_id": "order-1", "task_id": "task-1"}}
    incoming = types.SimpleNamespace(message=message, ctxt={"request_id": "req-1"}, client_timeout=None)
    dispatcher = RPCDispatcher([endpoint], None)
    return lambda: dispatcher.dispatch(incoming)


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    rounds = 2 if quick else 30
    endpoint = Endpoint()
    candidates = {
        "bare method": endpoint,
        "pass-through closure": PassThrough(endpoint),
        "tracked": TrackingEndpointWrapper(endpoint, TaskTracker()),
    }
    for title, make in (("one call", direct), ("one dispatch", dispatched)):
        found = best({name: make(candidate) for name, candidate in candidates.items()}, rounds)
        closure = found["pass-through closure"]
        for name, nanoseconds in found.items():
            yield Sample(f"{title}, {name}", "ns", nanoseconds, closure, "pass-through closure")
