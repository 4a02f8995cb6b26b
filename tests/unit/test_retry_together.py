"""Claims and finishes that share a transaction: each is fenced by itself, and one that is not plain harms no other
(promises P1, P2, P3 and P8; FAILURES T3, T4, T12).
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.errors import LeaseLost
from retryflow.model import batches, events, leases, several
from retryflow.model.engine import create_engine
from retryflow.model.leases import Claimable
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.several import Several
from retryflow.model.tables import order_events, order_task_leases, orders
from retryflow.model.task_state import TaskState
from retryflow.model.transaction import is_lock_timeout
from retryflow.retry import together
from retryflow.retry.claim import NotClaimed
from retryflow.retry.finish import Finished, Kept
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.plan import plan_outcome
from retryflow.retry.steer import cancel_order
from retryflow.retry.together import Ending, NotTogether, TaskGroups, claim_together, finish_together
from tests.fixtures.contract import Desk, at_once, new_id, unclear_commit
from tests.fixtures.rabbit import eventually

PATIENCE_SECONDS = 60.0


def claim(desk: Desk, task_ids: Sequence[str], holder: str = "a") -> list[Claimable | NotClaimed]:
    return claim_together(desk.engine, task_ids, holder=holder, lease_seconds=20.0)


def running(desk: Desk, count: int, holder: str = "a") -> list[Claimable]:
    """New orders whose tasks ``holder`` runs."""
    return [desk.running(holder) for _ in range(count)]


def ending(desk: Desk, claimed: Claimable, outcome: Outcome) -> Ending:
    plan = plan_outcome(
        outcome,
        claimed.state,
        limits=desk.settings.limits,
        random=desk.random,
        retrying_seconds=claimed.retrying_seconds,
        polling_seconds=claimed.polling_seconds,
    )
    return Ending(claimed, plan, outcome.state, 0.5)


def finish(desk: Desk, pairs: Sequence[tuple[Claimable, Outcome]], holder: str = "a") -> list[Finished]:
    return finish_together(desk.engine, [ending(desk, *pair) for pair in pairs], holder=holder)


def put_retry_rows(connection: sa.Connection, follow_ons: Sequence[tuple[TaskState, float, bool, bool]]) -> None:
    statements = Several(connection)
    batches.put_retry_rows(statements, follow_ons)
    statements.run()


def groups(desk: Desk, engine: sa.Engine | None = None, holder: str = "a") -> TaskGroups:
    return TaskGroups(engine or desk.engine, holder=holder, settings=desk.settings, random=Random(1))


def _all_wait(group: Any, count: int) -> bool:
    return len(group._waiting) == count


def gathered(group: Any, *actions: Callable[[], Any]) -> list[Any]:
    """Run all so that they meet in one batch: the group's only leader is away until all stand in the queue.

    :returns: for each what it returned or raised.
    """
    results: list[Any] = [None] * len(actions)

    def run(index: int) -> None:
        try:
            results[index] = actions[index]()
        except BaseException as error:
            results[index] = error

    group._free_leaders -= 1
    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(actions))]
    for count, thread in enumerate(threads, 1):
        thread.start()
        eventually(functools.partial(_all_wait, group, count), "it waits")
    group._pass_on()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "a thread hangs"
    return results


def statements(engine: sa.Engine) -> list[str]:
    """What is executed from now on, one entry for each round trip's statement."""
    seen: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda c, cursor, text, *more: seen.append(text))
    return seen


# --- claims ---


def test_claims_together_take_what_is_free_and_tell_each_of_the_others_why_not(desk: Desk) -> None:
    free, ended, crashed = desk.submit(x=1), desk.submit(), desk.running()
    held = desk.running("b")
    mine = desk.running("a")
    desk.expire(crashed.task_id)
    assert desk.recover(crashed.state.order_id)
    crashed_id = desk.dispatch(crashed.state.order_id)
    desk.write(orders.update().where(orders.c.id == ended).values(status=ERROR))
    ids = [crashed_id, held.task_id, desk.lease(free).id, new_id(), desk.lease(ended).id, mine.task_id]
    found = claim(desk, ids)
    assert found[:2] == [NotClaimed.CRASHED_BEFORE, NotClaimed.HELD]
    assert found[3:5] == [NotClaimed.GONE, NotClaimed.ORDER_ENDED]
    assert isinstance(found[2], Claimable)
    assert isinstance(found[5], Claimable)
    assert (found[2].state.order_id, found[2].meta, found[2].holder) == (free, {"x": 1}, "a")
    # Repeated after an unclear commit: still ours.
    assert found[5].state == mine.state
    assert desk.lease(ended) is None
    assert desk.lease(held.state.order_id).holder == "b"
    assert desk.lease(crashed.state.order_id).holder is None


def test_a_lease_claimed_together_is_the_same_as_one_claimed_alone(desk: Desk) -> None:
    order_id = desk.submit()
    desk.finish(desk.claim(order_id), Poll(after_seconds=0, state={"k": "v", "l": "w"}, plugin_name="ca"))
    task_id = desk.dispatch(order_id)
    [together_] = claim(desk, [task_id])
    alone = desk.claim(order_id)
    assert isinstance(together_, Claimable)
    assert together_.plugin_state == {"k": "v", "l": "w"}
    assert dataclasses.replace(together_, polling_seconds=0.0) == dataclasses.replace(alone, polling_seconds=0.0)
    assert 5.0 < desk.lease(order_id).expires_in_seconds <= 20.5


def test_t3_workers_that_claim_overlapping_batches_at_once_get_each_lease_once(desk: Desk) -> None:
    """FAILURES T3; the batches name the leases in different orders and do not deadlock."""
    for _ in range(5):
        ids = [desk.lease(desk.submit()).id for _ in range(12)]
        orders_of_ids = [ids, ids[::-1], ids[3:] + ids[:3], ids[::2] + ids[1::2]]
        results = at_once(*[lambda n=n, mine=mine: claim(desk, mine, f"w{n}") for n, mine in enumerate(orders_of_ids)])
        won = [found.task_id for result in results for found in _not_raised(result) if isinstance(found, Claimable)]
        assert sorted(won) == sorted(ids)


def _not_raised(result: Any) -> Any:
    if isinstance(result, BaseException):
        raise result
    return result


@pytest.mark.parametrize("committed", [True, False])
def test_claims_whose_commit_is_unclear_are_ours_in_the_end(desk: Desk, committed: bool) -> None:
    ids = [desk.lease(desk.submit()).id for _ in range(3)]
    with unclear_commit(desk, committed=committed) as engine:
        found = claim_together(engine, ids, holder="a", lease_seconds=20.0)
    assert [claimed.task_id for claimed in found if isinstance(claimed, Claimable)] == ids
    assert claim(desk, ids, "b") == [NotClaimed.HELD] * 3


def test_p8_a_claim_that_fails_does_not_fail_those_that_share_its_transaction(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise P8: a lease that cannot be read harms only itself."""
    made = groups(desk)
    ids = [desk.lease(desk.submit()).id for _ in range(4)]
    read = leases.read_many_with_order

    def broken(statements: Several, task_ids: Sequence[str]) -> Any:
        if ids[1] in task_ids:
            raise ValueError("cannot be read")
        return read(statements, task_ids)

    monkeypatch.setattr(leases, "read_many_with_order", broken)
    results = gathered(made._claims, *[lambda task_id=task_id: made.claim(task_id) for task_id in ids])
    assert isinstance(results[1], ValueError)
    assert [results[n].task_id for n in (0, 2, 3)] == [ids[0], ids[2], ids[3]]


def test_threads_that_claim_at_the_same_moment_share_one_transaction(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same statements, one by one, so that SQLAlchemy tells of them.
    monkeypatch.setattr(several, "can_send_together", lambda connection: False)
    engine = create_engine(desk.url)
    made = groups(desk, engine)
    ids = [desk.lease(desk.submit()).id for _ in range(6)]
    seen = statements(engine)
    results = gathered(made._claims, *[lambda task_id=task_id: made.claim(task_id) for task_id in ids])
    assert [claimed.task_id for claimed in results] == ids
    assert sum(text.startswith("UPDATE") for text in seen) == 1
    engine.dispose()


def test_t5_a_task_that_has_crashed_is_never_taken_along_with_others(desk: Desk) -> None:
    """FAILURES T5: such a task may kill its worker, so it is claimed by who runs only one of them."""
    made = groups(desk)
    crashed = desk.running("dead")
    desk.expire(crashed.task_id)
    assert desk.recover(crashed.state.order_id)
    crashed_id = desk.dispatch(crashed.state.order_id)
    ids = [desk.lease(desk.submit()).id, crashed_id, desk.lease(desk.submit()).id]
    results = gathered(made._claims, *[lambda task_id=task_id: made.claim(task_id) for task_id in ids])
    assert results[1] is NotClaimed.CRASHED_BEFORE
    assert desk.lease(crashed.state.order_id).holder is None
    taken = made.claim_crashed(crashed_id)
    assert isinstance(taken, Claimable)
    assert taken.state.crash_count == 1


# --- finishes ---

OUTCOMES: list[Outcome] = [
    Done(result={"n": 1}, state={"k": "v"}),
    Fail(code="400", reason="no such profile"),
    Retry(reason="away", after_seconds=700.0),
    Poll(after_seconds=900.0, task="check_certificate_status", state={"k": "v"}, plugin_name="ca"),
]


def _left(desk: Desk, order_id: str) -> dict[str, Any]:
    """All that an order consists of, without ids and times."""
    order = dict(desk.order(order_id)._mapping)
    rows = [dict(row._mapping) for row in desk.rows(order_id)]
    for values in (order, *rows):
        for name in [name for name in values if name in ("id", "order_id") or name.endswith(("_at", "_kwargs"))]:
            del values[name]
    for row in rows:
        row["in_seconds"] = round(row["in_seconds"] / 100)
        row["retry_since"], row["poll_since"] = row["retry_since"] is None, row["poll_since"] is None
    with desk.engine.connect() as connection:
        lines = [
            (event.event, event.task, event.holder, event.count, event.seconds is None, event.detail)
            for event in events.of_order(connection, order_id)
        ]
    return {"order": order, "rows": rows, "state": desk.plugin_state(order_id), "events": lines}


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_what_is_finished_together_is_written_as_if_alone(desk: Desk, outcome: Outcome) -> None:
    alone, *others = running(desk, 4)
    desk.finish(alone, outcome)
    others_outcomes = [outcome, Done(), outcome]
    results = finish(desk, list(zip(others, others_outcomes, strict=True)))
    assert all(result.kept is Kept.COMMITTED for result in results)
    expected = _left(desk, alone.state.order_id)
    for n in (0, 2):
        assert _left(desk, others[n].state.order_id) == expected
    assert desk.order(others[1].state.order_id).status == ACTIVE
    for claimed in (alone, *others):
        assert desk.lease(claimed.state.order_id) is None
        assert desk.is_moving(claimed.state.order_id)


def test_all_kinds_of_outcomes_in_one_transaction_each_reach_their_own_order(desk: Desk) -> None:
    tasks = running(desk, 8)
    pairs = [(claimed, OUTCOMES[n % 4]) for n, claimed in enumerate(tasks)]
    results = finish(desk, pairs)
    assert [result.due_in_seconds for result in results] == [None, None, 700.0, 900.0] * 2
    statuses = [desk.order(claimed.state.order_id).status for claimed in tasks]
    assert statuses == [ACTIVE, ERROR, PENDING, PENDING] * 2
    tasks_left = [[row.retry_task for row in desk.rows(claimed.state.order_id)] for claimed in tasks]
    assert tasks_left == [[], [], ["process_type_order"], ["check_certificate_status"]] * 2
    assert [desk.plugin_state(claimed.state.order_id) for claimed in tasks] == [[("k", "v")], [], [], [("k", "v")]] * 2


def test_a_follow_on_finished_together_is_merged_with_the_row_that_is_there(desk: Desk) -> None:
    """The earlier time wins, and the older row's counters stay."""
    first, second, third = running(desk, 3)
    for claimed, after_seconds in ((first, 100.0), (second, 5.0)):
        other = dataclasses.replace(claimed.state, retry_count=4)
        with desk.engine.begin() as connection:
            put_retry_rows(connection, [(other, after_seconds, False, False)])
    finish(desk, [(claimed, Retry(reason="x", after_seconds=50.0)) for claimed in (first, second, third)])
    found = [desk.rows(claimed.state.order_id) for claimed in (first, second, third)]
    assert [(len(rows), rows[0].retry_count, round(rows[0].in_seconds / 5) * 5) for rows in found] == [
        (1, 4, 50),
        (1, 4, 5),
        (1, 1, 50),
    ]


def test_an_ending_takes_the_orders_retry_rows_away_and_no_others(desk: Desk) -> None:
    first, second, bystander = running(desk, 3)
    for claimed in (first, second, bystander):
        with desk.engine.begin() as connection:
            put_retry_rows(connection, [(claimed.state, 5.0, False, False)])
    finish(desk, [(first, Done()), (second, Retry(reason="x", after_seconds=50.0))])
    assert [len(desk.rows(claimed.state.order_id)) for claimed in (first, second, bystander)] == [0, 1, 1]


@pytest.mark.parametrize("way", ["recovered", "held by another", "finished before"])
def test_t4_one_lease_that_is_lost_leaves_nothing_of_the_batch_written(desk: Desk, way: str) -> None:
    """FAILURES T4: a zombie's finish is fenced, also in company; the others are then finished by themselves."""
    tasks = running(desk, 3)
    zombie = tasks[1]
    if way == "recovered":
        desk.expire(zombie.task_id)
        assert desk.recover(zombie.state.order_id)
    elif way == "held by another":
        where = order_task_leases.c.id == zombie.task_id
        desk.write(order_task_leases.update().where(where).values(holder="b"))
    else:
        desk.finish(zombie, Poll(after_seconds=3.0))
    before = [_left(desk, claimed.state.order_id) for claimed in tasks]
    with pytest.raises(NotTogether):
        finish(desk, [(claimed, Done(result={"late": True}, state={"k": "late"})) for claimed in tasks])
    assert [_left(desk, claimed.state.order_id) for claimed in tasks] == before
    assert [desk.lease(claimed.state.order_id).id for claimed in (tasks[0], tasks[2])] == [
        tasks[0].task_id,
        tasks[2].task_id,
    ]


def test_p8_of_a_batch_with_a_zombie_and_a_cancelled_order_all_others_are_finished(desk: Desk) -> None:
    """Promise P8; FAILURES T4 and T12."""
    made = groups(desk)
    tasks = running(desk, 5)
    desk.expire(tasks[1].task_id)
    assert desk.recover(tasks[1].state.order_id)
    desk.write(orders.update().where(orders.c.id == tasks[3].state.order_id).values(status=ERROR))
    results = gathered(
        made._endings, *[lambda task=task: made.finish(task, Done(result={"n": 1}), run_seconds=0.0) for task in tasks]
    )
    assert isinstance(results[1], LeaseLost)
    assert results[3].kept is Kept.DROPPED
    for n in (0, 2, 4):
        assert results[n].kept is Kept.COMMITTED
        assert desk.order(tasks[n].state.order_id).status == ACTIVE
    assert (desk.order(tasks[1].state.order_id).status, desk.order(tasks[3].state.order_id).status) == (PENDING, ERROR)
    assert desk.order(tasks[1].state.order_id).result is None
    assert desk.history(tasks[3].state.order_id)[-1] == events.DROPPED
    assert desk.lease(tasks[3].state.order_id) is None


def test_what_needs_a_look_first_is_finished_by_itself_and_waits_for_no_others(desk: Desk) -> None:
    """A Continue asks whether there are retry rows; a second poll is counted in the line of the first. In a batch each
    would send all the others the long way.
    """
    made = groups(desk)
    polled, plain, continued = running(desk, 3)
    desk.finish(polled, Poll(after_seconds=0))
    polled = desk.next(polled.state.order_id)
    outcomes: list[tuple[Claimable, Outcome]] = [
        (polled, Poll(after_seconds=3)),
        (plain, Done()),
        (continued, Continue()),
    ]
    for task, outcome in outcomes[::2]:
        with pytest.raises(NotTogether):
            finish(desk, [(plain, Done()), (task, outcome)])
        assert desk.order(plain.state.order_id).status == PENDING
    # As long as a batch waits for its commit.
    made._endings._free_leaders = 0
    answers: list[Finished | None] = []
    answers.append(made.finish(polled, Poll(after_seconds=3), run_seconds=0.0))
    made.finish_later(continued, Continue(), run_seconds=0.0, done=lambda finished, error: answers.append(finished))
    assert [answer.kept for answer in answers if answer] == [Kept.COMMITTED] * 2
    made._endings._free_leaders = 1
    assert made.finish(plain, Done(), run_seconds=0.0).kept is Kept.COMMITTED
    assert desk.history(polled.state.order_id) == ["submitted", "polling"]
    assert [desk.is_moving(task.state.order_id) for task, _ in outcomes] == [True] * 3


def test_p8_claims_do_not_wait_for_a_lease_that_somebody_has_locked(desk: Desk) -> None:
    """Its ticket comes back again and again; only the first time others have met it unawares."""
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one lock for all rows")
    made = groups(desk)
    locked = desk.lease(desk.submit()).id
    with desk.engine.begin() as connection:
        assert leases.lock(connection, locked)
        with pytest.raises(Exception, match=r"(?i)lock"):
            made.claim(locked)
        assert made.is_locked(locked)
        # As long as a batch is under way: the next attempt is by itself, and ends with the database's word.
        made._claims._free_leaders = 0
        with pytest.raises(Exception, match=r"(?i)lock"):
            made.claim(locked)
        made._claims._free_leaders = 1
        free = desk.lease(desk.submit()).id
        assert isinstance(made.claim(free), Claimable)
    assert isinstance(made.claim(locked), Claimable)


def test_threads_that_finish_at_the_same_moment_share_one_transaction(desk: Desk) -> None:
    engine = create_engine(desk.url)
    made = groups(desk, engine)
    tasks = running(desk, 6)
    begun: list[Any] = []
    sa.event.listen(engine, "commit", begun.append)
    results = gathered(made._endings, *[lambda task=task: made.finish(task, Done(), run_seconds=0.0) for task in tasks])
    assert [result.kept for result in results] == [Kept.COMMITTED] * 6
    assert len(begun) == 1
    engine.dispose()


@pytest.mark.parametrize("committed", [True, False])
def test_finishes_whose_commit_is_unclear_are_read_back_each_by_itself(desk: Desk, committed: bool) -> None:
    """The worker tries each again alone, and finds its own lines: committed once, nothing lost."""
    tasks = running(desk, 4)
    outcomes: list[Outcome] = [
        Done(result={"n": 1}),
        Retry(reason="x", after_seconds=5.0),
        Poll(),
        Fail(code="1", reason="y"),
    ]
    with unclear_commit(desk, committed=committed) as engine:
        made = groups(desk, engine)

        def work(task: Claimable, outcome: Outcome) -> Finished:
            try:
                return made.finish(task, outcome, run_seconds=0.0)
            except Exception:
                # As the manager does it.
                return made.finish(task, outcome, run_seconds=0.0, alone=True)

        results = gathered(
            made._endings,
            *[lambda pair=pair: work(*pair) for pair in zip(tasks, outcomes, strict=True)],
        )
    assert [result.kept for result in results] == [Kept.COMMITTED] * 4, results
    histories = [desk.history(task.state.order_id) for task in tasks]
    assert histories == [["submitted", event] for event in ("done", "retrying", "polling", "failed")]
    assert [len(desk.rows(task.state.order_id)) for task in tasks] == [0, 1, 1, 0]
    assert all(desk.is_moving(task.state.order_id) for task in tasks)


def test_a_batch_that_meets_a_deadlock_is_finished_one_by_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second attempt in company: the rival may be there still."""
    made = groups(desk)
    tasks = running(desk, 3)
    sizes: list[int] = []
    real = together.finish_together

    def unlucky(engine: sa.Engine, endings: Sequence[Ending], *, holder: str) -> list[Finished]:
        sizes.append(len(endings))
        if len(endings) > 1:
            raise sa.exc.OperationalError("DELETE", {}, Exception(1213, "Deadlock found"))
        return real(engine, endings, holder=holder)

    monkeypatch.setattr(together, "finish_together", unlucky)
    results = gathered(made._endings, *[lambda task=task: made.finish(task, Done(), run_seconds=0.0) for task in tasks])
    assert [result.kept for result in results] == [Kept.COMMITTED] * 3
    assert sizes == [3, 1, 1, 1]


def test_a_finish_that_is_locked_out_waits_for_its_row_alone(desk: Desk) -> None:
    """Somebody holds one lease's row: the batch gives up after the lock wait, and the other task ends at once."""
    if desk.kind == "sqlite":
        pytest.skip("SQLite has one lock for all rows")
    made = groups(desk)
    locked, other = running(desk, 2)
    with desk.engine.connect() as connection, connection.begin() as transaction:
        where = order_task_leases.c.id == locked.task_id
        connection.execute(sa.select(order_task_leases.c.id).where(where).with_for_update())
        results: list[Any] = []
        thread = threading.Thread(
            target=lambda: results.extend(
                gathered(
                    made._endings,
                    *[lambda task=task: made.finish(task, Done(), run_seconds=0.0) for task in (other, locked)],
                )
            ),
            daemon=True,
        )
        thread.start()
        eventually(lambda: desk.order(other.state.order_id).status == ACTIVE, "the other one is finished")
        assert desk.order(locked.state.order_id).status == PENDING
        transaction.rollback()
    thread.join(PATIENCE_SECONDS)
    assert results[0].kept is Kept.COMMITTED
    if isinstance(results[1], Exception):
        # The row was free too late for the second attempt; whoever wants the outcome stored tries on.
        assert is_lock_timeout(results[1])
        results[1] = made.finish(locked, Done(), run_seconds=0.0)
    assert results[1].kept is Kept.COMMITTED


def test_batches_that_finish_beside_cancels_and_recoveries_leave_every_order_in_order(desk: Desk) -> None:
    """Promises P1 and P2 under races: each order says what its winner wrote."""
    made = groups(desk)
    for _ in range(5):
        tasks = running(desk, 8)
        for task in tasks[4:6]:
            desk.expire(task.task_id)
        results: list[Any] = at_once(
            *[lambda task=task: made.finish(task, Done(result={"n": 1}), run_seconds=0.0) for task in tasks],
            *[lambda task=task: desk.recover(task.state.order_id) for task in tasks[4:6]],
            *[lambda task=task: cancel_order(desk.engine, task.state.order_id) for task in tasks[6:]],
        )
        for n, task in enumerate(tasks):
            order = desk.order(task.state.order_id)
            history = desk.history(task.state.order_id)
            assert desk.is_moving(task.state.order_id)
            if isinstance(results[n], Finished) and results[n].kept is Kept.COMMITTED:
                assert (order.status, order.result, history) == (ACTIVE, {"n": 1}, ["submitted", "done"])
            else:
                assert n >= 4, results[n]
                assert order.result is None
                assert "done" not in history


def test_ends_in_one_batch_leave_exactly_one_line_each(desk: Desk) -> None:
    tasks = running(desk, 5)
    finish(desk, [(task, Done()) for task in tasks])
    with desk.engine.connect() as connection:
        ids = [task.task_id for task in tasks]
        found = connection.execute(
            sa.select(order_events.c.task_id, order_events.c.order_id, order_events.c.seconds).where(
                order_events.c.task_id.in_(ids)
            )
        )
        assert sorted(found) == sorted((task.task_id, task.state.order_id, 0.5) for task in tasks)
