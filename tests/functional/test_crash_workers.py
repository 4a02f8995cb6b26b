"""Workers that are killed, paused and taken down by their own tasks (FAILURES T1, T4, T5), as real processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model.orders import ACTIVE, ERROR
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually

Options = dict[tuple[str | None, str], Any]
ONE_AT_A_TIME: Options = {(None, "executor_thread_pool_size"): 1, ("queue", "read_ahead"): 0}


def no_proof(deployment: Deployment) -> None:
    """Let all process rows come from another boot, so that no death can be proven from here."""
    with deployment.engine.begin() as connection:
        connection.execute(sa.text("UPDATE daemon_processes SET boot_id = 'another' WHERE kind = 'worker'"))


def hold(deployment: Deployment) -> Path:
    """A file; tasks with the step ``hold FILE`` run until it is gone."""
    path = deployment.directory / "hold"
    path.touch()
    return path


def one_outcome_each(deployment: Deployment) -> None:
    with deployment.engine.connect() as connection:
        rows = connection.execute(
            sa.text("SELECT order_id, count(*) AS ends FROM order_events WHERE event IN ('done', 'failed') GROUP BY 1")
        ).all()
    assert {row.ends for row in rows} == {1}
    deployment.wait_until_nothing_is_left()


@pytest.mark.slow
def test_t1_without_proof_a_killed_workers_task_runs_again_after_its_lease(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T1: on another host, where nobody can see that the worker is dead."""
    deployment = make_deployment("postgresql")
    scheduler = deployment.start("scheduler", ready=False)
    first = deployment.start("worker")
    path = hold(deployment)
    [order_id] = deployment.submit(steps=[f"hold {path}"])
    eventually(lambda: deployment.runs("start"), "it runs")
    no_proof(deployment)
    first.kill()
    killed_at = time.time()
    second = deployment.start("worker")
    again = eventually(lambda: deployment.runs("start")[1:], "it runs again", timeout_seconds=60)[0]
    path.unlink()
    deployment.wait_until_ended()
    assert (again.pid, again.crash_count, again.step) == (second.pid, 1, 0)
    scheduler.wait_for_log(rf"order {order_id}: task .* is recovered: its lease ran out")
    assert "has died" not in second.log()
    assert [event.event for event in deployment.history(order_id)] == ["submitted", "crashed", "done"]
    print(f"killed, death not provable, lease 3 s, period 1 s: runs again after {again.at - killed_at:.2f} s")


def test_t1_a_neighbour_recovers_what_a_dead_child_and_a_dead_daemon_left(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T1: the death is proven at the neighbour's next renewal; the lease is too long to be the reason."""
    deployment = make_deployment("mysql")
    options: Options = {("lease", "lease_seconds"): 300.0, ("queue", "asynchronous_workers"): 2}
    deployment.start("scheduler", ready=False)
    daemon = deployment.start("worker", options)
    path = hold(deployment)
    deployment.submit(steps=[f"hold {path}"])
    [run] = eventually(lambda: deployment.runs("start"), "it runs")
    assert run.pid in daemon.children()
    os.kill(run.pid, signal.SIGKILL)
    killed_at = time.time()
    second = eventually(lambda: deployment.runs("start")[1:], "it runs again beside its sibling")[0]
    print(f"a child killed beside a sibling: runs again after {second.at - killed_at:.2f} s")
    neighbour = deployment.start("worker", {("lease", "lease_seconds"): 300.0})
    daemon.kill_group()
    killed_at = time.time()
    third = eventually(lambda: deployment.runs("start")[2:], "it runs again on the neighbour")[0]
    print(f"a whole daemon killed: runs again after {third.at - killed_at:.2f} s")
    path.unlink()
    assert deployment.wait_until_ended() == {ACTIVE: 1}
    assert (third.pid, [run.crash_count for run in deployment.runs("start")]) == (neighbour.pid, [0, 1, 2])
    one_outcome_each(deployment)


@pytest.mark.slow
def test_t4_a_worker_paused_past_its_lease_commits_nothing_and_says_so(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T4: a zombie that wakes up when another has finished its task."""
    deployment = make_deployment("postgresql")
    deployment.start("scheduler", ready=False)
    # Its thread is busy, so that the broker has no room left there for the next ticket.
    zombie = deployment.start("worker", ONE_AT_A_TIME)
    path = hold(deployment)
    [order_id] = deployment.submit(steps=[f"hold {path}"])
    eventually(lambda: deployment.runs("start"), "it runs")
    zombie.send(signal.SIGSTOP)
    second = deployment.start("worker", ready=False)
    again = eventually(lambda: deployment.runs("start")[1:], "it runs again", timeout_seconds=60)[0]
    path.unlink()
    assert deployment.wait_until_ended() == {ACTIVE: 1}
    before = (deployment.order(order_id).updated_at, deployment.order(order_id).result)
    zombie.send(signal.SIGCONT)
    zombie.wait_for_log(rf"order {order_id}: task .* (is held by another or over|lost its lease)")
    eventually(lambda: len(deployment.runs("end")) == 2, "the zombie's run ends")
    zombie.terminate()
    zombie.wait_for_log("outcome dropped|is held by another or over")
    assert zombie.wait() == 0
    assert (deployment.order(order_id).updated_at, deployment.order(order_id).result) == before
    assert [event.event for event in deployment.history(order_id)] == ["submitted", "crashed", "done"]
    assert again.pid == second.pid
    one_outcome_each(deployment)


@pytest.mark.slow
def test_t5_tasks_that_kill_their_worker_end_in_error_and_the_others_get_done(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T5: tried for ever, and one worker after the other taken down."""
    deployment = make_deployment("sqlite")
    deployment.start("scheduler", ready=False)
    daemon = deployment.start("worker", {("queue", "asynchronous_workers"): 2})
    killers = deployment.submit(2, steps=["kill"])
    passing = deployment.submit(steps=["die 2"])
    innocents = deployment.submit(12, steps=["sleep 0.1"])
    assert deployment.wait_until_ended(timeout_seconds=120) == {ACTIVE: 13, ERROR: 2}
    for order_id in killers:
        order = deployment.order(order_id)
        assert "worker died 3 times" in order.error_reason
        # The first time one killer may go down with the other before it has written anything.
        counts = [run.crash_count for run in deployment.runs("start") if run.order_id == order_id]
        assert counts in ([0, 1, 2], [1, 2])
    assert {deployment.order(order_id).status for order_id in [*innocents, *passing]} == {ACTIVE}
    one_outcome_each(deployment)
    daemon.terminate()
    assert daemon.wait() == 0


@pytest.mark.slow
def test_daemons_killed_at_each_point_lose_and_double_nothing(make_deployment: Callable[[str], Deployment]) -> None:
    """Promises P1 and P2 with real daemons: one worker for each point, killed at its first pass, and a whole one."""
    deployment = make_deployment("mysql")
    points = [
        "claim.before_commit",
        "claim.after_commit",
        "finish.after_fence",
        "finish.before_commit",
        "finish.after_commit",
    ]
    victims = {
        point: deployment.start("worker", ONE_AT_A_TIME, faults=f"{point}=kill@1", ready=False) for point in points
    }
    eventually(lambda: deployment.consumers() == len(points), "all workers consume", timeout_seconds=60)
    # Of their deaths only the scheduler hears, so that the recovery is its own.
    no_proof(deployment)
    ids = deployment.submit(10)
    quick: Options = {
        ("queue", "publish_timeout_seconds"): 1.0,
        ("scheduler", "batch_timeout_seconds"): 2.0,
        ("scheduler", "retry_lock_timeout_seconds"): 5.0,
    }
    first = deployment.start("scheduler", quick, faults="recover.before_commit=kill@1", ready=False)
    for victim in victims.values():
        assert victim.wait() == -signal.SIGKILL
    assert first.wait() == -signal.SIGKILL
    deployment.start("worker", ready=False)
    deployment.start("scheduler", quick, ready=False)
    assert deployment.wait_until_ended(timeout_seconds=90) == {ACTIVE: 10}
    one_outcome_each(deployment)
    starts = {order_id: [run for run in deployment.runs("start") if run.order_id == order_id] for order_id in ids}
    histories = {order_id: [event.event for event in deployment.history(order_id)] for order_id in ids}
    # A second run only for tasks that a worker had run and not yet committed when it was killed: the one that it was
    # killed over, and those that it had gone on with meanwhile.
    in_finish = [victims[point].pid for point in points if point.startswith("finish")]
    twice = [order_id for order_id, runs in starts.items() if len(runs) > 1]
    assert {runs[0].pid for runs in starts.values() if len(runs) > 1} >= set(in_finish[:2])
    assert {starts[order_id][0].pid for order_id in twice} <= set(in_finish)
    crashed = [order_id for order_id, history in histories.items() if "crashed" in history]
    assert set(twice) < set(crashed)
    committed_at_the_kill = [
        order_id for order_id, runs in starts.items() if len(runs) == 1 and runs[0].pid == in_finish[2]
    ]
    assert len(committed_at_the_kill) == 1
    assert histories[committed_at_the_kill[0]] == ["submitted", "done"]
