"""The task queue on transports within one process."""

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from retryflow.queue.client import TaskClient
from retryflow.queue.server import get_server
from retryflow.queue.target import ticket_target, worker_target
from retryflow.queue.transport import get_transport
from tests.fixtures.rabbit import Rabbit, eventually, overriding
from tests.functional.test_queue_burst import HANG_SECONDS, tickets
from tests.functional.test_queue_server import Endpoint, failures


@pytest.fixture(params=["fake", "kombu+memory"])
def scheme(request: pytest.FixtureRequest) -> str:
    scheme: str = request.param
    return scheme


class Bench:
    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.endpoint = Endpoint()
        self.transport = get_transport(conf)
        self.client = TaskClient(self.transport, conf)
        self.server = get_server(self.transport, worker_target(conf), [self.endpoint], threads=2, read_ahead=2)
        self.server.start()

    def caller(self, conf: cfg.ConfigOpts) -> Any:
        return oslo_messaging.get_rpc_client(self.transport, ticket_target(conf), timeout=HANG_SECONDS)


@pytest.fixture
def conf(scheme: str) -> Iterator[cfg.ConfigOpts]:
    with overriding(Rabbit(f"{scheme}://", f"test-{uuid.uuid4().hex}").overrides) as conf:
        yield conf


@pytest.fixture
def bench(conf: cfg.ConfigOpts) -> Iterator[Bench]:
    bench = Bench(conf)
    yield bench
    bench.endpoint.go_on.set()
    bench.server.close()
    # Whoever has called over kombu+memory has a thread that looks for answers without a pause.
    bench.transport.cleanup()


def test_each_ticket_runs_once(bench: Bench) -> None:
    sent = tickets(50)
    assert bench.client.send(sent, timeout_seconds=HANG_SECONDS) == set()
    eventually(lambda: len(bench.endpoint.ended) == 50)
    assert sorted(bench.endpoint.ended) == sorted(ticket.task_id for ticket in sent)


def test_takes_no_more_than_threads_and_read_ahead(bench: Bench) -> None:
    """T6"""
    bench.endpoint.go_on.clear()
    bench.client.send(tickets(20), timeout_seconds=HANG_SECONDS)
    eventually(lambda: len(bench.endpoint.begun) == 2)
    server: Any = bench.server
    eventually(lambda: server._server._room._value == 0)
    threading.Event().wait(0.3)
    assert len(server._server.threads._waiting) == 2
    bench.endpoint.go_on.set()
    eventually(lambda: len(bench.endpoint.ended) == 20)


def test_stop_intake_begins_nothing_more_and_waits_for_what_runs(bench: Bench, scheme: str, conf: Any) -> None:
    """D10"""
    bench.endpoint.go_on.clear()
    sent = tickets(10)
    bench.client.send(sent, timeout_seconds=HANG_SECONDS)
    eventually(lambda: len(bench.endpoint.begun) == 2)
    server: Any = bench.server
    eventually(lambda: server._server._room._value == 0)
    back = bench.server.stop_intake()
    assert len(back) == 2
    assert {ticket.task_id for ticket in back} < {ticket.task_id for ticket in sent}
    assert not bench.server.wait(time.monotonic() + 0.1)
    bench.endpoint.go_on.set()
    assert bench.server.wait(time.monotonic() + HANG_SECONDS)
    bench.server.close()
    assert len(bench.endpoint.begun) == 2
    if scheme == "fake":
        other = Bench(conf)
        eventually(lambda: len(other.endpoint.ended) == 8)
        other.server.close()


def test_pause_and_resume(bench: Bench, scheme: str) -> None:
    bench.server.pause()
    assert not bench.server.consuming
    bench.client.send(tickets(5), timeout_seconds=HANG_SECONDS)
    threading.Event().wait(0.3)
    assert not bench.endpoint.begun
    bench.server.resume()
    eventually(lambda: len(bench.endpoint.ended) == 5)


def test_a_call_is_answered_and_hidden_methods_are_not(bench: Bench, conf: cfg.ConfigOpts) -> None:
    assert bench.caller(conf).call({}, "ask", what="hello") == "hello!"
    with pytest.raises(Exception, match="does not support RPC method"):
        bench.caller(conf).call({}, "hidden")


def test_who_waits_gets_what_a_method_or_its_future_raises_and_it_is_logged(
    bench: Bench, conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    """As over RabbitMQ, also where it is the exit of a thread."""
    caller = bench.caller(conf)
    for method in ("ask", "fail_later"):
        with pytest.raises(ValueError, match="it failed"):
            caller.call({}, method, what="fail")
        with pytest.raises(oslo_messaging.RemoteError, match="SystemExit"):
            caller.call({}, method, what="exit")
    caller.cast({}, "fail_later", what="fail")
    eventually(lambda: len(failures(caplog)) == 5)
    assert [text.partition("\n")[0] for text in failures(caplog)] == [
        "it failed",
        "Remote error: SystemExit 7",
        "it failed",
        "Remote error: SystemExit 7",
        "it failed",
    ]


def test_tasks_run_on_named_threads(conf: cfg.ConfigOpts) -> None:
    names: list[str] = []

    class Named(Endpoint):
        def process_type_order(self, _context: Any, **_arguments: Any) -> None:
            names.append(threading.current_thread().name)

        process_type_order.exposed = True  # type: ignore[attr-defined]

    transport = get_transport(conf)
    server = get_server(transport, worker_target(conf), [Named()], threads=1, read_ahead=0)
    server.start()
    TaskClient(transport, conf).send(tickets(1), timeout_seconds=HANG_SECONDS)
    eventually(lambda: names == ["task-1"])
    server.close()


def test_the_fall_back_is_said_in_one_line(conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "retryflow"):
        get_server(get_transport(conf), worker_target(conf), [Endpoint()], threads=1, read_ahead=0)
    assert "within this process" in caplog.text


def test_a_stop_before_any_message_is_quick(bench: Bench) -> None:
    began = time.monotonic()
    assert bench.server.stop_intake() == []
    assert bench.server.wait(None)
    bench.server.close()
    assert time.monotonic() - began < HANG_SECONDS / 4
