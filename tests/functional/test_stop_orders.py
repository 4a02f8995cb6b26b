"""SIGTERM to workers that run orders: nothing is lost, nothing runs twice, and the report says what became of each."""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retryflow.queue.client import TaskClient
from retryflow.queue.transport import get_transport
from retryflow.service.status import ExitStatus
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually, overriding
from tests.fixtures.tcp_proxy import TcpProxy

Options = dict[tuple[str | None, str], object]


def stopping(seconds: float, **more: object) -> Options:
    options: Options = {
        (None, "manager_shutdown_timeout"): seconds,
        (None, "graceful_shutdown_timeout"): int(seconds) + 10,
    }
    return options | {(None, name): value for name, value in more.items()}


@pytest.fixture
def deployment(make_deployment: Callable[[str], Deployment]) -> Deployment:
    return make_deployment("postgresql")


@pytest.fixture
def sender(deployment: Deployment) -> Iterator[TaskClient]:
    """Sends tickets from this process, as a service that submits orders does."""
    with overriding(deployment.rabbit.overrides) as conf:
        transport = get_transport(conf)
        yield TaskClient(transport, conf)
        transport.cleanup()


def reports(deployment: Deployment) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(deployment.directory.glob("report-*.json"))]


def one_outcome_each(deployment: Deployment, ids: list[str]) -> None:
    for order_id in ids:
        ends = [event.event for event in deployment.history(order_id) if event.event in ("done", "failed")]
        assert ends == ["done"], order_id


def test_running_tasks_finish_and_the_worker_leaves_right_after_the_last_one(
    deployment: Deployment, sender: TaskClient
) -> None:
    """D2: the worker waits for the tasks that run, not longer, and says with its status that all is well."""
    worker = deployment.start("worker")
    ids = deployment.submit(4, steps=["sleep 3"], sender=sender)
    eventually(lambda: len(deployment.runs("start")) == 4, "four tasks run")
    worker.terminate()
    assert worker.wait() == ExitStatus.DRAINED
    ends = deployment.runs("end")
    assert [len(ends), deployment.statuses()] == [4, {"ACTIVE": 4}]
    one_outcome_each(deployment, ids)
    print(f"last task's end to exit: {worker.exited_at - (time.monotonic() - (time.time() - ends[-1].at)):.3f} s")  # type: ignore[operator]


@pytest.mark.parametrize(("seconds", "interrupted", "status"), [(5, 2, 3), (1, 0, 0)])
@pytest.mark.slow
def test_at_the_deadline_what_runs_is_interrupted_and_everything_is_accounted_for(
    deployment: Deployment, sender: TaskClient, seconds: int, interrupted: int, status: int
) -> None:
    """D10, D11, D13: received tickets are handed back, running tasks interrupted, none counted as an attempt."""
    small = {(None, "executor_thread_pool_size"): 2, ("queue", "read_ahead"): 2}
    report = deployment.directory / "report-{pid}.json"
    first = deployment.start("worker", {**small, **stopping(3.0, shutdown_report_file=report)})
    deployment.start("scheduler")
    ids = deployment.submit(30, steps=[f"sleep {seconds}"], sender=sender)
    eventually(lambda: len(deployment.runs("start")) >= 2, "two tasks run")
    first.terminate()
    deployment.start("worker", {(None, "executor_thread_pool_size"): 16}, ready=False)
    assert first.wait() == status
    [made] = reports(deployment)
    became = Counter(task["became"] for task in made["tasks"])  # type: ignore[attr-defined]
    assert became["interrupted"] == interrupted
    # Two threads and two tickets read ahead: what was received is finished, interrupted or handed back, and named.
    started_here = [run for run in deployment.runs("start") if run.pid == first.pid]
    named = {task["entity_id"] for task in made["tasks"]}  # type: ignore[attr-defined]
    assert {run.order_id for run in started_here[-2:]} <= named | {
        run.order_id for run in deployment.runs("end") if run.pid == first.pid
    }
    assert became["handed back"] <= 2
    assert deployment.wait_until_ended() == {"ACTIVE": 30}
    one_outcome_each(deployment, ids)
    assert {run.retry_count for run in deployment.runs("start")} == {0}
    assert {run.crash_count for run in deployment.runs("start")} == {0}


@pytest.mark.slow
def test_what_a_hanging_broker_did_not_take_back_shows_in_the_status(
    deployment: Deployment, sender: TaskClient, tcp_proxies: list[TcpProxy]
) -> None:
    """D10: what runs finishes all the same, and nobody says that all is well."""
    proxy = TcpProxy(deployment.rabbit.host(), deployment.rabbit.port())
    tcp_proxies.append(proxy)
    worker = deployment.start("worker", deployment.rabbit.through(proxy.port).overrides)
    deployment.submit(6, steps=["sleep 3"], sender=sender)
    eventually(lambda: len(deployment.runs("start")) == 4, "four tasks run")
    worker.wait_for_log("connected to rabbit")
    proxy.stall()
    worker.terminate()
    assert worker.wait() == ExitStatus.INTERRUPTED
    assert "the broker did not confirm the end of the intake" in worker.log()
    assert deployment.statuses() == {"ACTIVE": 4, "PENDING": 2}
    proxy.cut()
    deployment.start("scheduler")
    deployment.start("worker")
    assert deployment.wait_until_ended() == {"ACTIVE": 6}


def test_a_task_that_asks_hands_over_early(deployment: Deployment, sender: TaskClient) -> None:
    """A task that looks at ``context.stopping`` ends before the deadline, and another worker goes on with it."""
    deployment.start("scheduler")
    first = deployment.start("worker")
    deployment.submit(steps=["nap 60|done"], sender=sender)
    eventually(lambda: deployment.runs("start"), "the task runs")
    first.terminate()
    assert first.wait() == ExitStatus.DRAINED
    [order_id] = {run.order_id for run in deployment.runs()}
    assert deployment.history(order_id)[-1].event == "retrying"
    second = deployment.start("worker")
    eventually(lambda: len(deployment.runs("start")) == 2, "it runs again elsewhere")
    second.terminate()
    assert second.wait() == ExitStatus.DRAINED


@pytest.mark.slow
def test_the_lease_is_renewed_to_the_end_of_a_long_drain(deployment: Deployment, sender: TaskClient) -> None:
    """D1: a drain of four leases beside a second worker and a scheduler: one run."""
    quick = {("lease", "lease_seconds"): 1.5, ("lease", "renew_seconds"): 0.3}
    first = deployment.start("worker", quick)
    deployment.start("scheduler", quick)
    deployment.submit(steps=["sleep 7"], sender=sender)
    eventually(lambda: deployment.runs("start"), "the task runs")
    deployment.start("worker", quick)
    first.terminate()
    assert first.wait() == ExitStatus.DRAINED
    assert deployment.wait_until_ended() == {"ACTIVE": 1}
    assert len(deployment.runs("start")) == 1


def test_a_task_deaf_to_everything_is_left_fenced_and_given_to_another(
    deployment: Deployment, sender: TaskClient
) -> None:
    """D14: gone at the deadline; the zombie's lease is no more; the status says so, through a master too."""
    deployment.start("scheduler")
    gate = deployment.directory / "gate"
    gate.touch()
    first = deployment.start("worker", {**stopping(2.0), ("queue", "asynchronous_workers"): 2})
    deployment.submit(steps=[f"hold {gate}"], sender=sender)
    eventually(lambda: deployment.runs("start"), "the task runs")
    first.terminate()
    assert first.wait() == ExitStatus.INTERRUPTED
    [order_id] = {run.order_id for run in deployment.runs()}
    assert "interrupted" in [event.event for event in deployment.history(order_id)]
    gate.unlink()
    deployment.start("worker")
    assert deployment.wait_until_ended() == {"ACTIVE": 1}


def test_a_second_interrupt_hands_back_at_once(deployment: Deployment, sender: TaskClient) -> None:
    """SIGINT drains; the second one goes to the hand-back at once."""
    worker = deployment.start("worker")
    deployment.submit(steps=["sleep 60|done"], sender=sender)
    eventually(lambda: deployment.runs("start"), "the task runs")
    worker.send(signal.SIGINT)
    worker.wait_for_log("in-progress tasks")
    worker.send(signal.SIGINT)
    assert worker.wait() == ExitStatus.INTERRUPTED
    [order_id] = {run.order_id for run in deployment.runs()}
    assert deployment.history(order_id)[-1].event == "interrupted"
    assert deployment.left()["order_retry_tasks"] == 1


@pytest.mark.parametrize("seconds", [12.0])
@pytest.mark.slow
def test_a_rolling_restart_under_load_disturbs_no_order(
    deployment: Deployment, sender: TaskClient, seconds: float
) -> None:
    """Three workers restarted one after the other: no order fails, none is interrupted, none waits for a lease."""
    _rolling_restart(deployment, sender, seconds)


def _rolling_restart(deployment: Deployment, sender: TaskClient, seconds: float) -> None:
    slow_lease = {("lease", "lease_seconds"): 30.0, ("lease", "renew_seconds"): 5.0}
    deployment.start("scheduler", slow_lease)
    workers = [deployment.start("worker", slow_lease) for _ in range(3)]
    ids: list[str] = []
    over = threading.Event()

    def stream() -> None:
        while not over.wait(0.05):
            ids.extend(deployment.submit(steps=["sleep 0.2"], sender=sender))

    source = threading.Thread(target=stream)
    source.start()
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            old = workers.pop(0)
            old.terminate()
            assert old.wait() == ExitStatus.DRAINED
            workers.append(deployment.start("worker", slow_lease))
    finally:
        over.set()
        source.join()
    # Shorter than the lease: had one been lost, the order would still be PENDING.
    assert deployment.wait_until_ended(timeout_seconds=20.0) == {"ACTIVE": len(ids)}
    one_outcome_each(deployment, ids)
    assert {run.crash_count for run in deployment.runs("start")} == {0}
    assert len(deployment.runs("start")) == len(ids)


def test_the_report_is_a_file_that_scripts_can_read(deployment: Deployment, sender: TaskClient) -> None:
    """D13: each task with order, request id, seconds and what became of it."""
    path = deployment.directory / "report.json"
    worker = deployment.start("worker", stopping(30.0, shutdown_report_file=path))
    [order_id] = deployment.submit(steps=["sleep 1"], sender=sender)
    eventually(lambda: deployment.runs("start"), "the task runs")
    worker.terminate()
    assert worker.wait() == ExitStatus.DRAINED
    made = json.loads(Path(path).read_text())
    assert made["exit_status"] == 0
    [task] = made["tasks"]
    assert (task["name"], task["entity_id"], task["became"]) == ("process_type_order", order_id, "finished")
    assert task["seconds"] > 0
