"""SIGHUP: options that can change are taken over while tasks run; contradictions leave everything as it is."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.deployment import Deployment
from tests.fixtures.processes import Daemon
from tests.fixtures.rabbit import eventually

SLOW = {("retry", "initial_interval_seconds"): 500.0, ("retry", "maximum_interval_seconds"): 1000.0}


def change(daemon: Daemon, old: str, new: str) -> None:
    path = Path(daemon.process.args[-1])  # type: ignore[index, arg-type]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    daemon.send(signal.SIGHUP)


def test_a_worker_takes_over_the_retry_policy_and_its_running_task_goes_on(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """D9: the same process, the new interval, and a task that never noticed."""
    deployment = make_deployment("postgresql")
    deployment.start("scheduler")
    worker = deployment.start("worker", SLOW)
    [running] = deployment.submit(steps=["hold " + str(deployment.directory / "gate")], sender=None)
    (deployment.directory / "gate").touch()
    [first] = deployment.submit(steps=["unavailable|done"])
    eventually(lambda: len(deployment.history(first)) == 2, "the first order waits for its retry")
    change(worker, "initial_interval_seconds = 500.0", "initial_interval_seconds = 0.2")
    worker.wait_for_log("[Rr]eload")
    [second] = deployment.submit(steps=["unavailable|done"])
    eventually(lambda: deployment.order(second).status == "ACTIVE", "the second order is tried again at once")
    assert deployment.order(first).status == "PENDING"
    (deployment.directory / "gate").unlink()
    eventually(lambda: deployment.order(running).status == "ACTIVE", "the task that ran all the time ends")
    assert {run.pid for run in deployment.runs("start")} == {worker.pid}


def test_a_contradiction_is_refused_and_the_old_values_stay(make_deployment: Callable[[str], Deployment]) -> None:
    deployment = make_deployment("postgresql")
    worker = deployment.start("worker", SLOW)
    change(worker, "initial_interval_seconds = 500.0", "initial_interval_seconds = 5000.0")
    worker.wait_for_log("initial_interval_seconds")
    worker.terminate()
    assert worker.wait() == 0
    assert "Traceback" not in worker.log()
