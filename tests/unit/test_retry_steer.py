"""Update, cancel, retry, delete and foreign tickets, while the order's task runs, waits or is recovered (T12)."""

from functools import partial

import pytest
import sqlalchemy as sa

from retryflow.errors import InvalidOrder, LeaseLost, OrderNotFound, WrongOrderState
from retryflow.model import retry_rows
from retryflow.model.clock import now
from retryflow.model.leases import Claimable
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.tables import order_events, order_plugin_metadata, order_retry_tasks, order_task_leases
from retryflow.model.task_state import TaskState
from retryflow.model.transaction import transact
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.finish import Kept, checkpoint
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.steer import admit_foreign_ticket, cancel_order, delete_order, retry_order, update_order
from retryflow.retry.together import TaskGroups
from tests.fixtures.contract import Bell, Desk, Outbox, at_once, new_id, unclear_commit

CHECK = "check_certificate_status"


def _waiting(desk: Desk, *, after_seconds: float = 500.0) -> str:
    """An order that waits for its backend."""
    claimed = desk.running(version=1)
    desk.finish(claimed, Poll(after_seconds=after_seconds, task=CHECK, state={"serial": "7"}))
    return claimed.state.order_id


# --- update ---


def test_an_update_is_in_the_order_at_once_and_a_task_looks_at_it_soon(desk: Desk) -> None:
    bell, order_id = Bell(), _waiting(desk)
    update_order(desk.engine, order_id, {"version": 2}, request_id="req-2", waker=bell)
    assert desk.order(order_id).meta == {"version": 2}
    first, second = desk.rows(order_id)
    assert (first.retry_task, first.in_seconds <= 0, first.request_id) == ("update_order", True, "req-2")
    assert second.retry_task == CHECK
    assert bell.rung == 1


def test_updates_while_a_task_runs_are_all_looked_at_by_the_next_run(desk: Desk) -> None:
    claimed = desk.running(version=1)
    order_id = claimed.state.order_id
    for version in (2, 3, 4):
        update_order(desk.engine, order_id, {"version": version})
    desk.finish(claimed, Poll(after_seconds=500, task=CHECK))
    update = desk.next(order_id)
    assert (update.state.task, update.meta) == ("update_order", {"version": 4})
    # One more, while the update is being looked at: looked at by another run.
    update_order(desk.engine, order_id, {"version": 5})
    desk.finish(update, Continue())
    again = desk.next(order_id)
    assert (again.state.task, again.meta) == ("update_order", {"version": 5})
    desk.finish(again, Continue())
    [row] = desk.rows(order_id)
    assert row.retry_task == CHECK
    assert desk.history(order_id).count("update requested") == 4


def test_two_clients_that_update_at_once_leave_one_of_both_whole_and_one_row(desk: Desk) -> None:
    for _ in range(10):
        order_id = desk.submit(version=0)
        results = at_once(*[partial(update_order, desk.engine, order_id, {"version": n, "of": n}) for n in range(6)])
        assert results == [None] * 6
        meta = desk.order(order_id).meta
        assert meta["version"] == meta["of"]
        assert [row.retry_task for row in desk.rows(order_id)] == ["update_order"]


def test_an_update_racing_the_end_of_the_order_is_taken_or_refused_never_half(desk: Desk) -> None:
    for _ in range(15):
        claimed = desk.running(version=1)
        order_id = claimed.state.order_id
        finished, updated = at_once(
            partial(desk.finish, claimed, Done(result={})), partial(update_order, desk.engine, order_id, {"version": 2})
        )
        assert finished.kept is Kept.COMMITTED  # type: ignore[union-attr]
        assert updated is None or isinstance(updated, WrongOrderState), updated
        if updated is None:
            # It was in time, and the order does not end before a task has looked at it.
            assert desk.order(order_id).status == PENDING
            again = desk.next(order_id)
            assert (again.state.task, again.meta) == ("update_order", {"version": 2})
            desk.finish(again, Continue())
        else:
            assert desk.order(order_id).meta == {"version": 1}
        assert desk.order(order_id).status == ACTIVE
        assert desk.lease(order_id) is None
        assert desk.rows(order_id) == []


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("answer", [Continue(), Done(result={"v": 2})])
def test_an_update_during_the_run_that_ends_the_order_is_looked_at_first(
    desk: Desk, answer: Outcome, together: bool
) -> None:
    groups = TaskGroups(desk.engine, holder="a", settings=desk.settings, random=desk.random)
    claimed = desk.running("a")
    order_id = claimed.state.order_id
    update_order(desk.engine, order_id, {"v": 2})
    ended = groups.finish(claimed, Done(result={"v": 1}), run_seconds=0.1, alone=not together)
    assert ended.due_in_seconds is not None, "the scheduler is to be woken"
    assert -60 < ended.due_in_seconds <= 0
    assert (desk.order(order_id).status, desk.is_moving(order_id)) == (PENDING, True)
    again = desk.next(order_id, "a")
    assert (again.state.task, again.meta) == ("update_order", {"v": 2})
    groups.finish(again, answer, run_seconds=0.1, alone=not together)
    result = answer.result if isinstance(answer, Done) else {"v": 1}
    assert (desk.order(order_id).status, desk.order(order_id).result) == (ACTIVE, result)
    assert desk.rows(order_id) == []
    assert desk.history(order_id) == ["submitted", "update requested", "continued", "done"]


@pytest.mark.parametrize("together", [True, False])
def test_what_waited_behind_a_task_is_due_at_its_end(desk: Desk, together: bool) -> None:
    """Nobody could dispatch it before; the task's own next step is a day away."""
    groups = TaskGroups(desk.engine, holder="a", settings=desk.settings, random=desk.random)
    claimed = desk.running("a")
    order_id = claimed.state.order_id
    update_order(desk.engine, order_id, {"v": 2})
    ended = groups.finish(claimed, Poll(after_seconds=86400, task=CHECK), run_seconds=0.1, alone=not together)
    assert ended.due_in_seconds is not None
    assert -60 < ended.due_in_seconds <= 0
    again = desk.next(order_id, "a")
    assert again.state.task == "update_order"
    ended = groups.finish(again, Continue(), run_seconds=0.1, alone=not together)
    assert ended.due_in_seconds is not None
    assert 86400 - 60 < ended.due_in_seconds <= 86400, "the other task's step, which the update has left as it was"


def test_an_order_that_fails_takes_its_updates_with_it(desk: Desk) -> None:
    claimed = desk.running()
    order_id = claimed.state.order_id
    update_order(desk.engine, order_id, {"v": 2})
    desk.finish(claimed, Fail(code="400", reason="no"))
    assert desk.order(order_id).status == ERROR
    assert desk.rows(order_id) == []


def test_a_retry_of_an_order_is_a_new_piece_of_work_to_its_backend(desk: Desk) -> None:
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Poll(after_seconds=0, task=CHECK))
    steps = [0, 1]
    for _ in range(2):
        cancel_order(desk.engine, order_id)
        retry_order(desk.engine, order_id, settings=desk.settings)
        steps.append(desk.lease(order_id).step)
    assert steps == [0, 1, 2, 3]


def test_a_late_copy_of_a_foreign_ticket_does_not_run_its_task_again(desk: Desk) -> None:
    """Promise P2: upstream's client sends no task_id, and its broker may deliver a ticket twice."""
    order_id = desk.submit()
    desk.write(order_task_leases.delete().where(order_task_leases.c.order_id == order_id))
    assert admit_foreign_ticket(desk.engine, order_id, "process_type_order", request_id=None)
    desk.finish(desk.next(order_id), Poll(after_seconds=600, task=CHECK))
    assert not admit_foreign_ticket(desk.engine, order_id, "process_type_order", request_id=None)
    assert [row.retry_task for row in desk.rows(order_id)] == [CHECK]
    assert admit_foreign_ticket(desk.engine, order_id, "update_order", request_id=None)


def test_an_update_racing_a_poll_is_looked_at(desk: Desk) -> None:
    for _ in range(15):
        claimed = desk.running(version=1)
        order_id = claimed.state.order_id
        at_once(
            partial(desk.finish, claimed, Poll(after_seconds=500, task=CHECK)),
            partial(update_order, desk.engine, order_id, {"version": 2}),
        )
        assert [row.retry_task for row in desk.rows(order_id)] == ["update_order", CHECK]
        assert desk.next(order_id).meta == {"version": 2}


def test_an_update_during_recovery_keeps_both_rows(desk: Desk) -> None:
    for _ in range(10):
        claimed = desk.running(version=1)
        order_id = claimed.state.order_id
        desk.expire(claimed.task_id)
        results = at_once(partial(desk.recover, order_id), partial(update_order, desk.engine, order_id, {"version": 2}))
        assert results[1] is None
        # Where the update has locked the order first, it is passed over, and recovered at the next look.
        assert results[0] or desk.recover(order_id)
        rows = {row.retry_task: row for row in desk.rows(order_id)}
        assert rows.keys() == {"process_type_order", "update_order"}
        assert rows["process_type_order"].crash_count == 1


@pytest.mark.parametrize("meta", [[1], "text", {"a": float("inf")}, {"a": {1}}])
def test_an_update_that_is_no_json_object_is_refused(desk: Desk, meta: object) -> None:
    order_id = desk.submit(version=1)
    with pytest.raises(InvalidOrder):
        update_order(desk.engine, order_id, meta)  # type: ignore[arg-type]
    assert desk.order(order_id).meta == {"version": 1}


def test_an_ended_order_and_one_that_is_not_there_cannot_be_steered(desk: Desk) -> None:
    claimed = desk.running()
    desk.finish(claimed, Done())
    order_id = claimed.state.order_id
    for steer in (
        partial(update_order, desk.engine, order_id, {}),
        partial(cancel_order, desk.engine, order_id),
        partial(retry_order, desk.engine, order_id, settings=desk.settings),
    ):
        with pytest.raises(WrongOrderState, match=f"order {order_id} is ACTIVE"):
            steer()
    for steer in (
        partial(update_order, desk.engine, "missing", {}),
        partial(cancel_order, desk.engine, "missing"),
        partial(retry_order, desk.engine, "missing", settings=desk.settings),
        partial(delete_order, desk.engine, "missing"),
    ):
        with pytest.raises(OrderNotFound, match="missing"):
            steer()
    assert (desk.order(order_id).status, desk.order(order_id).sub_status) == (ACTIVE, None)


# --- rows of one task merge ---


def _put(desk: Desk, state: TaskState, after_seconds: float) -> None:
    transact(desk.engine, lambda connection: retry_rows.put(connection, state, after_seconds=after_seconds))


@pytest.mark.parametrize(("old", "new", "due"), [(500.0, 100.0, 100.0), (100.0, 500.0, 100.0)])
def test_of_two_rows_of_one_task_the_earlier_time_and_the_older_counters_stay(
    desk: Desk, old: float, new: float, due: float
) -> None:
    order_id = desk.submit()
    first = TaskState(order_id, CHECK, retry_count=4, poll_count=7, crash_count=1, step=9, last_error="old")
    _put(desk, first, old)
    _put(desk, TaskState(order_id, CHECK, retry_count=0, step=0, last_error="new"), new)
    [row] = desk.rows(order_id)
    assert abs(row.in_seconds - due) < 60
    assert (row.retry_count, row.poll_count, row.crash_count, row.step, row.last_error) == (4, 7, 1, 9, "old")


def test_rows_of_one_task_written_at_once_merge(desk: Desk) -> None:
    order_id = desk.submit()
    state = TaskState(order_id, CHECK)
    results = at_once(*[partial(_put, desk, state, 100.0 + n) for n in range(8)])
    assert results == [None] * 8
    [row] = desk.rows(order_id)
    assert row.in_seconds < 101


# --- cancel ---


def test_t12_a_cancelled_order_that_waits_has_nothing_left(desk: Desk) -> None:
    """FAILURES T12: its rows go in the same transaction."""
    order_id = _waiting(desk)
    update_order(desk.engine, order_id, {"version": 2})
    cancel_order(desk.engine, order_id, reason="no longer wanted")
    order = desk.order(order_id)
    assert (order.status, order.sub_status, order.error_reason) == (ERROR, "cancelled", "no longer wanted")
    assert desk.is_moving(order_id)


def test_t12_a_cancelled_order_whose_ticket_waits_is_not_run(desk: Desk) -> None:
    """FAILURES T12: the ticket is out already."""
    order_id = desk.submit()
    task_id = desk.lease(order_id).id
    cancel_order(desk.engine, order_id)
    assert claim(desk.engine, task_id, holder="a", lease_seconds=20.0, also_crashed=True) is NotClaimed.GONE


def test_t12_a_cancel_racing_a_claim_leaves_no_run_that_could_be_kept(desk: Desk) -> None:
    """FAILURES T12: whichever comes first."""
    for _ in range(15):
        order_id = desk.submit()
        take = partial(claim, desk.engine, desk.lease(order_id).id, holder="a", lease_seconds=20.0, also_crashed=True)
        claimed, cancelled = at_once(take, partial(cancel_order, desk.engine, order_id))
        assert cancelled is None
        if isinstance(claimed, Claimable):
            with pytest.raises(LeaseLost):
                desk.finish(claimed, Done(result={"n": 1}))
        assert (desk.order(order_id).status, desk.order(order_id).result) == (ERROR, None)
        assert desk.is_moving(order_id)


def test_t12_a_cancel_racing_a_recovery_ends_the_order(desk: Desk) -> None:
    """FAILURES T12: in recovery; a row that slipped through is garbage that never runs."""
    for _ in range(15):
        claimed = desk.running()
        order_id = claimed.state.order_id
        desk.expire(claimed.task_id)
        recovered, cancelled = at_once(partial(desk.recover, order_id), partial(cancel_order, desk.engine, order_id))
        assert isinstance(recovered, bool)
        assert cancelled is None
        assert (desk.order(order_id).status, desk.order(order_id).sub_status) == (ERROR, "cancelled")
        assert desk.lease(order_id) is None
        if desk.rows(order_id):
            task_id = desk.dispatch(order_id)
            taken = claim(desk.engine, task_id, holder="b", lease_seconds=20.0, also_crashed=True)
            assert taken is NotClaimed.ORDER_ENDED
        assert desk.is_moving(order_id)


def test_a_cancel_reason_is_kept_whatever_it_holds(desk: Desk) -> None:
    order_id = desk.submit()
    cancel_order(desk.engine, order_id, reason="NUL \x00 and \ud800")
    assert desk.order(order_id).error_reason.startswith("NUL ")


# --- retry by an operator ---


def test_a_failed_order_is_started_over_with_new_counters(desk: Desk) -> None:
    outbox = Outbox()
    claimed = desk.running(version=1)
    order_id = claimed.state.order_id
    desk.finish(claimed, Retry(reason="x", state={"serial": "7"}))
    desk.finish(desk.next(order_id), Fail(code="500", reason="broken", sub_status="bad", sub_status_message="Bad."))
    retry_order(desk.engine, order_id, settings=desk.settings, sender=outbox)
    order, lease = desk.order(order_id), desk.lease(order_id)
    assert (order.status, order.sub_status, order.sub_status_message) == (PENDING, None, None)
    assert (order.error_status_code, order.error_reason) == (None, None)
    assert (lease.holder, lease.retry_count, lease.crash_count, lease.retry_since) == (None, 0, 0, None)
    [ticket] = outbox.tickets
    assert (ticket.task_id, ticket.order_id) == (lease.id, order_id)
    assert desk.history(order_id)[-1] == "retry requested"
    assert desk.plugin_state(order_id) == [("serial", "7")]
    again = desk.claim(order_id)
    desk.finish(again, Done(result={"n": 2}))
    assert desk.order(order_id).result == {"n": 2}


def test_an_order_retried_twice_at_once_has_one_lease(desk: Desk) -> None:
    for _ in range(10):
        claimed = desk.running()
        order_id = claimed.state.order_id
        desk.finish(claimed, Fail(code="500", reason="x"))
        results = at_once(*[partial(retry_order, desk.engine, order_id, settings=desk.settings)] * 3)
        assert sorted(type(result).__name__ for result in results) == ["NoneType", "WrongOrderState", "WrongOrderState"]
        assert desk.lease(order_id).holder is None
        assert desk.history(order_id).count("retry requested") == 1


def test_a_retried_order_gives_nothing_to_the_run_that_was_cancelled(desk: Desk) -> None:
    zombie = desk.running()
    order_id = zombie.state.order_id
    cancel_order(desk.engine, order_id)
    retry_order(desk.engine, order_id, settings=desk.settings)
    with pytest.raises(LeaseLost):
        desk.finish(zombie, Done(result={"by": "zombie"}))
    assert desk.order(order_id).status == PENDING
    assert desk.lease(order_id).holder is None


# --- delete ---


@pytest.mark.parametrize("moment", ["queued", "running", "waiting", "in recovery", "ended"])
def test_t12_a_deleted_order_takes_everything_along(desk: Desk, moment: str) -> None:
    """FAILURES T12: at whatever moment."""
    if moment == "queued":
        order_id = desk.submit()
    elif moment == "waiting":
        order_id = _waiting(desk)
    else:
        claimed = desk.running()
        order_id = claimed.state.order_id
        checkpoint(desk.engine, claimed, {"k": "v"}, holder="a")
        if moment == "in recovery":
            desk.expire(claimed.task_id)
            desk.recover(order_id)
        elif moment == "ended":
            desk.finish(claimed, Done())
    delete_order(desk.engine, order_id)
    with desk.engine.connect() as connection:
        for table in (order_task_leases, order_retry_tasks, order_events, order_plugin_metadata):
            found = connection.execute(sa.select(table).where(table.c.order_id == order_id)).all()
            assert found == [], table.name


def test_t12_a_delete_racing_a_finish_leaves_nothing(desk: Desk) -> None:
    """FAILURES T12: no follow-on row may bring a deleted order back."""
    for _ in range(15):
        claimed = desk.running()
        order_id = claimed.state.order_id
        finished, deleted = at_once(
            partial(desk.finish, claimed, Poll(state={"k": "v"})), partial(delete_order, desk.engine, order_id)
        )
        assert deleted is None
        assert not isinstance(finished, BaseException) or isinstance(finished, LeaseLost), finished
        assert (desk.order(order_id), desk.rows(order_id), desk.lease(order_id)) == (None, [], None)


# --- tickets of clients that know nothing of leases ---


def test_a_foreign_ticket_of_a_pending_order_without_next_step_makes_one_row(desk: Desk) -> None:
    """Upstream's client inserts the order itself and casts the task; no lease comes with it."""
    bell, order_id = Bell(), desk.submit()
    desk.write(sa.delete(order_task_leases).where(order_task_leases.c.order_id == order_id))
    assert admit_foreign_ticket(desk.engine, order_id, "process_type_order", request_id="r", waker=bell)
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.in_seconds <= 0, row.request_id) == ("process_type_order", True, "r")
    assert desk.lease(order_id) is None
    assert bell.rung == 1
    desk.finish(desk.next(order_id), Done())
    assert desk.order(order_id).status == ACTIVE


def test_t3_doubled_foreign_tickets_do_nothing(desk: Desk) -> None:
    """FAILURES T3, for clients without task ids: at once, while it runs, and after its end."""
    order_id = desk.submit()
    desk.write(sa.delete(order_task_leases).where(order_task_leases.c.order_id == order_id))
    admit = partial(admit_foreign_ticket, desk.engine, order_id, "process_type_order", request_id=None)
    at_once(*[admit] * 8)
    assert len(desk.rows(order_id)) == 1
    claimed = desk.next(order_id)
    assert not admit()
    assert desk.rows(order_id) == []
    desk.finish(claimed, Done())
    assert not admit()
    assert desk.is_moving(order_id)


def test_a_foreign_ticket_never_moves_a_row_that_waits(desk: Desk) -> None:
    order_id = _waiting(desk)
    assert not admit_foreign_ticket(desk.engine, order_id, CHECK, request_id=None)
    [row] = desk.rows(order_id)
    assert (row.in_seconds > 400, row.step) == (True, 1)


def test_a_foreign_ticket_of_an_order_that_vanished_does_nothing(desk: Desk) -> None:
    assert not admit_foreign_ticket(desk.engine, new_id(), "process_type_order", request_id=None)


# --- a commit whose answer was lost ---


@pytest.mark.parametrize("committed", [True, False])
def test_steering_through_a_lost_commit_succeeds_once(desk: Desk, committed: bool) -> None:
    """The operator must not read "only a PENDING order can be cancelled" about the order he has just cancelled."""
    cancelled, deleted, updated, failed = (desk.running() for _ in range(4))
    with unclear_commit(desk, committed=committed) as engine:
        cancel_order(engine, cancelled.state.order_id)
    assert desk.history(cancelled.state.order_id) == ["submitted", "cancelled"]
    with unclear_commit(desk, committed=committed) as engine:
        delete_order(engine, deleted.state.order_id)
    assert desk.order(deleted.state.order_id) is None
    with unclear_commit(desk, committed=committed) as engine:
        update_order(engine, updated.state.order_id, {"version": 2})
    assert desk.order(updated.state.order_id).meta == {"version": 2}
    desk.finish(failed, Fail(code="500", reason="x"))
    outbox = Outbox()
    with unclear_commit(desk, committed=committed) as engine:
        retry_order(engine, failed.state.order_id, settings=desk.settings, sender=outbox)
    assert [ticket.task_id for ticket in outbox.tickets] == [desk.lease(failed.state.order_id).id]
    assert desk.history(failed.state.order_id) == ["submitted", "failed", "retry requested"]


def test_the_clock_of_a_row_is_the_databases(desk: Desk) -> None:
    """Promise P6: due now means due by the database's clock."""
    order_id = _waiting(desk, after_seconds=0)
    with desk.engine.connect() as connection:
        due = connection.scalar(
            sa.select(order_retry_tasks.c.retry_at <= now()).where(order_retry_tasks.c.order_id == order_id)
        )
    assert due
