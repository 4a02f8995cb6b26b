"""From ticket to outcome in one worker: what it claims, runs, keeps, drops, and says."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.errors import LeaseLost, PluginUnavailable
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.tables import order_retry_tasks, order_task_leases, orders
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.running import Running
from retryflow.retry.steer import cancel_order, delete_order, update_order
from tests.fixtures.contract import Desk, at_once
from tests.fixtures.order_worker import OrderWorker, order_worker
from tests.fixtures.rabbit import eventually
from tests.fixtures.retry_list import Clock

_leases = order_task_leases.c
METHODS = ("process_type_order", "check_certificate_status", "update_order", "run_task")


@pytest.fixture
def worker(desk: Desk) -> Iterator[OrderWorker]:
    with order_worker(desk) as made:
        yield made


class Gate:
    """A task that runs until the gate is opened."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.contexts: list[TaskContext] = []

    def __call__(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        self.contexts.append(context)
        self.entered.release()
        assert self.opened.wait(60.0)
        return self.outcome


# --- the way of a ticket ---


def test_a_ticket_is_acknowledged_at_the_claim_and_its_task_runs_once(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    ticket = {"order_id": order_id, "project_id": "p1", "request_id": "r", "task_id": desk.lease(order_id).id}
    assert worker.deliver("process_type_order", **ticket) == "acknowledged"
    assert desk.order(order_id).status == ACTIVE
    assert worker.deliver("process_type_order", **ticket) is None
    assert desk.history(order_id) == ["submitted", "done"]
    assert worker.manager.running.snapshot() == []
    assert worker.manager.tracker.idle


def test_t3_copies_of_a_ticket_that_meet_in_one_worker_run_once(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T3: re-sent while the first one waited in the queue, and both reach this process."""
    gate = Gate(Done())
    worker.type.steps["process_type_order"] = gate
    order_id = desk.submit()
    ticket = {"order_id": order_id, "project_id": "p1", "task_id": desk.lease(order_id).id}
    first = worker.begin(desk, order_id)
    assert gate.entered.acquire(timeout=60.0)
    for _ in range(8):
        assert worker.deliver("process_type_order", **ticket) is None
    gate.opened.set()
    assert first.result(60.0) == "acknowledged"
    assert worker.deliver("process_type_order", **ticket) is None
    assert len(gate.contexts) == 1
    assert desk.history(order_id) == ["submitted", "done"]


def test_t3_copies_of_a_ticket_that_come_at_the_same_moment_run_once(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T3: their claims may share a transaction."""
    for _ in range(5):
        gate = Gate(Done())
        gate.opened.set()
        worker.type.steps["process_type_order"] = gate
        order_id = desk.submit()
        ticket = {"order_id": order_id, "project_id": "p1", "task_id": desk.lease(order_id).id}
        words = at_once(*[lambda ticket=ticket: worker.deliver("process_type_order", **ticket) for _ in range(8)])
        assert sorted(words, key=str) == [None] * 7 + ["acknowledged"]
        assert len(gate.contexts) == 1
        assert desk.history(order_id) == ["submitted", "done"]


def test_tickets_that_are_prepared_are_claimed_together_and_run_once_each(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T3: with copies among them, before and after."""
    worker.type.steps["process_type_order"] = gate = Gate(Done())
    gate.opened.set()
    order_ids = [desk.submit() for _ in range(4)]
    tickets = [{"order_id": order_id, "task_id": desk.lease(order_id).id} for order_id in order_ids]
    nonsense: list[dict[str, Any]] = [{}, {"order_id": 5, "task_id": []}, {"task_id": "x" * 37, "order_id": "o"}]
    worker.manager.prepare_messages([*tickets, *nonsense, *tickets])
    assert [desk.lease(order_id).holder for order_id in order_ids] == [worker.holder] * 4
    words = at_once(*[lambda one=one: worker.deliver("process_type_order", **one) for one in tickets * 2])
    assert sorted(words, key=str) == [None] * 4 + ["acknowledged"] * 4
    worker.manager.prepare_messages(tickets)
    assert [worker.deliver("process_type_order", **ticket) for ticket in tickets] == [None] * 4
    assert len(gate.contexts) == 4
    for order_id in order_ids:
        assert desk.history(order_id) == ["submitted", "done"]
    assert worker.manager.running.snapshot() == []
    assert worker.manager.tracker.idle


def test_a_ticket_that_was_claimed_ahead_is_run_although_the_stop_has_begun(desk: Desk, worker: OrderWorker) -> None:
    """Its lease would otherwise be left to end, and count as a crash."""
    worker.type.steps["process_type_order"] = gate = Gate(Done())
    gate.opened.set()
    order_id = desk.submit()
    ticket = {"order_id": order_id, "task_id": desk.lease(order_id).id}
    worker.manager.prepare_messages([ticket])
    worker.manager.begin_shutdown()
    assert worker.deliver("process_type_order", **ticket) == "acknowledged"
    assert gate.contexts[0].stopping
    assert desk.order(order_id).status == ACTIVE


def test_nothing_is_claimed_ahead_while_leases_cannot_be_renewed(desk: Desk) -> None:
    """FAILURES T14."""
    with order_worker(desk) as worker:
        order_id = desk.submit()
        worker.manager.keeper.last_renewal -= 100
        worker.manager.prepare_messages([{"order_id": order_id, "task_id": desk.lease(order_id).id}])
        assert desk.lease(order_id).holder is None


def test_nothing_is_claimed_ahead_once_the_stop_has_begun(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    worker.manager.begin_shutdown()
    worker.manager.prepare_messages([{"order_id": order_id, "task_id": desk.lease(order_id).id}])
    assert desk.lease(order_id).holder is None


def test_a_task_that_crashed_before_is_not_claimed_ahead(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T5: one suspect at a time, found out when its turn comes."""
    worker.type.steps["process_type_order"] = gate = Gate(Done())
    gate.opened.set()
    order_id = desk.submit()
    desk.write(order_task_leases.update().where(order_task_leases.c.order_id == order_id).values(crash_count=1))
    ticket = {"order_id": order_id, "task_id": desk.lease(order_id).id}
    worker.manager.prepare_messages([ticket])
    assert desk.lease(order_id).holder is None
    assert worker.deliver("process_type_order", **ticket) == "acknowledged"
    assert desk.order(order_id).status == ACTIVE


def test_t8_a_follow_on_result_reaches_the_retry_list_through_the_rpc_method(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T8: the result was dropped on the way, and the order never tried again."""
    outcomes: Iterator[Outcome] = iter(
        [Poll(after_seconds=0, task="check_certificate_status"), Retry(reason="x"), Poll(), Done()]
    )
    worker.type.steps = dict.fromkeys(
        ("process_type_order", "check_certificate_status"), lambda context, order, **kwargs: next(outcomes)
    )
    order_id = desk.submit()
    for _ in range(3):
        assert worker.run(desk, order_id) == "acknowledged"
        assert desk.is_moving(order_id)
        assert [row.retry_task for row in desk.rows(order_id)] == ["check_certificate_status"]
        desk.dispatch(order_id)
    worker.run(desk, order_id)
    assert desk.order(order_id).status == ACTIVE


def test_a_follow_on_due_within_a_period_wakes_the_scheduler_and_a_later_one_does_not(
    desk: Desk, worker: OrderWorker
) -> None:
    outcomes = iter([Poll(after_seconds=500.0), Poll(after_seconds=1.0)])
    worker.type.steps["process_type_order"] = lambda context, order, **kwargs: next(outcomes)
    order_id = desk.submit()
    worker.run(desk, order_id)
    assert worker.bell.rung == 0
    desk.dispatch(order_id)
    worker.run(desk, order_id)
    assert worker.bell.rung == 1


def test_an_update_that_waited_for_the_end_of_a_task_wakes_the_scheduler_at_this_end(
    desk: Desk, worker: OrderWorker
) -> None:
    def step(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        update_order(desk.engine, order.id, {"v": 2})
        return Poll(after_seconds=86400)

    worker.type.steps["process_type_order"] = step
    worker.run(desk, desk.submit())
    assert worker.bell.rung == 1


def test_the_row_and_not_the_ticket_says_what_runs(desk: Desk, worker: OrderWorker) -> None:
    """A late or forged ticket is a hint only."""
    worker.type.steps["extra"] = lambda context, order, **kwargs: Done(result={"ran": [context.task, order.id]})
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Poll(task="extra"))
    task_id = desk.dispatch(order_id)
    worker.deliver("update_order", order_id="another", project_id="other", task_id=task_id)
    assert desk.order(order_id).result == {"ran": ["extra", order_id]}


# --- what a task raises or returns ---


@pytest.mark.parametrize(
    "raised", [RuntimeError("password=secret"), SystemExit(3), KeyboardInterrupt(), MemoryError(), RecursionError()]
)
def test_t10_a_task_that_raises_ends_in_error_with_a_safe_reason(
    desk: Desk, worker: OrderWorker, raised: BaseException
) -> None:
    """FAILURES T10: the ERROR mark was rolled back with the failed work."""

    def fail(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        raise raised

    worker.type.steps["process_type_order"] = fail
    order_id = desk.submit()
    assert worker.run(desk, order_id) == "acknowledged"
    order = desk.order(order_id)
    assert (order.status, order.error_status_code) == (ERROR, "500")
    assert "secret" not in order.error_reason
    assert desk.is_moving(order_id)
    assert worker.manager.tracker.idle


@pytest.mark.parametrize("raised", [PluginUnavailable("away"), ConnectionResetError("reset"), TimeoutError("slow")])
def test_a_task_whose_backend_is_away_is_tried_again(desk: Desk, worker: OrderWorker, raised: Exception) -> None:
    def fail(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        raise raised

    worker.type.steps["process_type_order"] = fail
    order_id = desk.submit()
    worker.run(desk, order_id)
    [row] = desk.rows(order_id)
    assert (desk.order(order_id).status, row.retry_count) == (PENDING, 1)
    assert str(raised) in row.last_error


@pytest.mark.parametrize("garbage", [None, "text", {"status": "done"}, Done, object()])
def test_what_is_no_outcome_ends_in_error(desk: Desk, worker: OrderWorker, garbage: object) -> None:
    worker.type.steps["process_type_order"] = lambda context, order, **kwargs: garbage  # type: ignore[assignment]
    order_id = desk.submit()
    worker.run(desk, order_id)
    assert desk.order(order_id).status == ERROR
    assert desk.is_moving(order_id)


def _deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "outcome",
    [
        Done(result={"x": object()}),
        Done(result={"x": {1, 2}}),
        Done(result=_deep()),
        Done(result=7),  # type: ignore[arg-type]
        Done(result={}, state={"k": object()}),  # type: ignore[dict-item]
        Done(result={}, state={"k": "lone \ud800"}),
        Done(result={}, state={"x" * 300: "v"}),
        Poll(after_seconds="soon"),  # type: ignore[arg-type]
        Retry(reason=None),  # type: ignore[arg-type]
        Fail(code=None, reason=5),  # type: ignore[arg-type]
        Poll(task="t" * 300),
        Done(sub_status=5),  # type: ignore[arg-type]
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_t10_an_answer_that_cannot_be_stored_ends_in_error_and_leaves_nothing(
    desk: Desk, worker: OrderWorker, outcome: Outcome
) -> None:
    """FAILURES T10 and promise P8: no task can get its worker or its order stuck by what it answers."""
    worker.type.steps["process_type_order"] = lambda context, order, **kwargs: outcome
    order_id = desk.submit()
    if desk.kind == "sqlite" and isinstance(outcome, Done) and any(len(key) > 255 for key in outcome.state):
        pytest.skip("SQLite does not look at the length of a text")
    if desk.kind == "sqlite" and isinstance(outcome, Poll) and isinstance(outcome.task, str):
        pytest.skip("SQLite does not look at the length of a text")
    assert worker.run(desk, order_id) == "acknowledged"
    order = desk.order(order_id)
    assert (order.status, order.error_status_code) == (ERROR, "500"), order
    assert (order.result, desk.plugin_state(order_id)) == (None, [])
    assert desk.is_moving(order_id)
    assert desk.history(order_id) == ["submitted", "failed"]


# --- bad rows (FAILURES S3 and T15) ---


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("kwargs", "{broken", "kwargs"),
        ("kwargs", "[]", "kwargs"),
        ("kwargs", '"text"', "kwargs"),
        ("kwargs", "", "kwargs"),
        ("kwargs", "[" * 100_000, "kwargs"),
        ("args", "{}", "args"),
        ("args", "nonsense", "args"),
        ("args", "null", "args"),
        ("args", '["more", "than", "it", "takes"]', "do not fit"),
    ],
)
def test_a_row_with_bad_arguments_ends_its_order_with_one_warning(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, column: str, value: str, reason: str
) -> None:
    order_id = desk.submit()
    desk.write(order_task_leases.update().where(_leases.order_id == order_id).values({column: value}))
    with caplog.at_level(logging.WARNING):
        assert worker.run(desk, order_id) == "acknowledged"
    order = desk.order(order_id)
    assert (order.status, reason in order.error_reason) == (ERROR, True), order.error_reason
    assert desk.is_moving(order_id)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert value not in caplog.text or not value


@pytest.mark.parametrize("meta", ["{broken", "[1]", '"text"', "7", ""])
def test_an_order_with_broken_meta_ends_with_one_warning(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, meta: str
) -> None:
    order_id = desk.submit()
    with desk.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET meta = :m WHERE id = :i"), {"m": meta, "i": order_id})
    with caplog.at_level(logging.WARNING):
        worker.run(desk, order_id)
    assert "meta" in desk.order(order_id).error_reason
    assert len(caplog.records) == 1


def test_an_order_without_meta_runs(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    desk.write(orders.update().where(orders.c.id == order_id).values(meta=None))
    worker.run(desk, order_id)
    assert desk.order(order_id).status == ACTIVE


def test_an_unknown_task_is_tried_again_without_counting(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer worker may know it."""
    order_id = desk.submit()
    desk.write(order_task_leases.update().where(_leases.order_id == order_id).values(task="from_the_future"))
    with caplog.at_level(logging.WARNING):
        worker.run(desk, order_id)
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.retry_count, row.retry_since is not None) == ("from_the_future", 0, True)
    assert "from_the_future" in row.last_error
    assert len(caplog.records) == 1
    worker.type.steps["from_the_future"] = lambda context, order, **kwargs: Done()
    desk.dispatch(order_id)
    worker.run(desk, order_id)
    assert desk.order(order_id).status == ACTIVE


def test_an_unknown_order_type_ends_in_error_with_the_reason(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit(order_type="nobody_offers_it")
    worker.run(desk, order_id)
    assert (desk.order(order_id).status, desk.order(order_id).error_status_code) == (ERROR, "400")
    assert "nobody_offers_it" in desk.order(order_id).error_reason


def test_t15_rows_with_fewer_and_more_arguments_run(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T15: rows of the previous and of the next version."""
    got: list[dict[str, Any]] = []

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        got.append(kwargs)
        return Done()

    worker.type.steps["process_type_order"] = run
    for kwargs in ({}, {"order_id": "x"}, {"order_id": "x", "project_id": "p", "updated_meta": {}, "new": [1]}):
        order_id = desk.submit()
        desk.write(order_task_leases.update().where(_leases.order_id == order_id).values(kwargs=json.dumps(kwargs)))
        worker.run(desk, order_id)
        assert desk.order(order_id).status == ACTIVE
    assert got == [{}, {}, {"new": [1]}]


def test_t15_messages_with_fewer_and_more_arguments_run(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T15: messages of the previous and of the next version."""
    for method in METHODS:
        for more in ({}, {"project_id": None}, {"request_id": "r", "project_id": "p", "priority": 3, "trace": {}}):
            order_id = desk.submit()
            task_id = desk.lease(order_id).id
            assert worker.deliver(method, order_id=order_id, task_id=task_id, **more) == "acknowledged"
            assert desk.order(order_id).status == ACTIVE


# --- bad messages ---


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"order_id": None},
        {"order_id": 7, "task_id": 8},
        {"order_id": ["x"], "task_id": "x"},
        {"order_id": "x" * 5_000_000},
        {"order_id": "x" * 37, "task_id": None},
        {"order_id": "NUL \x00"},
        {"order_id": "lone \ud800"},
        {"order_id": "x", "task_id": "NUL \x00"},
        {"order_id": "x", "task_id": "lone \ud800"},
        {"order_id": "x", "task_id": "x" * 5_000_000},
        {"order_id": "x", "task_id": {"a": 1}},
        {"order_id": "unknown"},
        {"order_id": "unknown", "request_id": {"a": 1}},
        {"order_id": "unknown", "request_id": "NUL \x00"},
        {"order_id": "unknown", "task_id": "unknown"},
    ],
    ids=lambda arguments: repr(arguments)[:30],
)
def test_a_message_that_is_no_ticket_is_dropped_and_never_comes_back(
    worker: OrderWorker, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any]
) -> None:
    """One that is handed back comes again at once and for ever (promise P8)."""
    for method in METHODS:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert worker.deliver(method, **arguments) is None
        assert len(caplog.records) <= 1
        assert len(caplog.text) < 1000
    assert not worker.manager.keeper.suspects


def test_a_foreign_message_with_an_odd_request_id_is_admitted(desk: Desk, worker: OrderWorker) -> None:
    for request_id in ("lone \ud800", "NUL \x00", "x" * 5000, 7, None):
        order_id = desk.submit()
        desk.write(sa.delete(order_task_leases).where(_leases.order_id == order_id))
        assert worker.deliver("process_type_order", order_id=order_id, request_id=request_id) is None
        assert len(desk.rows(order_id)) == 1


# --- clients that know nothing of leases ---


def test_upstreams_messages_make_a_row_and_wake_the_scheduler(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    desk.write(sa.delete(order_task_leases).where(_leases.order_id == order_id))
    for _ in range(3):
        assert worker.deliver("process_type_order", order_id=order_id, project_id="p1", request_id="req") is None
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.request_id, worker.bell.rung) == ("process_type_order", "req", 1)


def test_upstreams_update_brings_its_meta_along(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit(version=1)
    arguments = {"order_id": order_id, "project_id": "p1", "updated_meta": {"version": 2}, "request_id": "req"}
    assert worker.deliver("update_order", **arguments) is None
    assert desk.order(order_id).meta == {"version": 2}
    assert [row.retry_task for row in desk.rows(order_id)] == ["update_order"]


@pytest.mark.parametrize("meta", [[1], "text", 7, {"a": float("nan")}])
def test_upstreams_update_with_odd_meta_is_dropped_with_one_warning(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, meta: object
) -> None:
    order_id = desk.submit(version=1)
    assert worker.deliver("update_order", order_id=order_id, project_id="p1", updated_meta=meta) is None
    assert (desk.order(order_id).meta, desk.rows(order_id)) == ({"version": 1}, [])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# --- updates, cancels and deletes while a task runs here ---


def test_an_update_during_a_running_task_is_looked_at_by_the_next_run(desk: Desk, worker: OrderWorker) -> None:
    gate = Gate(Poll(after_seconds=0, task="check_certificate_status"))
    looked: list[Any] = []

    def look(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        looked.append((context.task, order.meta["version"], context.step))
        return Continue() if context.task == "update_order" else Done()

    worker.type.steps = {"process_type_order": gate, "update_order": look, "check_certificate_status": look}
    order_id = desk.submit(version=1)
    future = worker.begin(desk, order_id)
    assert gate.entered.acquire(timeout=30)
    update_order(desk.engine, order_id, {"version": 2})
    gate.opened.set()
    future.result(30)
    for _ in range(2):
        desk.dispatch(order_id)
        worker.run(desk, order_id)
    assert sorted((task, version) for task, version, _ in looked) == [
        ("check_certificate_status", 2),
        ("update_order", 2),
    ]
    assert desk.order(order_id).status == ACTIVE


@pytest.mark.parametrize("end", [cancel_order, delete_order])
def test_t12_a_running_task_is_told_that_its_order_is_gone_and_its_finish_is_refused(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, end: Any
) -> None:
    """FAILURES T12."""

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        assert context.wait(60.0)
        assert context.lease_lost
        with pytest.raises(LeaseLost):
            context.checkpoint({"k": "v"})
        return Done(result={"by": "zombie"})

    worker.type.steps["process_type_order"] = run
    order_id = desk.submit()
    future = worker.begin(desk, order_id)
    worker.running(order_id)
    end(desk.engine, order_id)
    worker.manager.keeper.round()
    assert future.result(30) == "acknowledged"
    order = desk.order(order_id)
    assert order is None or (order.status, order.sub_status, order.result) == (ERROR, "cancelled", None)
    assert desk.plugin_state(order_id) == []
    assert "lost its lease" in caplog.text
    assert "outcome dropped" in caplog.text


# --- crashed tasks ---


def _crashed(desk: Desk, count: int) -> list[str]:
    ids = []
    for _ in range(count):
        claimed = desk.running("dead")
        desk.expire(claimed.task_id)
        desk.recover(claimed.state.order_id)
        desk.dispatch(claimed.state.order_id)
        ids.append(claimed.state.order_id)
    return ids


def test_t5_a_worker_runs_one_crashed_task_at_a_time_and_innocents_beside_it(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T5: a killer must take no innocents along, and those that wait for their turn must hold up nobody."""
    gate, now_running, most = Gate(Done()), [0], [0]
    lock = threading.Lock()

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        if not context.crash_count:
            return Done()
        with lock:
            now_running[0] += 1
            most[0] = max(most[0], now_running[0])
        try:
            return gate(context, order)
        finally:
            with lock:
                now_running[0] -= 1

    worker.type.steps["process_type_order"] = run
    suspects = _crashed(desk, 4)
    futures = [worker.begin(desk, order_id) for order_id in suspects]
    assert gate.entered.acquire(timeout=30)
    # The threads of the other three are free again, although the one that runs never ends.
    eventually(lambda: sum(future.done() for future in futures) == 3, "three threads are free")
    assert len(worker.manager.running.snapshot()) == 1
    gate.opened.set()
    for future in futures:
        future.result(30)
    waiting = [order_id for order_id in suspects if desk.order(order_id).status == PENDING]
    assert len(waiting) == 3
    for order_id in waiting:
        assert desk.is_moving(order_id)
        if desk.lease(order_id) is None:
            [row] = desk.rows(order_id)
            assert (row.crash_count, row.retry_count, row.step) == (1, 0, 0)
            desk.dispatch(order_id)
        assert worker.run(desk, order_id) == "acknowledged"
        assert desk.order(order_id).status == ACTIVE
    assert most == [1]


# --- stop ---


def test_running_tasks_are_told_that_the_worker_stops(desk: Desk, worker: OrderWorker) -> None:
    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        assert context.wait(60.0)
        assert (context.stopping, context.lease_lost) == (True, False)
        return Retry(reason="stopping", after_seconds=0, counted=False)

    worker.type.steps["process_type_order"] = run
    order_id = desk.submit()
    future = worker.begin(desk, order_id)
    worker.running(order_id)
    worker.manager.begin_shutdown()
    worker.manager.drain_started()
    future.result(30)
    [row] = desk.rows(order_id)
    assert (row.retry_count, row.crash_count, row.step) == (0, 0, 0)


def test_a_ticket_that_comes_during_the_stop_goes_back(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    worker.manager.begin_shutdown()
    assert worker.run(desk, order_id) == "handed back"
    assert desk.lease(order_id).holder is None


def test_an_interrupted_task_goes_back_uncounted_and_its_run_commits_nothing(desk: Desk, worker: OrderWorker) -> None:
    gate = Gate(Done(result={"by": "zombie"}))
    worker.type.steps["process_type_order"] = gate
    order_id = desk.submit()
    future = worker.begin(desk, order_id)
    assert gate.entered.acquire(timeout=30)
    [record] = worker.manager.tracker.in_progress()
    became = worker.manager.interrupt_tasks([record])
    assert list(became) == [record.key]
    assert "returned to the retry list" in became[record.key]
    assert gate.contexts[0].lease_lost
    gate.opened.set()
    future.result(30)
    assert (desk.order(order_id).status, desk.order(order_id).result) == (PENDING, None)
    [row] = desk.rows(order_id)
    assert (row.retry_count, row.crash_count, row.step) == (0, 0, 0)


# --- max_run_seconds ---


def test_a_task_that_never_returns_is_recovered_as_a_crash_and_does_not_hold_the_drain(desk: Desk) -> None:
    settings = replace(desk.settings, max_run_seconds=0.05, lease_seconds=20.0)
    gate = Gate(Done(result={"by": "the one that hung"}))
    with order_worker(desk, settings, threads=2) as worker:
        worker.type.steps["process_type_order"] = gate
        order_id = desk.submit()
        future = worker.begin(desk, order_id)
        running = worker.running(order_id)
        eventually(lambda: worker.manager.running.seconds(running) > 0.05, "it has run too long")
        before = desk.lease(order_id).renewals
        worker.manager.keeper.round()
        assert running.overdue
        assert gate.contexts[0].lease_lost
        assert worker.manager.tracker.idle
        assert worker.lost == 0
        worker.manager.keeper.round()
        assert desk.lease(order_id).renewals == before
        desk.expire(desk.lease(order_id).id)
        assert desk.recover(order_id)
        gate.opened.set()
        future.result(30)
        assert (desk.order(order_id).status, desk.rows(order_id)[0].crash_count) == (PENDING, 1)


def test_a_crashed_task_that_never_returns_does_not_keep_the_turn_of_the_others(desk: Desk) -> None:
    """FAILURES T5: one suspect at a time, but not one for ever; and at the cap its order ends."""
    settings = replace(desk.settings, max_run_seconds=0.05, limits=replace(desk.settings.limits, max_crashes=3))
    gate = Gate(Done())
    with order_worker(desk, settings, threads=8) as worker:
        worker.type.steps["process_type_order"] = gate
        order_id = desk.submit()
        for crashes in (1, 2, 3):
            worker.begin(desk, order_id)
            assert gate.entered.acquire(timeout=60)
            [running] = [each for each in worker.manager.running.snapshot() if not each.overdue]
            eventually(partial(_longer_than, worker, running, 0.05), "it has run too long")
            worker.manager.keeper.round()
            desk.expire(desk.lease(order_id).id)
            assert desk.recover(order_id, settings=settings)
            if crashes < 3:
                desk.dispatch(order_id)
        assert desk.order(order_id).status == ERROR
        assert worker.lost == 0
        worker.type.steps["process_type_order"] = lambda context, order, **kwargs: Done()
        innocent = desk.submit()
        where = order_task_leases.c.order_id == innocent
        desk.write(order_task_leases.update().where(where).values(crash_count=1))
        assert worker.run(desk, innocent) == "acknowledged"
        assert desk.order(innocent).status == ACTIVE
        gate.opened.set()


def test_with_a_renewal_that_hangs_tickets_do_not_go_round_at_full_speed(desk: Desk) -> None:
    with order_worker(desk) as worker:
        order_id = desk.submit()
        worker.manager.keeper.last_renewal -= 100
        began = time.monotonic()
        assert worker.run(desk, order_id) == "handed back"
        assert time.monotonic() - began > 0.4


def test_a_follow_on_that_a_scheduler_could_oversleep_wakes_it(desk: Desk, worker: OrderWorker) -> None:
    """It sleeps up to 1.2 periods."""
    period = desk.settings.schedule_period_seconds
    for factor in (1.1, 1.3):
        poll = Poll(after_seconds=factor * period)
        worker.type.steps["process_type_order"] = lambda context, order, poll=poll: poll
        order_id = desk.submit()
        worker.run(desk, order_id)
        assert worker.bell.rung == 1


def test_to_tell_of_an_update_is_another_piece_of_work_than_the_task_it_meets(desk: Desk, worker: OrderWorker) -> None:
    keys: list[str] = []

    def handle(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        keys.append(context.idempotency_key)
        return Poll(after_seconds=0)

    worker.type.steps = dict.fromkeys(("process_type_order", "check_certificate_status", "update_order"), handle)
    order_id = desk.submit()
    update_order(desk.engine, order_id, {"v": 2})
    worker.run(desk, order_id)
    for _ in range(2):
        desk.dispatch(order_id)
        worker.run(desk, order_id)
    assert len(set(keys)) == 3


def _longer_than(worker: OrderWorker, running: Running, seconds: float) -> bool:
    return worker.manager.running.seconds(running) > seconds


def test_with_all_threads_lost_the_worker_says_so_once_it_is_true(desk: Desk) -> None:
    settings = replace(desk.settings, max_run_seconds=0.05)
    gate = Gate(Done())
    with order_worker(desk, settings, threads=2) as worker:
        worker.type.steps["process_type_order"] = gate
        for lost in (0, 1):
            order_id = desk.submit()
            worker.begin(desk, order_id)
            running = worker.running(order_id)
            eventually(partial(_longer_than, worker, running, 0.05), "too long")
            worker.manager.keeper.round()
            assert worker.lost == lost
        gate.opened.set()


# --- checkpoints and keys ---


def test_a_checkpoint_survives_the_crash_that_follows_it(desk: Desk, worker: OrderWorker) -> None:
    """So that a CA is not asked twice for one certificate."""
    seen: list[tuple[dict[str, str], str]] = []

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        seen.append((dict(order.state), context.idempotency_key))
        if not order.state:
            context.checkpoint({"serial": "7"})
            # What a kill here leaves behind.
            claimed = worker.manager.running.get(context.task_id)
            assert claimed is not None
            desk.expire(context.task_id)
            assert desk.recover(order.id)
        return Done(result=dict(order.state))

    worker.type.steps["process_type_order"] = run
    order_id = desk.submit()
    worker.run(desk, order_id)
    assert desk.order(order_id).status == PENDING
    desk.dispatch(order_id)
    worker.run(desk, order_id)
    assert desk.order(order_id).result == {"serial": "7"}
    assert seen == [({}, f"{order_id}:0"), ({"serial": "7"}, f"{order_id}:0")]


def test_the_retry_list_is_empty_after_all_that(desk: Desk) -> None:
    """Nothing of an ended order stays behind (promise P1), whatever the tests above have done to theirs."""
    for table in (order_retry_tasks, order_task_leases):
        joined = table.join(orders, orders.c.id == table.c.order_id)
        with desk.engine.connect() as connection:
            left = connection.execute(sa.select(orders.c.id).select_from(joined).where(orders.c.status != PENDING))
            assert left.all() == []


# --- claims without an answer ---


def _lose_the_answer(worker: OrderWorker) -> list[str]:
    """The worker's next commit is done, and its answer and all further attempts are lost."""
    dialect: Any = worker.engine.dialect
    real, lost = dialect.do_commit, ["commit"]

    def do_commit(connection: Any) -> None:
        real(connection)
        if lost:
            raise dialect.dbapi.OperationalError("server closed the connection unexpectedly")

    dialect.do_commit = do_commit
    return lost


def test_a_claim_that_got_no_answer_is_given_back_and_counts_as_no_crash(desk: Desk, worker: OrderWorker) -> None:
    """The worker lives, and has not run it."""
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no connection that could be lost")
    worker.manager.keeper.round()
    order_id = desk.submit()
    lost = _lose_the_answer(worker)
    assert worker.run(desk, order_id) == "handed back"
    assert desk.lease(order_id).holder == worker.holder
    lost.clear()
    worker.manager.keeper.round()
    assert desk.lease(order_id) is None
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.crash_count, row.retry_count, row.in_seconds <= 0) == ("process_type_order", 0, 0, True)
    assert worker.bell.rung == 1
    desk.dispatch(order_id)
    assert worker.run(desk, order_id) == "acknowledged"
    assert desk.order(order_id).status == ACTIVE


def test_a_ticket_that_was_claimed_ahead_too_long_ago_is_given_back(desk: Desk, worker: OrderWorker) -> None:
    """Its lease is not renewed, and while renewals fail nothing may be begun."""
    worker.manager.keeper.round()
    order_id = desk.submit()
    task_id = desk.lease(order_id).id
    clock = worker.manager._at_hand._clock = Clock()
    worker.manager.prepare_messages([{"order_id": order_id, "task_id": task_id}])
    assert desk.lease(order_id).holder == worker.holder
    clock.advance(3600.0)
    worker.manager.keeper.last_renewal -= 100
    assert worker.deliver("process_type_order", order_id=order_id, task_id=task_id) == "handed back"
    worker.manager.keeper.round()
    [row] = desk.rows(order_id)
    assert (row.crash_count, row.in_seconds <= 0) == (0, True)


def test_a_ticket_that_comes_back_while_its_claim_is_looked_for_is_run(desk: Desk, worker: OrderWorker) -> None:
    """It would wait until it is sent once more: tickets come back just when renewals work again."""
    worker.manager.keeper.round()
    order_id = desk.submit()
    worker.manager.keeper.last_renewal -= 100
    assert worker.run(desk, order_id) == "handed back"
    came_back: list[str | None] = []

    def comes_back(*_connection: Any) -> None:
        if not worker.manager.keeper.suspects and not came_back:
            came_back.append("on its way")
            came_back[0] = worker.run(desk, order_id)

    sa.event.listen(worker.keeper_engine, "checkout", comes_back)
    worker.manager.keeper.round()
    assert came_back == ["acknowledged"]
    assert desk.order(order_id).status == ACTIVE
