"""The base manager: periodic tasks before and during a shutdown, and hooks that do nothing by default."""

import math
import subprocess
import sys
from typing import Any

import pytest
from oslo_config import cfg
from oslo_service import periodic_task

from retryflow.errors import RetryflowError
from retryflow.service.deadline import StopTimes
from retryflow.service.drain import Drain
from retryflow.service.manager import Manager
from retryflow.service.status import ExitStatus
from retryflow.service.worker import WorkerService


class Tidy(Manager):
    def __init__(self) -> None:
        super().__init__(cfg.ConfigOpts())
        self.ran: list[Any] = []
        self.fail = False

    @periodic_task.periodic_task(spacing=7, run_immediately=True)
    def tidy(self, context: Any) -> None:
        self.ran.append(self.tracker.in_progress())
        if self.fail:
            raise ValueError("no")

    @periodic_task.periodic_task(spacing=9, run_immediately=True)
    def sweep(self, context: Any) -> None:
        self.ran.append("sweep")


def test_periodic_tasks_run_and_each_is_recorded_meanwhile() -> None:
    manager = Tidy()
    assert manager.periodic_tasks(None) <= 60
    (record,), sweep = manager.ran
    assert (record.name, record.kind) == ("tidy", "periodic")
    assert sweep == "sweep"
    assert manager.tracker.idle


def test_d3_during_a_shutdown_nothing_runs_and_the_idle_value_is_a_number(caplog: pytest.LogCaptureFixture) -> None:
    """D3: the sample of the specification returns None, at which the timer raises."""
    caplog.set_level("DEBUG")
    manager = Tidy()
    manager.begin_shutdown()
    assert manager.periodic_tasks(None) == 7
    assert manager.ran == []
    assert caplog.messages == ["Skipping periodic tasks during graceful shutdown"]


def test_d3_without_any_periodic_task_the_idle_value_is_a_number_too() -> None:
    """D3: as above."""
    manager = Manager(cfg.ConfigOpts())
    manager.begin_shutdown()
    assert manager.periodic_tasks(None) == 60


def test_a_round_that_is_under_way_ends_after_the_running_task(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Tidy()
    monkeypatch.setattr(manager, "ran", Shutting(manager))
    manager.periodic_tasks(None)
    assert "sweep" not in manager.ran


class Shutting(list):
    """A list whose first item begins the shutdown."""

    def __init__(self, manager: Manager) -> None:
        super().__init__()
        self.manager = manager

    def append(self, item: Any) -> None:
        super().append(item)
        self.manager.begin_shutdown()


def test_a_failing_periodic_task_is_raised_only_when_asked_and_its_record_ends() -> None:
    manager = Tidy()
    manager.fail = True
    manager.tracker.begin_drain()
    with pytest.raises(ValueError, match="no"):
        manager.periodic_tasks(None, raise_on_error=True)
    assert manager.tracker.idle
    assert manager.tracker.failed_count == 1
    other = Tidy()
    other.fail = True
    other.periodic_tasks(None)
    assert other.ran[1:] == ["sweep"]


def test_managers_of_one_class_record_in_their_own_trackers() -> None:
    one, two = Tidy(), Tidy()
    one.periodic_tasks(None)
    assert len(one.ran) == 2
    assert two.ran == []


def test_the_hooks_do_nothing_by_default() -> None:
    manager = Manager(cfg.ConfigOpts())
    for hook in (manager.init_host, manager.pre_start, manager.post_start, manager.reset, manager.drain_started):
        hook()
    manager.cleanup_host()
    assert manager.interrupt_tasks([]) == {}
    times = StopTimes.after(0.0, manager_seconds=math.inf, graceful_seconds=math.inf)
    manager.graceful_shutdown(Drain(manager.tracker, times))


class Forgetful(Manager):
    """Its author has forgotten to call the constructor beneath."""

    def __init__(self) -> None:
        self.mine = 1


@pytest.mark.parametrize("manager", [Forgetful(), object(), None])
def test_what_is_no_manager_is_refused_with_what_to_do(manager: Any) -> None:
    with pytest.raises(RetryflowError, match=r"must derive from .*Manager, and whose __init__ must call super"):
        WorkerService(cfg.ConfigOpts(), manager)


def test_serve_is_told_how_to_make_a_manager_not_given_one() -> None:
    source = "from retryflow.service.plain import Manager, serve\nserve(Manager(), topic='t', argv=[])\n"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitStatus.REFUSED
    [line] = [line for line in done.stderr.splitlines() if line.startswith("t: ")]
    assert "needs a class derived from Manager" in line
    assert "Traceback" not in done.stderr
