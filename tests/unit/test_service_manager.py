"""The base manager: periodic tasks before and during a shutdown, and hooks that do nothing by default."""

import math
from typing import Any

import pytest
from oslo_config import cfg
from oslo_service import periodic_task

from retryflow.service.deadline import StopTimes
from retryflow.service.drain import Drain
from retryflow.service.manager import Manager


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
