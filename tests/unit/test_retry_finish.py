"""Finish: an outcome is committed once, whole, and only by who holds the lease (P2; FAILURES T4, T7, T10, T11, T12)."""

import math
from functools import partial

import pytest
import sqlalchemy as sa

from retryflow.errors import LeaseLost
from retryflow.model.clock import now
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.tables import order_events, order_retry_tasks, orders
from retryflow.retry.finish import Kept, checkpoint, finish, hand_back
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.steer import cancel_order, delete_order, update_order
from tests.fixtures.contract import Desk, at_once, quick_limits, unclear_commit

CHECK = "check_certificate_status"


def _counts(desk: Desk, order_id: str) -> tuple[object, ...]:
    [row] = desk.rows(order_id)
    return (row.retry_task, row.step, row.poll_count, row.retry_count, row.crash_count)


def test_done_makes_the_order_active_with_its_result(desk: Desk) -> None:
    claimed = desk.running()
    order_id = claimed.state.order_id
    outcome = Done(result={"pem": ["a\nb", "ü\x00"]}, state={"serial": "7"}, plugin_name="ca")
    assert desk.finish(claimed, outcome).kept is Kept.COMMITTED
    order = desk.order(order_id)
    assert (order.status, order.result, order.plugin_name) == (ACTIVE, {"pem": ["a\nb", "ü\x00"]}, "ca")
    assert (order.sub_status, order.sub_status_message, order.error_reason) == (None, None, None)
    assert desk.plugin_state(order_id) == [("serial", "7")]
    assert desk.is_moving(order_id)
    assert desk.history(order_id) == ["submitted", "done"]


def test_t7_each_reason_to_run_again_is_counted_apart(desk: Desk) -> None:
    """FAILURES T7: retry count never raised elsewhere."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Retry(reason="busy"))
    assert _counts(desk, order_id) == ("process_type_order", 0, 0, 1, 0)
    desk.finish(desk.next(order_id), Retry(reason="busy"))
    assert _counts(desk, order_id) == ("process_type_order", 0, 0, 2, 0)
    desk.finish(desk.next(order_id), Poll(task=CHECK))
    # A poll is progress: the attempts at the next step are counted from the start.
    assert _counts(desk, order_id) == (CHECK, 1, 1, 0, 0)
    desk.finish(desk.next(order_id), Poll())
    assert _counts(desk, order_id) == (CHECK, 2, 2, 0, 0)
    desk.finish(desk.next(order_id), Retry(reason="busy", counted=False))
    assert _counts(desk, order_id) == (CHECK, 2, 2, 0, 0)
    desk.finish(desk.next(order_id), Retry(reason="again", task="process_type_order"))
    assert _counts(desk, order_id) == ("process_type_order", 3, 2, 1, 0)
    assert desk.order(order_id).status == PENDING


def test_t7_the_wait_grows_with_each_attempt_and_the_plugins_wish_goes_before(desk: Desk) -> None:
    """FAILURES T7: no backoff elsewhere, and the plugin's delay ignored."""
    settings = quick_limits(initial_interval_seconds=100.0, maximum_interval_seconds=300.0, jitter=0.0)
    claimed = desk.running()
    order_id = claimed.state.order_id
    waits = []
    for outcome in (
        Retry(reason="1"),
        Retry(reason="2"),
        Retry(reason="3"),
        Retry(reason="4"),
        Retry(reason="5", after_seconds=7.0),
        Poll(after_seconds=9.0),
        Poll(),
    ):
        desk.finish(claimed, outcome, settings=settings)
        waits.append(round(desk.rows(order_id)[0].in_seconds))
        claimed = desk.next(order_id)
    assert waits == [100, 200, 300, 300, 7, 9, 300]


@pytest.mark.parametrize(
    ("asked", "due"), [(-5.0, 0.0), (math.nan, 300.0), (math.inf, 366 * 86_400.0), (1e300, 366 * 86_400.0)]
)
def test_an_odd_wish_of_a_plugin_is_brought_into_bounds(desk: Desk, asked: float, due: float) -> None:
    claimed = desk.running()
    desk.finish(claimed, Poll(after_seconds=asked))
    assert abs(desk.rows(claimed.state.order_id)[0].in_seconds - due) < 60


def test_t7_at_the_cap_of_attempts_the_order_goes_to_error_with_the_reason(desk: Desk) -> None:
    """FAILURES T7: no cap elsewhere."""
    settings = quick_limits(maximum_attempts=2)
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Retry(reason="backend is busy"), settings=settings)
    desk.finish(desk.next(order_id), Retry(reason="backend is down"), settings=settings)
    order = desk.order(order_id)
    assert (order.status, order.error_status_code) == (ERROR, "503")
    assert "2 attempts" in order.error_reason
    assert "backend is down" in order.error_reason
    assert desk.is_moving(order_id)


def test_the_give_up_clocks_run_by_the_database_from_the_first_failure_and_the_first_poll(desk: Desk) -> None:
    settings = quick_limits(give_up_after_seconds=600.0, poll_give_up_after_seconds=6000.0)
    columns = order_retry_tasks.c
    claimed = desk.running()
    order_id = claimed.state.order_id

    def age(column: str, seconds: float) -> None:
        desk.write(order_retry_tasks.update().where(columns.order_id == order_id).values({column: now(-seconds)}))

    desk.finish(claimed, Poll(after_seconds=0), settings=settings)
    age("poll_since", 5000)
    desk.finish(desk.next(order_id), Retry(reason="x"), settings=settings)
    age("retry_since", 500)
    desk.finish(desk.next(order_id), Retry(reason="x"), settings=settings)
    # A poll is progress: the clock of failures stands still until the next one.
    desk.finish(desk.next(order_id), Poll(after_seconds=0), settings=settings)
    assert desk.rows(order_id)[0].retry_since is None
    desk.finish(desk.next(order_id), Retry(reason="x"), settings=settings)
    age("retry_since", 700)
    desk.finish(desk.next(order_id), Retry(reason="the CA is away"), settings=settings)
    order = desk.order(order_id)
    assert (order.status, order.error_status_code) == (ERROR, "503")
    assert "give_up_after_seconds" in order.error_reason
    assert "the CA is away" in order.error_reason


def test_an_order_that_waits_too_long_for_its_backend_ends_with_the_reason(desk: Desk) -> None:
    settings = quick_limits(poll_give_up_after_seconds=6000.0)
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Poll(after_seconds=0), settings=settings)
    desk.write(order_retry_tasks.update().where(order_retry_tasks.c.order_id == order_id).values(poll_since=now(-7000)))
    desk.finish(desk.next(order_id), Poll(after_seconds=0), settings=settings)
    order = desk.order(order_id)
    assert (order.status, order.error_status_code) == (ERROR, "504")
    assert "poll_give_up_after_seconds" in order.error_reason


def test_a_task_that_nobody_knows_is_not_counted_and_ends_by_the_clock(desk: Desk) -> None:
    settings = quick_limits(maximum_attempts=1, give_up_after_seconds=600.0)
    claimed = desk.running()
    order_id = claimed.state.order_id
    for _ in range(3):
        desk.finish(claimed, Retry(reason="unknown task", counted=False), settings=settings)
        claimed = desk.next(order_id)
    desk.write(sa.update(orders).where(orders.c.id == order_id).values(sub_status=None))
    assert desk.order(order_id).status == PENDING
    desk.finish(claimed, Retry(reason="unknown task", counted=False), settings=settings)
    desk.write(order_retry_tasks.update().where(order_retry_tasks.c.order_id == order_id).values(retry_since=now(-700)))
    desk.finish(desk.next(order_id), Retry(reason="unknown task", counted=False), settings=settings)
    assert desk.order(order_id).status == ERROR


def test_the_idempotency_key_changes_with_progress_only(desk: Desk) -> None:
    """Unchanged by retry, crash, hand-back and re-send; another after each poll and change of task."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    steps = [claimed.state.step]

    def then(what: object) -> None:
        nonlocal claimed
        if what == "crash":
            desk.expire(claimed.task_id)
            desk.recover(order_id)
        elif what == "hand back":
            hand_back(desk.engine, claimed, holder="a", run_seconds=1.0)
        else:
            assert isinstance(what, Poll | Retry)
            desk.finish(claimed, what)
        claimed = desk.next(order_id)
        steps.append(claimed.state.step)

    for what in (Retry(reason="x"), "crash", "hand back", Poll(), "crash", Retry(reason="x"), Poll(task=CHECK)):
        then(what)
    assert steps == [0, 0, 0, 0, 1, 1, 1, 2]


def test_t10_a_failure_keeps_the_error_and_none_of_the_work(desk: Desk) -> None:
    """FAILURES T10: the ERROR mark rolled back together with the failed work, or half the work committed with it."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Fail(code="400", reason="the CSR is broken", sub_status="rejected"))
    order = desk.order(order_id)
    assert (order.status, order.error_status_code, order.error_reason) == (ERROR, "400", "the CSR is broken")
    assert (order.result, order.sub_status) == (None, "rejected")
    assert desk.is_moving(order_id)


def test_t10_an_outcome_that_cannot_be_stored_leaves_nothing_of_itself(desk: Desk) -> None:
    """FAILURES T10: state, follow-on and status are one transaction."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    with pytest.raises(Exception, match=r"."):
        desk.finish(claimed, Done(result={"x": object()}, state={"a": "1"}))
    assert desk.order(order_id).status == PENDING
    assert desk.plugin_state(order_id) == []
    assert desk.lease(order_id).holder == "a"
    assert desk.history(order_id) == ["submitted"]
    assert desk.finish(claimed, Fail(code="500", reason="could not be stored")).kept is Kept.COMMITTED


def test_t11_plugin_state_saved_three_times_is_one_value(desk: Desk) -> None:
    """FAILURES T11: three rows, and the wrong one is read."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    checkpoint(desk.engine, claimed, {"k": "1", "other": "x"}, holder="a")
    checkpoint(desk.engine, claimed, {"k": "2"}, holder="a")
    desk.finish(claimed, Poll(state={"k": "3"}))
    assert desk.plugin_state(order_id) == [("k", "3"), ("other", "x")]
    assert desk.next(order_id).plugin_state == {"k": "3", "other": "x"}


def test_t4_a_zombies_checkpoint_is_refused_and_writes_nothing(desk: Desk) -> None:
    """FAILURES T4: it must not overwrite what the task's new holder keeps."""
    zombie = desk.running("a")
    order_id = zombie.state.order_id
    checkpoint(desk.engine, zombie, {"serial": "of a"}, holder="a")
    desk.expire(zombie.task_id)
    desk.recover(order_id)
    second = desk.next(order_id, "b")
    assert second.plugin_state == {"serial": "of a"}
    checkpoint(desk.engine, second, {"serial": "of b"}, holder="b")
    with pytest.raises(LeaseLost):
        checkpoint(desk.engine, zombie, {"serial": "of the zombie"}, holder="a")
    assert desk.plugin_state(order_id) == [("serial", "of b")]


@pytest.mark.parametrize("outcome", [Done(), Poll(), Retry(reason="x"), Fail(code="1", reason="x"), Continue()])
def test_t12_the_outcome_of_a_cancelled_order_is_refused(desk: Desk, outcome: Outcome) -> None:
    """FAILURES T12: cancelled while it runs."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    cancel_order(desk.engine, order_id)
    with pytest.raises(LeaseLost):
        desk.finish(claimed, outcome)
    order = desk.order(order_id)
    assert (order.status, order.sub_status) == (ERROR, "cancelled")
    assert desk.is_moving(order_id)
    assert desk.history(order_id) == ["submitted", "cancelled"]


@pytest.mark.parametrize("outcome", [Done(), Poll(), Fail(code="1", reason="x"), Continue()])
def test_t12_the_outcome_of_an_order_that_ended_without_its_lease_is_dropped(desk: Desk, outcome: Outcome) -> None:
    """FAILURES T12: nothing of it is written, and the lease does not stay behind."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.write(orders.update().where(orders.c.id == order_id).values(status=ERROR, error_reason="first"))
    assert desk.finish(claimed, outcome).kept is Kept.DROPPED
    assert (desk.order(order_id).status, desk.order(order_id).error_reason) == (ERROR, "first")
    assert desk.is_moving(order_id)
    assert desk.history(order_id) == ["submitted", "outcome dropped"]


def test_t12_the_outcome_of_a_deleted_order_is_refused(desk: Desk) -> None:
    """FAILURES T12: deleted while it runs; nothing comes back."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    delete_order(desk.engine, order_id)
    with pytest.raises(LeaseLost):
        desk.finish(claimed, Poll(state={"k": "v"}))
    with pytest.raises(LeaseLost):
        checkpoint(desk.engine, claimed, {"k": "v"}, holder="a")
    with pytest.raises(LeaseLost):
        hand_back(desk.engine, claimed, holder="a", run_seconds=1.0)
    assert (desk.order(order_id), desk.rows(order_id), desk.plugin_state(order_id)) == (None, [], [])


def test_t12_a_finish_racing_a_cancel_has_exactly_one_winner(desk: Desk) -> None:
    """FAILURES T12: whichever comes first, the order says the same, and nothing is left."""
    for _ in range(15):
        claimed = desk.running()
        order_id = claimed.state.order_id
        finished, cancelled = at_once(
            partial(desk.finish, claimed, Done(result={})), partial(cancel_order, desk.engine, order_id)
        )
        order = desk.order(order_id)
        if cancelled is None:
            assert isinstance(finished, LeaseLost), finished
            assert (order.status, order.sub_status) == (ERROR, "cancelled")
        else:
            assert finished.kept is Kept.COMMITTED  # type: ignore[union-attr]
            assert order.status == ACTIVE
        assert desk.is_moving(order_id)


def test_a_hand_back_counts_nothing_and_fences_the_run_it_ends(desk: Desk) -> None:
    """FAILURES D11: interrupted work is no failed attempt."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    hand_back(desk.engine, claimed, holder="a", run_seconds=1.0)
    assert _counts(desk, order_id) == ("process_type_order", 0, 0, 0, 0)
    assert desk.rows(order_id)[0].in_seconds <= 2
    with pytest.raises(LeaseLost):
        desk.finish(claimed, Done())
    assert desk.history(order_id) == ["submitted", "interrupted"]
    assert desk.order(order_id).status == PENDING


def test_continue_goes_on_with_the_rows_there_are(desk: Desk) -> None:
    claimed = desk.running()
    order_id = claimed.state.order_id
    update_order(desk.engine, order_id, {"version": 2})
    desk.finish(claimed, Continue(sub_status="looking"))
    [row] = desk.rows(order_id)
    assert row.retry_task == "update_order"
    assert (desk.order(order_id).status, desk.order(order_id).sub_status) == (PENDING, "looking")
    assert desk.history(order_id) == ["submitted", "update requested", "continued"]


def test_continue_without_any_row_counts_as_a_retry_so_that_no_order_is_stuck(desk: Desk) -> None:
    """Promise P1."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Continue())
    assert _counts(desk, order_id) == ("process_type_order", 0, 0, 1, 0)
    assert "without a next step" in desk.rows(order_id)[0].last_error
    assert desk.is_moving(order_id)


def test_continue_leaves_the_counters_of_the_row_that_waits(desk: Desk) -> None:
    claimed = desk.running()
    order_id = claimed.state.order_id
    desk.finish(claimed, Poll(after_seconds=500, task=CHECK))
    update_order(desk.engine, order_id, {"version": 2})
    update = desk.next(order_id)
    assert (update.state.task, update.meta) == ("update_order", {"version": 2})
    desk.finish(update, Continue())
    assert _counts(desk, order_id) == (CHECK, 1, 1, 0, 0)
    assert desk.rows(order_id)[0].in_seconds > 400


@pytest.mark.parametrize("text", ["with \x00 NUL", "lone \ud800 surrogate", "x" * 300_000, "\U0001f512 é \u2028", ""])
def test_no_reason_is_too_odd_to_be_kept(desk: Desk, text: str) -> None:
    failing = desk.running()
    desk.finish(failing, Fail(code=text, reason=text, sub_status=text, sub_status_message=text, plugin_name=text))
    assert desk.order(failing.state.order_id).status == ERROR
    retrying = desk.running()
    desk.finish(retrying, Retry(reason=text, sub_status=text, sub_status_message=text))
    desk.finish(desk.next(retrying.state.order_id), Poll(sub_status=text, sub_status_message=text))
    assert desk.order(retrying.state.order_id).status == PENDING


def test_equal_polls_are_one_line_of_history_with_a_count(desk: Desk) -> None:
    claimed = desk.running()
    order_id = claimed.state.order_id
    for _ in range(4):
        desk.finish(claimed, Poll(task=CHECK))
        claimed = desk.next(order_id)
    desk.finish(claimed, Done())
    assert desk.history(order_id) == ["submitted", "polling", "polling", "done"]
    with desk.engine.connect() as connection:
        counts = connection.scalars(
            sa.select(order_events.c.count).where(order_events.c.order_id == order_id).order_by(order_events.c.id)
        ).all()
    assert list(counts) == [1, 1, 3, 1]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("outcome", [Done(result={"n": 1}), Poll(after_seconds=0), Continue()])
def test_a_commit_whose_answer_was_lost_is_read_back(desk: Desk, committed: bool, outcome: Outcome) -> None:
    """The connection was lost in COMMIT: on either side of it the outcome is there exactly once."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    with unclear_commit(desk, committed=committed) as engine:
        kept = finish(
            engine, claimed, outcome, holder="a", run_seconds=0.0, limits=desk.settings.limits, random=desk.random
        )
    assert kept.kept is Kept.COMMITTED
    assert len(desk.history(order_id)) == 2
    assert desk.is_moving(order_id)


def test_a_lost_commit_whose_task_was_recovered_meanwhile_is_no_success(desk: Desk) -> None:
    """The event of the recovery carries the same task id; it must not be taken for the outcome's own."""
    claimed = desk.running()
    order_id = claimed.state.order_id
    with unclear_commit(desk, committed=False) as engine:
        lose = engine.dialect.do_commit

        def recover_after_loss(connection: object) -> None:
            try:
                lose(connection)  # type: ignore[arg-type]
            except Exception:
                desk.expire(claimed.task_id)
                assert desk.recover(order_id)
                raise

        engine.dialect.do_commit = recover_after_loss  # type: ignore[method-assign, assignment]
        with pytest.raises(LeaseLost):
            finish(
                engine, claimed, Done(), holder="a", run_seconds=0.0, limits=desk.settings.limits, random=desk.random
            )
    assert desk.history(order_id) == ["submitted", "crashed"]


def test_an_outcome_finished_twice_by_its_holder_says_that_it_was_committed(desk: Desk) -> None:
    """With the database away through all attempts of a transaction, the worker begins a new one: it must not report an
    outcome as dropped that was kept.
    """
    claimed = desk.running()
    outcome = Done(result={"n": 1})
    assert desk.finish(claimed, outcome).kept is Kept.COMMITTED
    assert desk.finish(claimed, outcome).kept is Kept.COMMITTED
    assert desk.history(claimed.state.order_id) == ["submitted", "done"]
