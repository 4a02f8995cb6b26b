"""Recover: a dead worker's task runs again, its crash counted; a living one is left alone (FAILURES T1, T4, T5)."""

import random
from typing import Any

from retryflow.errors import LeaseLost
from retryflow.model.clock import now
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.tables import order_task_leases, orders
from retryflow.model.transaction import transact
from retryflow.retry.finish import Finished, Kept, finish
from retryflow.retry.outcome import Done, Poll, Retry
from retryflow.retry.recover import RowLocked, recover_dead, recover_expired
from retryflow.retry.settings import Settings
from tests.fixtures.contract import Desk, at_once, new_id, quick_limits
from tests.fixtures.races import finish_against_recovery


def test_t1_an_expired_lease_becomes_a_row_due_now_with_its_crash_counted(desk: Desk) -> None:
    """FAILURES T1."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.expire(claimed.task_id)
    assert desk.recover(order_id)
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.crash_count, row.retry_count, row.step) == ("process_type_order", 1, 0, 0)
    assert row.in_seconds <= 0
    assert "died" in row.last_error
    assert desk.lease(order_id) is None
    assert desk.history(order_id) == ["submitted", "crashed"]
    assert desk.next(order_id, "b").task_id != claimed.task_id


def test_a_lease_that_was_renewed_meanwhile_is_not_recovered(desk: Desk) -> None:
    claimed = desk.running()
    desk.expire(claimed.task_id)
    seen = desk.lease(claimed.state.order_id)
    desk.write(order_task_leases.update().where(order_task_leases.c.id == claimed.task_id).values(expires_at=now(20)))
    recovered = transact(
        desk.engine,
        lambda connection: recover_expired(connection, seen, limits=desk.settings.limits, random=random.Random(1)),
    )
    assert not recovered
    assert desk.lease(claimed.state.order_id).holder == "a"
    assert desk.rows(claimed.state.order_id) == []


def test_two_schedulers_recover_an_expired_lease_once(desk: Desk) -> None:
    for _ in range(10):
        claimed = desk.running()
        order_id = claimed.state.order_id
        desk.expire(claimed.task_id)
        seen = desk.lease(order_id)

        def recover(seen: Any = seen) -> bool:
            return transact(
                desk.engine,
                lambda connection: recover_expired(
                    connection,
                    seen,
                    limits=desk.settings.limits,
                    random=random.Random(1),
                ),
            )

        results = at_once(recover, recover, recover)
        assert results.count(True) == 1
        assert all(result in (True, False) or isinstance(result, RowLocked) for result in results)
        [row] = desk.rows(order_id)
        assert row.crash_count == 1


def test_t4_a_finish_racing_a_recovery_has_exactly_one_winner(desk: Desk) -> None:
    """FAILURES T4, a short variant; tests/chaos runs the long one."""
    finish_against_recovery(desk, times=100)


def test_a_polls_counters_survive_a_crash(desk: Desk) -> None:
    claimed = desk.running()
    desk.finish(claimed, Poll(after_seconds=0, task="check_certificate_status"))
    second = desk.next(claimed.state.order_id)
    desk.finish(second, Retry(reason="later", after_seconds=0))
    third = desk.next(claimed.state.order_id)
    desk.expire(third.task_id)
    desk.recover(claimed.state.order_id)
    [row] = desk.rows(claimed.state.order_id)
    assert (row.retry_task, row.step, row.poll_count, row.retry_count, row.crash_count) == (
        "check_certificate_status", 1, 1, 1, 1,
    )  # fmt: skip
    assert row.poll_since is not None
    assert row.retry_since is not None


def test_t5_at_the_cap_of_crashes_the_order_goes_to_error_with_the_reason(desk: Desk) -> None:
    """FAILURES T5: with backoff after the first."""
    settings = quick_limits(max_crashes=3, initial_interval_seconds=10.0, jitter=0.0)
    claimed = desk.running()
    order_id = claimed.state.order_id
    delays = []
    for _ in range(2):
        desk.expire(claimed.task_id)
        desk.recover(order_id, settings=settings)
        [row] = desk.rows(order_id)
        delays.append(round(row.in_seconds))
        claimed = desk.next(order_id)
    assert delays == [0, 10]
    desk.expire(claimed.task_id)
    assert desk.recover(order_id, settings=settings)
    order = desk.order(order_id)
    assert (order.status, order.error_status_code) == (ERROR, "500")
    assert "died 3 times" in order.error_reason
    assert "max_crashes" in order.error_reason
    assert desk.is_moving(order_id)


def test_any_committed_outcome_begins_the_count_of_crashes_anew(desk: Desk) -> None:
    settings = quick_limits(max_crashes=2)
    claimed = desk.running()
    order_id = claimed.state.order_id
    for outcome in (Poll(after_seconds=0), Retry(reason="x", after_seconds=0), Poll(after_seconds=0)):
        desk.expire(claimed.task_id)
        desk.recover(order_id, settings=settings)
        claimed = desk.next(order_id)
        assert claimed.state.crash_count == 1
        desk.finish(claimed, outcome)
        claimed = desk.next(order_id)
        assert claimed.state.crash_count == 0
    assert desk.order(order_id).status == PENDING


def test_t12_an_order_cancelled_in_recovery_is_not_tried_again(desk: Desk) -> None:
    """FAILURES T12: an order that ended between the look and the recovery; its lease is garbage."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.expire(claimed.task_id)
    desk.write(orders.update().where(orders.c.id == order_id).values(status=ERROR))
    assert desk.recover(order_id)
    assert desk.lease(order_id) is None
    assert desk.rows(order_id) == []
    assert desk.history(order_id) == ["submitted"]


def test_all_tasks_of_a_provably_dead_process_are_recovered_and_no_others(desk: Desk) -> None:
    dead, alive = new_id(), new_id()
    mine = [desk.running(dead) for _ in range(3)]
    other = desk.running(alive)
    assert recover_dead(desk.engine, dead, limits=desk.settings.limits, random=random.Random(1)) == (3, 0)
    assert recover_dead(desk.engine, dead, limits=desk.settings.limits, random=random.Random(1)) == (0, 0)
    for claimed in mine:
        [row] = desk.rows(claimed.state.order_id)
        assert (row.crash_count, desk.lease(claimed.state.order_id)) == (1, None)
    assert desk.lease(other.state.order_id).holder == alive


def test_two_neighbours_and_the_scheduler_recover_a_dead_process_once(desk: Desk) -> None:
    for _ in range(5):
        dead = new_id()
        claimed = desk.running(dead)
        order_id = claimed.state.order_id
        desk.expire(claimed.task_id)

        def neighbour(dead: str = dead) -> int:
            return recover_dead(desk.engine, dead, limits=desk.settings.limits, random=random.Random(1))[0]

        def scheduler(order_id: str = order_id) -> int:
            return int(desk.recover(order_id))

        results = at_once(neighbour, neighbour, scheduler)
        assert sum(results) == 1, results  # type: ignore[arg-type]
        [row] = desk.rows(order_id)
        assert row.crash_count == 1


def test_what_a_recovered_zombie_finishes_is_refused(desk: Desk) -> None:
    """FAILURES T4: "finished and failed" at once."""
    zombie = desk.running("a")
    order_id = zombie.state.order_id
    desk.expire(zombie.task_id)
    desk.recover(order_id)
    second = desk.next(order_id, "b")
    results = at_once(
        lambda: desk.finish(zombie, Done(result={"by": "a"}), "a"),
        lambda: desk.finish(second, Done(result={"by": "b"}), "b"),
    )
    assert isinstance(results[0], LeaseLost)
    assert isinstance(results[1], Finished)
    assert desk.order(order_id).status == ACTIVE
    assert desk.order(order_id).result == {"by": "b"}
    assert desk.history(order_id) == ["submitted", "crashed", "done"]


def test_the_same_worker_may_be_its_own_zombie(desk: Desk) -> None:
    """A worker whose lease was recovered may get the very task again: its first run must not commit for the second."""
    zombie = desk.running("a")
    desk.expire(zombie.task_id)
    desk.recover(zombie.state.order_id)
    second = desk.next(zombie.state.order_id, "a")
    result = at_once(lambda: desk.finish(zombie, Done(result={"run": 1}), "a"))[0]
    assert isinstance(result, LeaseLost)
    kept = finish(
        desk.engine, second, Done(result={"run": 2}), holder="a", run_seconds=0.0,
        limits=Settings().limits, random=random.Random(1),
    )  # fmt: skip
    assert kept.kept is Kept.COMMITTED
