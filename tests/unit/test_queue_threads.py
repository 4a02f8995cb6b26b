"""The threads that run tasks."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from retryflow.queue.threads import TaskThreads

HANG_SECONDS = 20.0


def started(count: int, run: Callable[[int], None]) -> TaskThreads[int]:
    threads = TaskThreads[int](count, run)
    threads.start()
    return threads


def deadline() -> float:
    return time.monotonic() + HANG_SECONDS


def test_each_item_is_run_once() -> None:
    done: list[int] = []
    threads = started(4, done.append)
    for number in range(1000):
        threads.submit(number)
    assert threads.wait(deadline())
    assert sorted(done) == list(range(1000))
    threads.stop()


def test_an_item_is_run_or_taken_back_but_never_both() -> None:
    """D10"""
    done: list[int] = []
    threads = started(4, done.append)
    taken: list[int] = []
    for number in range(5000):
        threads.submit(number)
        if number % 7 == 0:
            taken += threads.take_back()
    taken += threads.take_back()
    assert threads.wait(deadline())
    assert sorted(done + taken) == list(range(5000))
    threads.stop()


def test_the_newest_are_taken_back_first() -> None:
    threads = TaskThreads[int](1, lambda _number: None)
    for number in range(5):
        threads.submit(number)
    assert threads.take_back(2) == [4, 3]
    assert threads.take_back(0) == []
    assert threads.take_back() == [2, 1, 0]


def test_taking_everything_back_ends_a_wait() -> None:
    threads = TaskThreads[int](1, lambda _number: None)
    threads.submit(1)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(threads.wait(deadline())), daemon=True)
    waiter.start()
    threads.take_back()
    waiter.join(HANG_SECONDS)
    assert answers == [True]


def test_a_thread_survives_whatever_its_item_does() -> None:
    """D4"""
    done: list[int] = []

    def run(number: int) -> None:
        if number == 1:
            raise SystemExit(1)
        if number == 2:
            raise KeyboardInterrupt
        done.append(number)

    threads = started(1, run)
    for number in range(4):
        threads.submit(number)
    assert threads.wait(deadline())
    assert done == [0, 3]
    threads.stop()


def test_wait_tells_that_something_still_runs() -> None:
    go_on = threading.Event()
    threads = started(1, lambda _number: (go_on.wait(), None)[1])
    threads.submit(1)
    assert not threads.wait(time.monotonic() + 0.05)
    assert not threads.wait(time.monotonic() - 1.0)
    go_on.set()
    assert threads.wait(None)
    threads.stop()


def test_threads_have_names_and_do_not_keep_the_process() -> None:
    """D14"""
    seen: list[threading.Thread] = []
    threads = started(1, lambda _number: seen.append(threading.current_thread()))
    threads.submit(1)
    assert threads.wait(deadline())
    assert seen[0].name == "task-1"
    assert seen[0].daemon
    threads.stop()
    seen[0].join(HANG_SECONDS)
    assert not seen[0].is_alive()


class Gate:
    """Items wait in it until the test lets them go on."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.came = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)

    def __call__(self, number: int) -> None:
        self.begun.append(number)
        self.came.release()
        assert self.opened.acquire(timeout=HANG_SECONDS)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.came.acquire(timeout=HANG_SECONDS)


def test_no_more_than_count_run_at_once_whatever_threads_there_are() -> None:
    gate = Gate()
    threads = TaskThreads[int](2, gate, spare=3)
    threads.start()
    for number in range(4):
        threads.submit(number)
    gate.wait(2)
    assert not gate.came.acquire(timeout=0.2)
    gate.opened.release(4)
    assert threads.wait(deadline())
    assert sorted(gate.begun) == [0, 1, 2, 3]
    threads.stop()


def test_an_item_that_has_made_room_lets_the_next_one_begin_beside_it() -> None:
    gate = Gate()

    def run(number: int) -> None:
        if number == 0:
            threads.make_room()
            threads.make_room()  # once is enough
        gate(number)

    threads = TaskThreads[int](1, run, spare=2)
    threads.start()
    for number in range(3):
        threads.submit(number)
    gate.wait(2)
    assert not gate.came.acquire(timeout=0.2)
    assert not threads.wait(time.monotonic())
    gate.opened.release(3)
    assert threads.wait(deadline())
    assert gate.begun == [0, 1, 2]
    threads.stop()


def test_what_may_begin_at_once_is_prepared_together_and_never_more_than_there_is_room_for() -> None:
    prepared: list[list[int]] = []
    gate = Gate()
    threads = TaskThreads[int](3, gate, prepare=lambda items: prepared.append(list(items)))
    for number in range(5):
        threads.submit(number)
    threads.start()
    gate.wait(3)
    assert prepared == [[0, 1, 2]]
    assert threads.take_back() == [4, 3]
    gate.opened.release(3)
    assert threads.wait(deadline())
    assert sorted(gate.begun) == [0, 1, 2]
    threads.stop()


def test_what_comes_during_a_preparation_is_prepared_next() -> None:
    prepared: list[list[int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def prepare(items: Sequence[int]) -> None:
        prepared.append(list(items))
        begun.set()
        assert go_on.wait(HANG_SECONDS)

    threads = TaskThreads[int](8, lambda _number: None, prepare=prepare)
    threads.submit(0)
    threads.submit(1)
    threads.start()
    assert begun.wait(HANG_SECONDS)
    for number in (2, 3, 4):
        threads.submit(number)
    go_on.set()
    assert threads.wait(deadline())
    assert prepared == [[0, 1], [2, 3, 4]]
    threads.stop()


def test_prepared_items_run_beside_each_other() -> None:
    gate = Gate()
    threads = TaskThreads[int](3, gate, prepare=lambda _items: None)
    for number in range(3):
        threads.submit(number)
    threads.start()
    gate.wait(3)
    gate.opened.release(3)
    assert threads.wait(deadline())
    threads.stop()


def test_no_more_is_prepared_than_there_are_threads_for() -> None:
    """What is prepared must not wait for threads that have made room and wait for something else."""
    prepared: list[int] = []
    gate = Gate()

    def run(number: int) -> None:
        threads.make_room()
        gate(number)

    threads = TaskThreads[int](2, run, spare=1, prepare=lambda items: prepared.append(len(items)))
    for number in range(5):
        threads.submit(number)
    threads.start()
    gate.wait(3)
    assert not gate.came.acquire(timeout=0.2)
    assert sum(prepared) <= 3
    assert len(threads.take_back()) == 2
    gate.opened.release(3)
    assert threads.wait(deadline())
    threads.stop()


def test_a_preparation_that_fails_costs_no_item(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def fail(_items: Sequence[int]) -> None:
        raise SystemExit(1)

    threads = TaskThreads[int](2, done.append, prepare=fail)
    for number in range(10):
        threads.submit(number)
    threads.start()
    assert threads.wait(deadline())
    assert sorted(done) == list(range(10))
    assert "could not be prepared" in caplog.text
    threads.stop()


def test_an_item_alone_is_not_prepared() -> None:
    prepared: list[object] = []
    done = threading.Event()
    threads = TaskThreads[int](4, lambda _number: done.set(), prepare=prepared.append)
    threads.start()
    threads.submit(1)
    assert done.wait(HANG_SECONDS)
    assert prepared == []
    threads.stop()


def test_prepared_items_are_run_once_each_and_those_taken_back_are_not() -> None:
    """D10, in a stream of short items, with preparation and items that make room."""
    done: list[int] = []
    seen: list[int] = []

    def run(number: int) -> None:
        if number % 3:
            threads.make_room()
        done.append(number)

    threads = TaskThreads[int](4, run, spare=2, prepare=seen.extend)
    threads.start()
    taken: list[int] = []
    for number in range(20_000):
        threads.submit(number)
        if number % 97 == 0:
            taken += threads.take_back()
    assert threads.wait(deadline())
    assert sorted(done + taken) == list(range(20_000))
    assert seen
    assert set(seen) <= set(done)
    threads.stop()
