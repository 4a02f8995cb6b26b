"""From ticket to outcome in one worker: what it claims, runs, keeps, drops, and says."""

from collections.abc import Iterator
from typing import Any

import pytest

from retryflow.errors import PluginUnavailable
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.tables import order_task_leases
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Done, Fail, Outcome, Poll, Retry
from retryflow.retry.steer import update_order
from tests.fixtures.contract import Desk, at_once
from tests.fixtures.order_worker import Gate, OrderWorker, order_worker

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


@pytest.mark.parametrize("outcome", [Poll(after_seconds=-0.01), Retry(reason="r", after_seconds=-1.0)])
def test_a_moment_that_has_passed_is_not_taken_for_a_time_to_wait(
    desk: Desk, worker: OrderWorker, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    """It would run ten times a second for as long as the limits allow."""
    worker.type.steps["process_type_order"] = lambda context, order, **kwargs: outcome
    order_id = desk.submit()
    worker.run(desk, order_id)
    [row] = desk.rows(order_id)
    assert (desk.order(order_id).status, row.in_seconds > 1) == (PENDING, True)
    assert "before now; the default is taken" in caplog.text


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
        Poll(after_seconds=True),
        Poll(after_seconds=float("nan")),
        Retry(reason="r", after_seconds=1_700_000_000.0),
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
