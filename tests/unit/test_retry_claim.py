"""Claim: any number of tickets, one run (promises P2 and P3; FAILURES T3, T6, T15)."""

import threading
from functools import partial

import sqlalchemy as sa

from retryflow.model import leases
from retryflow.model.leases import Claimable
from retryflow.model.tables import order_task_leases, orders
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.outcome import Done, Poll
from tests.fixtures.contract import Desk, at_once

_columns = order_task_leases.c


def _claim(desk: Desk, task_id: str, holder: str, *, also_crashed: bool = True) -> Claimable | NotClaimed:
    return claim(desk.engine, task_id, holder=holder, lease_seconds=20.0, also_crashed=also_crashed)


def test_t3_fifty_copies_of_a_ticket_claimed_at_once_give_one_run(desk: Desk) -> None:
    """FAILURES T3, by fifty workers at the same moment."""
    task_id = desk.lease(desk.submit()).id
    results = at_once(*[lambda holder=f"w{n}": _claim(desk, task_id, holder) for n in range(50)])
    won = [result for result in results if isinstance(result, Claimable)]
    assert len(won) == 1
    assert desk.lease(won[0].state.order_id).holder == won[0].holder
    assert {result for result in results if not isinstance(result, Claimable)} == {NotClaimed.HELD}


def test_t3_copies_that_come_after_the_end_claim_nothing(desk: Desk) -> None:
    """FAILURES T3: a second run must not replace the order's result."""
    claimed = desk.running()
    desk.finish(claimed, Done(result={"n": 1}))
    assert _claim(desk, claimed.task_id, "late") is NotClaimed.GONE
    assert desk.order(claimed.state.order_id).result == {"n": 1}


def test_a_ticket_of_the_step_before_claims_nothing_of_the_next_one(desk: Desk) -> None:
    claimed = desk.running()
    desk.finish(claimed, Poll(after_seconds=0))
    desk.dispatch(claimed.state.order_id)
    assert _claim(desk, claimed.task_id, "late") is NotClaimed.GONE
    assert desk.lease(claimed.state.order_id).holder is None


def test_a_held_lease_never_loses_its_holder_to_another_claim(desk: Desk) -> None:
    claimed = desk.running("a")
    desk.expire(claimed.task_id)
    # Even expired: only a recovery, which counts the crash and changes the id, may give the task to another.
    assert _claim(desk, claimed.task_id, "b") is NotClaimed.HELD
    assert desk.lease(claimed.state.order_id).holder == "a"


def test_a_claim_repeated_after_an_unclear_commit_is_still_ours(desk: Desk) -> None:
    claimed = desk.running("a")
    again = _claim(desk, claimed.task_id, "a")
    assert isinstance(again, Claimable)
    assert again.state == claimed.state


def test_a_crashed_task_is_only_taken_by_who_asks_for_it(desk: Desk) -> None:
    """FAILURES T5: such a task may kill this worker too."""
    claimed = desk.running()
    desk.expire(claimed.task_id)
    assert desk.recover(claimed.state.order_id)
    task_id = desk.dispatch(claimed.state.order_id)
    assert _claim(desk, task_id, "b", also_crashed=False) is NotClaimed.CRASHED_BEFORE
    assert desk.lease(claimed.state.order_id).holder is None
    taken = _claim(desk, task_id, "b", also_crashed=True)
    assert isinstance(taken, Claimable)
    assert taken.state.crash_count == 1


def test_the_lease_of_an_ended_order_is_garbage_that_the_claim_removes(desk: Desk) -> None:
    """A row that slipped through while the order ended never runs (FAILURES T12)."""
    order_id = desk.submit()
    desk.write(orders.update().where(orders.c.id == order_id).values(status="ERROR"))
    assert _claim(desk, desk.lease(order_id).id, "a") is NotClaimed.ORDER_ENDED
    assert desk.lease(order_id) is None


def test_a_claim_tells_what_the_row_and_the_order_say(desk: Desk) -> None:
    claimed = desk.running(x=1)
    desk.finish(claimed, Poll(after_seconds=0, task="check_certificate_status", state={"k": "v"}, plugin_name="ca"))
    found = desk.next(claimed.state.order_id, "b")
    assert (found.holder, found.order_type, found.project_id, found.meta) == ("b", "probe", "p1", {"x": 1})
    assert (found.state.task, found.state.step, found.state.poll_count) == ("check_certificate_status", 1, 1)
    assert (found.plugin_state, found.plugin_name) == ({"k": "v"}, "ca")
    assert 0 <= found.polling_seconds < 60
    assert found.retrying_seconds == 0


def test_a_claim_racing_the_return_of_an_unclaimed_lease_has_one_winner(desk: Desk) -> None:
    for _ in range(20):
        order_id = desk.submit()
        task_id = desk.lease(order_id).id

        def give_up(task_id: str = task_id) -> bool:
            with desk.engine.begin() as connection:
                return leases.delete_waiting(connection, task_id)

        claimed, returned = at_once(partial(_claim, desk, task_id, "a"), give_up)
        assert isinstance(claimed, Claimable) is not returned
        assert (desk.lease(order_id) is None) is returned


def test_an_uncommitted_claim_counts_for_nobody(desk: Desk) -> None:
    """What a statement said between its execution and the commit is no promise: the process may die there."""
    order_id = desk.submit()
    task_id = desk.lease(order_id).id
    ready, go = threading.Event(), threading.Event()

    def unfinished() -> None:
        with desk.engine.connect() as connection, connection.begin() as transaction:
            assert leases.claim(connection, task_id, holder="dying", lease_seconds=20.0, also_crashed=True)
            ready.set()
            go.wait(10.0)
            transaction.rollback()

    thread = threading.Thread(target=unfinished)
    thread.start()
    ready.wait(10.0)
    if desk.kind != "sqlite":
        assert desk.lease(order_id).holder is None
    go.set()
    thread.join()
    taken = _claim(desk, task_id, "b")
    assert isinstance(taken, Claimable)


def test_a_lease_of_a_previous_version_can_be_claimed(desk: Desk) -> None:
    """FAILURES T15: rows with fewer and with more arguments than ours."""
    for kwargs in ("{}", '{"order_id": "x", "project_id": "p", "later_addition": {"a": 1}}'):
        order_id = desk.submit()
        desk.write(order_task_leases.update().where(_columns.order_id == order_id).values(kwargs=kwargs, args="[]"))
        assert desk.claim(order_id).state.kwargs == kwargs


def test_a_lease_without_its_order_cannot_exist(desk: Desk) -> None:
    order_id = desk.submit()
    task_id = desk.lease(order_id).id
    desk.write(sa.delete(orders).where(orders.c.id == order_id))
    assert _claim(desk, task_id, "a") is NotClaimed.GONE
