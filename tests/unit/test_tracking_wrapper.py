"""The endpoint wrapper with oslo.messaging's real dispatcher in front of it."""

import copy
import functools
import pickle
import types
import uuid
from concurrent.futures import Future
from typing import Any

import oslo_messaging
import pytest
from oslo_messaging.rpc.dispatcher import ExplicitRPCAccessPolicy, NoSuchMethod, RPCDispatcher

from retryflow.tracking import TaskRecord, TaskTracker, TrackingEndpointWrapper, untracked_rpc_method


def swallow(function: Any) -> Any:
    """A decorator that loses every mark, as oslo.messaging's ``expected_exceptions`` does."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


class Endpoint:
    target = oslo_messaging.Target(namespace="barbican", version="1.1")
    version = "1.1"

    def __init__(self) -> None:
        self.seen: list[TaskRecord] = []
        self.tracker = TaskTracker()

    def note(self) -> None:
        self.seen.extend(self.tracker.in_progress())

    @oslo_messaging.expose
    def update_order(self, context: Any, order_id: Any = None, **_rest: Any) -> str:
        self.note()
        return f"updated {order_id}"

    def reboot(self, context: Any, instance: Any = None) -> None:
        self.note()

    def fail(self, context: Any) -> None:
        self.note()
        raise ValueError("no")

    def leave(self, context: Any) -> None:
        self.note()
        raise SystemExit(1)

    @untracked_rpc_method
    def cache_images(self, context: Any) -> None:
        self.note()

    @swallow
    @untracked_rpc_method
    def hidden_mark(self, context: Any) -> None:
        self.note()

    @oslo_messaging.expected_exceptions(ValueError)
    @functools.lru_cache  # noqa: B019
    @untracked_rpc_method
    def deeply_hidden_mark(self, context: Any) -> None:
        self.note()

    @staticmethod
    def static(context: Any) -> int:
        return 7

    @property
    def broken(self) -> str:
        raise AttributeError("from inside")

    def _private(self) -> None:
        self.note()


class Context:
    request_id = "req-9"


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def wrapper(endpoint: Endpoint) -> TrackingEndpointWrapper:
    return TrackingEndpointWrapper(endpoint)


def dispatch(wrapper: object, method: str, args: dict[str, Any] | None = None, **options: Any) -> Any:
    message = {"method": method, "args": args or {}, "namespace": "barbican", "version": "1.1"}
    incoming = types.SimpleNamespace(message=message, ctxt={"request_id": "req-1"}, client_timeout=None)
    return RPCDispatcher([wrapper], None, **options).dispatch(incoming)


def test_the_dispatcher_calls_the_method_and_the_call_is_recorded_meanwhile(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint
) -> None:
    assert dispatch(wrapper, "update_order", {"order_id": "order-1"}) == "updated order-1"
    (record,) = endpoint.seen
    assert (record.name, record.request_id, record.entity_id, record.kind) == (
        "update_order",
        "req-1",
        "order-1",
        "sync",
    )
    assert endpoint.tracker.in_progress() == []


def test_a_request_id_that_only_the_arguments_have_is_found(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint
) -> None:
    """Barbican's own client sends an empty context, and the request id among the arguments."""
    wrapper.update_order({}, order_id="order-1", request_id="req-7")
    assert [record.request_id for record in endpoint.seen] == ["req-7"]


def test_the_record_keeps_the_arguments_but_does_not_show_them(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint
) -> None:
    dispatch(wrapper, "update_order", {"order_id": "order-1", "task_id": "t-1", "secret": "hush"})
    (record,) = endpoint.seen
    assert record.arguments["task_id"] == "t-1"
    assert "hush" not in repr(record)


def test_the_target_passes_through(wrapper: TrackingEndpointWrapper) -> None:
    assert wrapper.target is Endpoint.target
    assert wrapper.version == "1.1"


@pytest.mark.parametrize("method", ["cache_images", "hidden_mark", "deeply_hidden_mark", "_private"])
def test_a_marked_method_is_untracked_even_beneath_other_decorators(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint, method: str
) -> None:
    getattr(wrapper, method)(*(() if method == "_private" else (None,)))
    assert endpoint.seen == []


def test_an_unmarked_method_beneath_the_same_decorators_is_tracked(endpoint: Endpoint) -> None:
    @oslo_messaging.expected_exceptions(ValueError)
    def plain(context: Any) -> None:
        endpoint.note()

    endpoint.plain = plain  # type: ignore[attr-defined]
    TrackingEndpointWrapper(endpoint).plain(None)
    assert len(endpoint.seen) == 1


@pytest.mark.parametrize(("method", "error"), [("fail", ValueError), ("leave", SystemExit)])
def test_d4_a_record_ends_whatever_the_method_raises(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint, method: str, error: type[BaseException]
) -> None:
    """D4: a SystemExit leaked the record, so that each stop took the full time-out."""
    endpoint.tracker.begin_drain()
    with pytest.raises(error):
        dispatch(wrapper, method)
    assert len(endpoint.seen) == 1
    assert endpoint.tracker.idle
    assert endpoint.tracker.failed_count == 1


@pytest.mark.parametrize("failed", [False, True])
def test_a_method_that_returns_a_future_is_recorded_until_that_is_done(endpoint: Endpoint, failed: bool) -> None:
    future: Future[None] = Future()
    endpoint.begin = lambda context: future  # type: ignore[attr-defined]
    wrapper = TrackingEndpointWrapper(endpoint)
    assert wrapper.begin({}) is future
    assert [record.name for record in endpoint.tracker.in_progress()] == ["begin"]
    endpoint.tracker.begin_drain()
    if failed:
        future.set_exception(ValueError("no"))
    else:
        future.set_result(None)
    assert endpoint.tracker.idle
    assert (endpoint.tracker.completed_count, endpoint.tracker.failed_count) == (not failed, failed)


class Lazy:
    @property
    def uuid(self) -> str:
        raise RuntimeError("the database is away")

    request_id = uuid


@pytest.mark.parametrize(
    ("instance", "found"),
    [
        (types.SimpleNamespace(uuid="u-1"), "u-1"),
        (types.SimpleNamespace(id=5), "5"),
        ({"uuid": "u-2"}, "u-2"),
        ({"id": uuid.UUID(int=1)}, "00000000-0000-0000-0000-000000000001"),
        ({}, None),
        ("u-3", "u-3"),
        ("two\nlines", "two lines"),
        (None, None),
        (Lazy(), None),
        ([1, 2], None),
    ],
)
@pytest.mark.parametrize("positional", [True, False])
def test_d5_finding_the_entity_never_fails_the_call(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint, instance: Any, found: str | None, positional: bool
) -> None:
    """D5: a dictionary or None in place of an instance made the RPC itself fail."""
    if positional:
        wrapper.reboot(Context(), instance)
    else:
        wrapper.reboot(Context(), instance=instance)
    (record,) = endpoint.seen
    assert record.entity_id == found
    assert record.request_id == "req-9"


@pytest.mark.parametrize(
    ("context", "found"),
    [(Context(), "req-9"), ({"request_id": "req-2"}, "req-2"), ({}, None), (None, None), (Lazy(), None), (3, None)],
)
@pytest.mark.parametrize("positional", [True, False])
def test_d5_finding_the_context_never_fails_the_call(
    wrapper: TrackingEndpointWrapper, endpoint: Endpoint, context: Any, found: str | None, positional: bool
) -> None:
    """D5: a context given as a keyword made the RPC itself fail."""
    if positional:
        wrapper.update_order(context, "order-1")
    else:
        wrapper.update_order(context=context, order_id="order-1")
    (record,) = endpoint.seen
    assert (record.request_id, record.entity_id) == (found, "order-1")


def test_the_explicit_access_policy_still_sees_what_is_exposed(wrapper: TrackingEndpointWrapper) -> None:
    assert dispatch(wrapper, "update_order", access_policy=ExplicitRPCAccessPolicy) == "updated None"
    with pytest.raises(NoSuchMethod):
        dispatch(wrapper, "reboot", access_policy=ExplicitRPCAccessPolicy)


def test_each_method_is_wrapped_once(wrapper: TrackingEndpointWrapper) -> None:
    assert wrapper.update_order is wrapper.update_order
    assert wrapper.update_order.__name__ == "update_order"


def test_a_method_that_is_replaced_later_is_the_one_that_runs(
    wrapper: TrackingEndpointWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper.update_order(None)
    monkeypatch.setattr(Endpoint, "update_order", lambda self, context, **_rest: "patched")
    assert wrapper.update_order(None) == "patched"


def test_static_methods_partials_and_exposed_callables_are_tracked(endpoint: Endpoint) -> None:
    class Callable:
        exposed = True

        def __call__(self, context: Any) -> None:
            endpoint.note()

    endpoint.partial = functools.partial(endpoint.update_order, None)  # type: ignore[attr-defined]
    endpoint.callable = Callable()  # type: ignore[attr-defined]
    wrapper = TrackingEndpointWrapper(endpoint)
    assert wrapper.static(None) == 7
    assert wrapper.partial(order_id="o-1") == "updated o-1"
    wrapper.callable(None)
    assert [record.name for record in endpoint.seen] == ["partial", "callable"]
    assert wrapper.callable.exposed is True


def test_several_endpoints_report_to_one_tracker(endpoint: Endpoint) -> None:
    other = Endpoint()
    wrapper = TrackingEndpointWrapper(other, endpoint.tracker)
    other.note = endpoint.note  # type: ignore[method-assign]
    wrapper.update_order(None, order_id="order-2")
    assert [record.entity_id for record in endpoint.seen] == ["order-2"]


def test_has_attribute_repr_copy_and_pickle_behave(wrapper: TrackingEndpointWrapper, endpoint: Endpoint) -> None:
    assert hasattr(wrapper, "update_order")
    assert not hasattr(wrapper, "missing")
    assert not hasattr(wrapper, "broken")
    assert repr(wrapper) == f"<TrackingEndpointWrapper of {endpoint!r}>"
    wrapper.update_order(None)
    assert copy.copy(wrapper).update_order(None, order_id="x") == "updated x"
    assert copy.deepcopy(wrapper).update_order(None, order_id="x") == "updated x"
    assert pickle.loads(pickle.dumps(wrapper)).update_order(None, order_id="x") == "updated x"
