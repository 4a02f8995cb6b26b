"""The tasks that a process runs, and what each of them is told."""

import threading
from typing import Any

from retryflow.model.leases import Claimable
from retryflow.model.task_state import TaskState
from retryflow.retry.context import TaskContext
from retryflow.retry.running import RunningTasks


def _claimed(task_id: str) -> Claimable:
    return Claimable(
        task_id=task_id,
        holder="a",
        state=TaskState("o", "t"),
        project_id=None,
        order_type="probe",
        order_status="PENDING",
        meta={},
        plugin_name=None,
        plugin_state={},
        retrying_seconds=0.0,
        polling_seconds=0.0,
    )


def _context(**more: Any) -> TaskContext:
    return TaskContext(task_id="1", order_id="o", task="t", **more)


def test_a_task_is_there_between_its_claim_and_its_end() -> None:
    now = [100.0]
    tasks = RunningTasks(clock=lambda: now[0])
    first, second = tasks.add(_claimed("1"), _context()), tasks.add(_claimed("2"), _context())
    now[0] = 107.5
    assert tasks.snapshot() == [first, second]
    assert tasks.get("1") is first
    assert tasks.seconds(first) == 7.5
    tasks.remove("1")
    tasks.remove("1")
    assert (tasks.get("1"), tasks.snapshot()) == (None, [second])


def test_who_lost_its_lease_is_told_and_its_outcome_given_up() -> None:
    tasks = RunningTasks()
    running = tasks.add(_claimed("1"), _context())
    assert (running.context.lease_lost, running.given_up.is_set()) == (False, False)
    running.lose()
    assert (running.context.lease_lost, running.given_up.is_set()) == (True, True)


def test_a_waiting_task_wakes_at_once_when_the_worker_stops_or_the_lease_is_lost() -> None:
    for tell in (TaskContext.tell_stopping, TaskContext.tell_lease_lost):
        context = _context()
        woken: list[bool] = []
        thread = threading.Thread(target=lambda context=context, woken=woken: woken.append(context.wait(60.0)))
        thread.start()
        tell(context)
        thread.join(30.0)
        assert woken == [True]
        assert context.wait(60.0)
    assert _context().wait(0.001) is False


def test_the_idempotency_key_is_made_of_order_and_step_alone() -> None:
    keys = {_context(step=2, retry_count=n, crash_count=n, poll_count=n).idempotency_key for n in range(5)}
    assert keys == {"o:2"}
    assert _context(step=3).idempotency_key == "o:3"


def test_a_checkpoint_goes_where_the_worker_says() -> None:
    kept: list[object] = []
    context = TaskContext(task_id="1", order_id="o", task="t", checkpoint=kept.append)
    context.checkpoint({"a": "1"})
    assert kept == [{"a": "1"}]
    _context().checkpoint({"a": "1"})
