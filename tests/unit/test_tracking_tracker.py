"""The table of tasks in progress and the wait until it is empty."""

import copy
import pickle
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from retryflow.tracking import TaskTracker, submit_tracked


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_record_tells_name_ids_kind_and_start() -> None:
    clock = Clock()
    tracker = TaskTracker(clock=clock)
    key = tracker.record_start("build", request_id="req-1", entity_id="order-1", kind="async")
    (record,) = tracker.in_progress()
    assert (record.key, record.name, record.request_id, record.entity_id) == (key, "build", "req-1", "order-1")
    assert (record.kind, record.started) == ("async", 100.0)


def test_an_ended_task_is_gone_and_ending_it_again_does_nothing() -> None:
    tracker = TaskTracker()
    key = tracker.record_start("build")
    tracker.record_end(key)
    tracker.record_end(key)
    tracker.record_end(4711)
    assert tracker.in_progress() == []
    assert tracker.idle


def test_outside_a_drain_nothing_is_counted() -> None:
    tracker = TaskTracker()
    tracker.record_end(tracker.record_start("build"))
    assert (tracker.completed_count, tracker.failed_count) == (0, 0)
    assert tracker.take_ends(0) == []


def test_a_drain_counts_what_completed_and_what_failed_and_how_long_it_ran() -> None:
    clock = Clock()
    tracker = TaskTracker(clock=clock)
    good, bad = tracker.record_start("good"), tracker.record_start("bad")
    assert [record.name for record in tracker.begin_drain()] == ["good", "bad"]
    clock.now += 2.5
    tracker.record_end(good)
    tracker.record_end(bad, failed=True)
    ends = tracker.take_ends(0)
    assert [(end.record.name, end.seconds, end.failed) for end in ends] == [("good", 2.5, False), ("bad", 2.5, True)]
    assert (tracker.completed_count, tracker.failed_count) == (1, 1)


def test_a_task_that_starts_during_the_drain_is_waited_for_too() -> None:
    tracker = TaskTracker()
    tracker.begin_drain()
    key = tracker.record_start("late")
    assert not tracker.wait(0)
    tracker.record_end(key)
    assert tracker.wait(0)
    assert [end.record.name for end in tracker.take_ends(0)] == ["late"]


def test_the_wait_ends_with_the_last_task() -> None:
    tracker = TaskTracker()
    key = tracker.record_start("build")
    timer = threading.Timer(0.05, tracker.record_end, (key,))
    timer.start()
    assert tracker.wait(30)
    timer.join()


def test_the_wait_ends_at_its_time_out() -> None:
    tracker = TaskTracker()
    tracker.record_start("build")
    assert not tracker.wait(0.01)


def test_waking_makes_a_waiting_drain_return_without_an_end() -> None:
    tracker = TaskTracker()
    tracker.record_start("build")
    tracker.begin_drain()
    tracker.wake()
    assert tracker.take_ends(30) == []


@pytest.fixture
def fast_switching():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("fast_switching")
def test_no_end_is_lost_however_it_races_with_the_beginning_of_the_drain() -> None:
    """The end of a task and the beginning of the drain meet at every possible step; each awaited end is reported."""
    for _ in range(300):
        tracker = TaskTracker()
        keys = [tracker.record_start("race") for _ in range(4)]
        go = threading.Barrier(len(keys) + 1)

        def end(key: int, tracker: TaskTracker = tracker, go: threading.Barrier = go) -> None:
            go.wait()
            tracker.record_end(key)

        threads = [threading.Thread(target=end, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        go.wait()
        awaited = {record.key for record in tracker.begin_drain()}
        reported: set[int] = set()
        while not tracker.idle:
            ends = tracker.take_ends(30)
            assert ends, "a wake-up was lost"
            reported.update(end.record.key for end in ends)
        reported.update(end.record.key for end in tracker.take_ends(0))
        assert awaited <= reported
        for thread in threads:
            thread.join()


def test_a_task_that_leaves_the_table_as_the_drain_begins_is_awaited_until_its_end_is_known() -> None:
    """The worst moment, forced: the task has looked at the flag, the drain begins, the task leaves the table."""
    tracker = TaskTracker()
    idle_between = []

    class Table(dict):
        def pop(self, key: int, default: Any = None) -> Any:
            tracker.begin_drain()
            entry = super().pop(key, default)
            idle_between.append(tracker.idle)
            return entry

    tracker.table = Table()
    tracker.record_end(tracker.record_start("race"))
    assert idle_between == [False]
    assert [end.record.name for end in tracker.take_ends(0)] == ["race"]
    assert tracker.idle


@pytest.mark.usefixtures("fast_switching")
def test_a_snapshot_may_be_taken_while_the_table_changes() -> None:
    tracker = TaskTracker()
    for _ in range(100):
        tracker.record_start("standing")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            tracker.record_end(tracker.record_start("churn"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2000):
            tracker.in_progress()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_an_async_task_is_in_progress_until_its_future_is_done() -> None:
    tracker = TaskTracker()
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        future = submit_tracked(
            executor, tracker, release.wait, 30, task_name="build", request_id="req-1", entity_id="order-1"
        )
        (record,) = tracker.begin_drain()
        assert (record.name, record.kind, record.request_id, record.entity_id) == (
            "build",
            "async",
            "req-1",
            "order-1",
        )
        release.set()
        assert future.result(30) is True
        assert tracker.wait(30)
    assert tracker.completed_count == 1


def test_an_async_task_that_raises_has_failed() -> None:
    tracker = TaskTracker()
    tracker.begin_drain()
    with ThreadPoolExecutor(1) as executor:
        submit_tracked(executor, tracker, int, "not a number")
    assert (tracker.completed_count, tracker.failed_count) == (0, 1)
    assert tracker.idle


def test_a_cancelled_async_task_has_failed_and_is_not_waited_for() -> None:
    tracker = TaskTracker()
    tracker.begin_drain()

    class Idle:
        def submit(self, *_args: object, **_kwargs: object) -> "Future[None]":
            return Future()

    assert submit_tracked(Idle(), tracker, print).cancel()
    assert tracker.idle
    assert tracker.failed_count == 1


def test_a_refused_submit_leaves_no_record() -> None:
    tracker = TaskTracker()
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(RuntimeError):
        submit_tracked(executor, tracker, print)
    assert tracker.in_progress() == []


def test_a_copy_of_a_tracker_starts_empty() -> None:
    tracker = TaskTracker()
    tracker.record_start("build")
    assert copy.deepcopy(tracker).in_progress() == []
    assert pickle.loads(pickle.dumps(tracker)).in_progress() == []
