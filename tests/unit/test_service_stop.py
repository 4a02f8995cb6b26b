"""The parts of a stop by themselves: its moments, its drain, its report, a service whose hooks misbehave."""

import json
import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg
from oslo_service import periodic_task

from retryflow.conf import register_all
from retryflow.service import report
from retryflow.service.base import BaseService
from retryflow.service.bounded import BoundedCall
from retryflow.service.deadline import StopTimes
from retryflow.service.drain import Drain
from retryflow.service.group import ServiceGroup
from retryflow.service.launch import run
from retryflow.service.manager import Manager
from retryflow.service.report import Disposition, Report, report_path
from retryflow.service.status import ExitStatus
from retryflow.service.worker import WorkerService
from retryflow.tracking import TaskRecord, TaskTracker
from tests.fixtures.rabbit import eventually


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[cfg.ConfigOpts]:
    own = cfg.ConfigOpts()
    register_all(own)
    own([], project="retryflow", default_config_files=[], default_config_dirs=[])
    own.set_override("shutdown_report_file", str(tmp_path / "report.json"))
    yield own
    own.reset()


def times(manager_seconds: float = math.inf, graceful_seconds: float = math.inf) -> StopTimes:
    return StopTimes.after(time.monotonic(), manager_seconds=manager_seconds, graceful_seconds=graceful_seconds)


# The moments of a stop.


def test_the_reserve_for_giving_back_is_three_seconds_and_at_most_a_fifth() -> None:
    long = StopTimes.after(1000.0, manager_seconds=160.0, graceful_seconds=180.0)
    assert (long.drain_until, long.interrupt_until, long.end) == (1157.0, 1160.0, 1180.0)
    short = StopTimes.after(1000.0, manager_seconds=5.0, graceful_seconds=15.0)
    assert (short.drain_until, short.interrupt_until) == (1004.0, 1005.0)


def test_zero_means_no_limit(conf: cfg.ConfigOpts) -> None:
    conf.set_override("manager_shutdown_timeout", 0)
    conf.set_override("graceful_shutdown_timeout", 0)
    moments = StopTimes.from_conf(conf, 1000.0)
    assert moments.drain_until == moments.interrupt_until == moments.end == math.inf


def test_giving_back_fits_in_even_if_options_changed_at_run_time_contradict_each_other() -> None:
    moments = StopTimes.after(1000.0, manager_seconds=100.0, graceful_seconds=50.0)
    assert moments.drain_until < moments.interrupt_until <= moments.end


def test_a_hurried_stop_ends_its_drain_now_and_keeps_the_reserve() -> None:
    moments = StopTimes.after(1000.0, manager_seconds=math.inf, graceful_seconds=math.inf).hurried(1010.0)
    assert (moments.drain_until, moments.interrupt_until) == (1010.0, 1013.0)


# The drain.


def test_a_drain_summarises_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = [0.0]
    tracker = TaskTracker(clock=lambda: now[0])

    drain = Drain(
        tracker,
        StopTimes.after(0.0, manager_seconds=63.0, graceful_seconds=100.0),
        clock=lambda: now[0],
    )
    tracker.record_start("build")
    drain.begin()

    def let_time_pass(timeout_seconds: float | None = None) -> list[Any]:
        now[0] += timeout_seconds or 0
        return []

    tracker.take_ends = let_time_pass  # type: ignore[method-assign]
    assert not drain.wait()
    assert now[0] == 60.0
    assert [line for line in caplog.messages if "still waiting" in line] == [
        "Graceful shutdown still waiting for 1 in progress tasks: "
        f"build (request_id: None, entity: None, elapsed: {seconds}.0 s)"
        for seconds in (10, 20, 30, 40, 50)
    ]


def test_a_task_is_either_left_or_ended_never_both() -> None:
    tracker = TaskTracker()
    drain = Drain(tracker, times())
    first, second = tracker.record_start("first"), tracker.record_start("second")
    drain.begin()
    tracker.record_end(first)
    assert [record.key for record in drain.left()] == [second]
    assert [end.record.key for end in drain.ends] == [first]


def test_ends_that_are_collected_at_once_count_down_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tracker = TaskTracker()
    drain = Drain(tracker, times())
    keys = [tracker.record_start(f"task-{number}") for number in range(3)]
    drain.begin()
    for key in keys:
        tracker.record_end(key)
    assert drain.wait()
    assert [line[-1] for line in caplog.messages if "completed" in line] == ["2", "1", "0"]


# The report.


def test_the_report_is_written_whole_and_counts_what_became_of_tasks(tmp_path: Path) -> None:
    record = TaskRecord(key=1, name="build", request_id="req-1", entity_id="order-1", started=0.0)
    tasks = (
        report.of_interrupted(record, 3.25, "returned to the retry list"),
        report.of_interrupted(record, 3.25, None),
        report.of_handed_back("req-2"),
        report.of_handed_back({"method": "build", "request_id": "req-3", "order_id": "order-3"}),
    )
    made = Report(service="Toy", reason="SIGTERM", seconds=4.0, exit_status=ExitStatus.INTERRUPTED, tasks=tasks)
    made.write(tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text())
    assert read["counts"] == {"interrupted": 2, "handed back": 2}
    assert [task["detail"] for task in read["tasks"]] == ["returned to the retry list", "abandoned", None, None]
    assert [task["entity_id"] for task in read["tasks"]] == ["order-1", "order-1", None, "order-3"]
    assert list(tmp_path.iterdir()) == [tmp_path / "report.json"]
    assert report.interrupted(tasks)
    assert not report.interrupted(tasks[2:])


def test_where_several_processes_report_the_file_name_tells_which() -> None:
    assert str(report_path("/x/report.json", several_processes=False)) == "/x/report.json"
    assert str(report_path("/x/report.json", several_processes=True)).startswith("/x/report.json.")
    assert "{pid}" not in str(report_path("/x/{pid}.json", several_processes=True))


def test_a_handed_back_item_of_any_shape_becomes_a_line() -> None:
    assert report.of_handed_back(object()).became == report.HANDED_BACK
    assert isinstance(report.of_handed_back(None), Disposition)


# A service whose hooks misbehave.


class Silent:
    """A server that takes nothing in."""

    consuming = False

    def start(self) -> None:
        self.consuming = True

    def stop_intake(self) -> Sequence[object]:
        self.consuming = False
        return []

    def wait(self, deadline: float) -> bool:
        return True

    def close(self) -> None:
        pass


class Rude(Manager):
    """Every hook of its stop raises."""

    def drain_started(self) -> None:
        raise ValueError("drain_started")

    def graceful_shutdown(self, drain: Drain) -> None:
        raise ValueError("graceful_shutdown")

    def interrupt_tasks(self, records: Sequence[TaskRecord]) -> dict[int, str]:
        raise ValueError("interrupt_tasks")

    def cleanup_host(self) -> None:
        raise ValueError("cleanup_host")


def test_hooks_that_raise_neither_end_the_stop_nor_the_wait(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    manager = Rude(conf)
    service = WorkerService(conf, manager, server_factory=lambda _endpoints: Silent(), periodic_interval_seconds=0)
    service.start()
    key = manager.tracker.record_start("build")
    threading.Timer(0.1, manager.tracker.record_end, (key,)).start()
    service.stop()
    assert service.exit_status == ExitStatus.DRAINED
    assert json.loads((tmp_path / "report.json").read_text())["counts"] == {"finished": 1}


def test_tasks_whose_hand_back_raises_are_abandoned_and_the_status_says_so(
    conf: cfg.ConfigOpts, tmp_path: Path
) -> None:
    manager = Rude(conf)
    service = WorkerService(conf, manager, periodic_interval_seconds=0)
    service.start()
    manager.tracker.record_start("build")
    service.hurry()
    service.stop()
    assert service.exit_status == ExitStatus.INTERRUPTED
    assert json.loads((tmp_path / "report.json").read_text())["tasks"][0]["detail"] == "abandoned"


def test_a_task_that_ends_while_others_are_given_back_counts_as_finished(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    class Late(Manager):
        def interrupt_tasks(self, records: Sequence[TaskRecord]) -> dict[int, str]:
            given_back, _late = records
            for record in records:
                self.tracker.record_end(record.key)
            return {given_back.key: "returned to the retry list"}

    manager = Late(conf)
    service = WorkerService(conf, manager, periodic_interval_seconds=0)
    service.start()
    for name in ("given back", "late"):
        manager.tracker.record_start(name)
    service.hurry()
    service.stop()
    tasks = json.loads((tmp_path / "report.json").read_text())["tasks"]
    assert [(task["name"], task["became"]) for task in tasks] == [("given back", "interrupted"), ("late", "finished")]


def test_an_intake_that_hangs_takes_nothing_of_the_time_for_giving_back(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    """D15: its own patience came on top of the deadline, and the tasks were abandoned for it."""
    released = threading.Event()

    class Hanging(Silent):
        def stop_intake(self) -> Sequence[object]:
            released.wait()
            return []

    class Returning(Manager):
        def interrupt_tasks(self, records: Sequence[TaskRecord]) -> dict[int, str]:
            moments.append(time.monotonic())
            return {record.key: "returned" for record in records}

    moments: list[float] = []
    manager = Returning(conf)
    service = WorkerService(conf, manager, server_factory=lambda _endpoints: Hanging(), periodic_interval_seconds=0)
    service.start()
    manager.tracker.record_start("build")
    now = time.monotonic()
    service.request_stop(StopTimes(now, now + 0.2, now + 2.5, now + 30.0), "SIGTERM")
    service.stop()
    released.set()
    assert moments[0] < now + 2.5
    assert [task["detail"] for task in json.loads((tmp_path / "report.json").read_text())["tasks"]] == ["returned"]


def test_a_second_stop_waits_for_the_first_and_does_nothing(conf: cfg.ConfigOpts) -> None:
    service = WorkerService(conf, Manager(conf), periodic_interval_seconds=0)
    service.start()
    service.stop()
    service.stop()
    service.wait()


def test_a_start_ends_early_once_the_stop_has_been_asked_for(conf: cfg.ConfigOpts) -> None:
    class Asked(Manager):
        def init_host(self) -> None:
            service.request_stop(times(), "SIGTERM")

        def pre_start(self) -> None:
            raise AssertionError("went on")

    service = WorkerService(conf, Asked(conf), server_factory=lambda _endpoints: Silent())
    service.start()
    assert service.server is None
    assert service.manager.shutdown_in_progress


def test_periodic_tasks_begin_with_the_service(conf: cfg.ConfigOpts) -> None:
    """They waited for half of the longest interval, 30 seconds, whatever they said."""
    ran: queue.Queue[str] = queue.Queue()

    class Tidy(Manager):
        @periodic_task.periodic_task(spacing=300, run_immediately=True)
        def tidy(self, context: Any) -> None:
            ran.put("at once")

        @periodic_task.periodic_task(spacing=1)
        def sweep(self, context: Any) -> None:
            ran.put("when it is due")

    service = WorkerService(conf, Tidy(conf))
    service.start()
    try:
        assert [ran.get(timeout=20), ran.get(timeout=20)] == ["at once", "when it is due"]
    finally:
        service.stop()


def test_an_intake_that_fails_shows_in_the_status(conf: cfg.ConfigOpts) -> None:
    class Broken(Silent):
        def stop_intake(self) -> Sequence[object]:
            raise OSError("connection lost")

    service = WorkerService(conf, Manager(conf), server_factory=lambda _endpoints: Broken())
    service.start()
    service.stop()
    assert service.exit_status == ExitStatus.INTERRUPTED


def test_d15_a_group_stops_its_members_at_the_same_time_and_takes_the_worst_status(conf: cfg.ConfigOpts) -> None:
    """D15: each waits for the other's stop to begin, which only a simultaneous stop survives."""
    both = threading.Barrier(2)

    class Meeting(Manager):
        def drain_started(self) -> None:
            both.wait(30)

    managers = [Meeting(conf), Meeting(conf)]
    group = ServiceGroup(conf, [WorkerService(conf, manager, periodic_interval_seconds=0) for manager in managers])
    group.start()
    managers[1].tracker.record_start("build")
    assert group.busy()
    group.request_stop(times(), "SIGTERM")
    group.hurry()
    group.stop()
    assert not both.broken
    assert [member.exit_status for member in group.services] == [ExitStatus.DRAINED, ExitStatus.INTERRUPTED]
    assert group.exit_status == ExitStatus.INTERRUPTED


class Builder(Manager):
    pass


class Checker(Manager):
    def interrupt_tasks(self, records: Sequence[TaskRecord]) -> dict[int, str]:
        return {record.key: "given back" for record in records}


def test_the_report_of_a_group_has_the_tasks_of_all_its_members(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    """The last one to write its file took the place of the others."""
    managers = [Builder(conf), Checker(conf)]
    inner = ServiceGroup(conf, [WorkerService(conf, manager, periodic_interval_seconds=0) for manager in managers])
    third = Builder(conf)
    group = ServiceGroup(conf, [inner, WorkerService(conf, third, periodic_interval_seconds=0)])
    group.start()
    for number, manager in enumerate([*managers, third]):
        manager.tracker.record_start("build", entity_id=f"order-{number}")
    group.request_stop(times(), "SIGTERM")
    group.hurry()
    group.stop()
    read = json.loads((tmp_path / "report.json").read_text())
    assert read["service"] == "Builder, Checker, Builder"
    assert (read["reason"], read["exit_status"], read["counts"]) == ("SIGTERM", 3, {"interrupted": 3})
    assert [(task["service"], task["entity_id"], task["detail"]) for task in read["tasks"]] == [
        ("Builder", "order-0", "abandoned"),
        ("Checker", "order-1", "given back"),
        ("Builder", "order-2", "abandoned"),
    ]


def test_the_only_report_of_a_group_looks_like_that_of_a_service(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    class Scheduler(BaseService):
        def stop(self, graceful: bool = True) -> None:
            self.exit_status = ExitStatus.INTERRUPTED
            super().stop(graceful)

    manager = Builder(conf)
    group = ServiceGroup(conf, [WorkerService(conf, manager, periodic_interval_seconds=0), Scheduler(conf)])
    group.start()
    key = manager.tracker.record_start("build")
    threading.Timer(0.1, manager.tracker.record_end, (key,)).start()
    group.stop()
    read = json.loads((tmp_path / "report.json").read_text())
    assert (read["service"], read["counts"]) == ("Builder", {"finished": 1})
    assert "service" not in read["tasks"][0]
    assert read["exit_status"] == group.exit_status == ExitStatus.INTERRUPTED


def test_a_member_that_hangs_does_not_keep_the_others_from_the_report(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    released = threading.Event()

    class Hanging(BaseService):
        def stop(self, graceful: bool = True) -> None:
            released.wait()

    manager = Builder(conf)
    group = ServiceGroup(conf, [Hanging(conf), WorkerService(conf, manager, periodic_interval_seconds=0)])
    group.start()
    manager.tracker.record_start("build")
    stop = threading.Thread(target=group.stop, daemon=True)
    group.hurry()
    stop.start()
    eventually(lambda: (tmp_path / "report.json").exists())
    assert stop.is_alive()
    assert json.loads((tmp_path / "report.json").read_text())["counts"] == {"interrupted": 1}
    released.set()
    stop.join()


def test_a_member_that_ends_by_itself_ends_the_group(conf: cfg.ConfigOpts) -> None:
    told = threading.Event()
    group = ServiceGroup(conf, [WorkerService(conf, Manager(conf)), WorkerService(conf, Manager(conf))])
    group.tell_runner = told.set
    group.services[1].end("no thread is left")
    assert told.is_set()
    assert group.ended_because == "no thread is left"


def test_the_end_of_a_manager_is_that_of_its_service_however_early_it_comes(conf: cfg.ConfigOpts) -> None:
    """Also before there is a service, or a group that it is a member of."""
    early, late = Manager(conf), Manager(conf)
    early.end("no memory")
    service = WorkerService(conf, early)
    assert service.ended_because == "no memory"
    assert ServiceGroup(conf, [service]).ended_because == "no memory"
    group = ServiceGroup(conf, [WorkerService(conf, late)])
    assert group.ended_because is None
    late.end("no hope")
    assert group.ended_because == "no hope"


def test_a_call_that_hangs_is_left_and_one_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    never = threading.Event()
    assert not BoundedCall("wait for ever", never.wait).wait(0.01)
    never.set()
    failed = BoundedCall("divide", lambda: 1 // 0)
    assert failed.wait(30)
    assert failed.failed
    assert failed.result is None
    assert "Could not divide" in caplog.text


def test_a_number_of_workers_below_one_is_refused(conf: cfg.ConfigOpts) -> None:
    with pytest.raises(ValueError, match="at least one"):
        run(conf, lambda: WorkerService(conf, Manager(conf)), workers=0)
