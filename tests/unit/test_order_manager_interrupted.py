"""Tasks that do not simply run to their end: orders that change meanwhile, crashes, stops, calls that hang, claims
without an answer."""

import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.errors import LeaseLost
from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.model.tables import order_retry_tasks, order_task_leases, orders
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Done, Outcome, Poll, Retry
from retryflow.retry.running import Running
from retryflow.retry.steer import cancel_order, delete_order, update_order
from tests.fixtures.contract import Desk
from tests.fixtures.order_worker import Gate, OrderWorker, order_worker
from tests.fixtures.rabbit import eventually
from tests.fixtures.retry_list import Clock

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


def test_such_a_claim_that_somebody_has_locked_does_not_hold_up_the_renewals(desk: Desk, worker: OrderWorker) -> None:
    """It is given back on the lease keeper's thread."""
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one lock for all rows")
    worker.manager.keeper.round()
    order_id = desk.submit()
    lost = _lose_the_answer(worker)
    assert worker.run(desk, order_id) == "handed back"
    lost.clear()
    waits: list[sa.Connection] = []
    sa.event.listen(worker.keeper_engine, "rollback", waits.append)
    with desk.engine.connect() as other, other.begin():
        other.execute(
            sa.select(order_task_leases.c.id).where(order_task_leases.c.order_id == order_id).with_for_update()
        )
        worker.manager.keeper.round()
        assert len(waits) == 1, "one wait of two seconds"
    worker.manager.keeper.round()
    [row] = desk.rows(order_id)
    assert (row.crash_count, row.in_seconds <= 0) == (0, True)


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
