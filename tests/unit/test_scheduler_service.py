"""The scheduler as a service: when it ticks, what wakes it, and how it stops. In this process, on SQLite."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from retryflow.conf import CONF, register_all
from retryflow.model import processes
from retryflow.model.identity import own_identity
from retryflow.model.transaction import read
from retryflow.retry.sending import Ticket
from retryflow.retry.settings import Settings
from retryflow.retry.tick import Ticker, TickReport
from retryflow.service.scheduler import TaskSchedulerService
from retryflow.service.status import ExitStatus
from tests.fixtures.rabbit import eventually
from tests.fixtures.retry_list import Recorder, RetryList


class Dice:
    """A random source that always answers the same part of the range, and remembers what it was asked."""

    def __init__(self, part: float = 0.5) -> None:
        self.part = part
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float, /) -> float:
        self.asked.append((a, b))
        return a + (b - a) * self.part


class Listener:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


class Bench:
    """A scheduler service whose pauses are recorded; it is woken by the test."""

    def __init__(self, retry_list: RetryList, conf: cfg.ConfigOpts, settings: Settings, **more: Any) -> None:
        self.sender = Recorder()
        self.listener = Listener()
        self.wake: Callable[[], None] = lambda: None
        self.pauses: list[float] = []
        self.hung = False
        self.ticked = threading.Semaphore(0)
        self.service = TaskSchedulerService(
            conf,
            engine=retry_list.engine,
            identity=own_identity(),
            settings=settings,
            connect=self._connect,
            **more,
        )
        event = self.service._wake
        wait = event.wait

        def recorded(timeout: float | None = None) -> bool:
            self.pauses.append(timeout or 0.0)
            self.ticked.release()
            return wait(timeout)

        event.wait = recorded  # type: ignore[method-assign]

    def _connect(self, wake: Callable[[], None]) -> tuple[Recorder, Listener]:
        self.wake = wake
        return self.sender, self.listener

    def next_tick(self) -> float:
        """Wait until a tick is over.

        :returns: how long it wants to sleep now.
        """
        assert self.ticked.acquire(timeout=30)
        return self.pauses[-1]


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    register_all(CONF)
    CONF([], project="retryflow", default_config_files=[], default_config_dirs=[])
    return CONF


@pytest.fixture
def bench(retry_list: RetryList, conf: cfg.ConfigOpts) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(settings: Settings | None = None, **more: Any) -> Bench:
        made.append(Bench(retry_list, conf, settings or Settings(), **more))
        return made[-1]

    yield make
    for one in made:
        if not one.hung:
            one.service.stop()


def _stop_soon(one: Bench) -> None:
    """Stop it, in far less time than what hangs in it."""
    thread = threading.Thread(target=one.service.stop, daemon=True)
    thread.start()
    one.hung = True
    thread.join(30)
    assert not thread.is_alive(), "the stop waits for what hangs"


@pytest.mark.parametrize(("part", "seconds"), [(0.0, 80.0), (0.5, 100.0), (1.0, 120.0)])
def test_the_period_is_dithered_by_a_fifth_to_both_sides(
    bench: Callable[..., Bench], part: float, seconds: float
) -> None:
    """The upper half is not clipped, so that schedulers on several nodes do not meet."""
    dice = Dice(part)
    one = bench(Settings(schedule_period_seconds=100.0), random=dice)
    one.service.start()
    assert one.next_tick() == pytest.approx(seconds)
    assert dice.asked[-1] == (0.8, 1.2)


def test_it_sleeps_until_the_next_thing_is_due(bench: Callable[..., Bench], retry_list: RetryList) -> None:
    retry_list.rows(late_seconds=-30.0)
    one = bench(Settings(schedule_period_seconds=100.0))
    one.service.start()
    assert 25 < one.next_tick() <= 30
    retry_list.leases(holder="w:1:t", ended_seconds=-10.0)
    one.wake()
    assert 5 < one.next_tick() <= 10, "a lease that ends is due too"


def test_it_does_not_sleep_while_there_is_work(bench: Callable[..., Bench], retry_list: RetryList) -> None:
    retry_list.rows(5)
    one = bench(Settings(schedule_period_seconds=100.0))
    one.service.start()
    assert one.next_tick() < 1.0
    assert len(one.sender.ids) == 5
    assert one.next_tick() > 20.0


def test_a_worker_that_plans_something_soon_wakes_it(bench: Callable[..., Bench], retry_list: RetryList) -> None:
    one = bench(Settings(schedule_period_seconds=1000.0))
    one.service.start()
    assert one.next_tick() > 500
    rows = retry_list.rows(2)
    one.wake()
    eventually(lambda: sorted(one.sender.ids) == sorted(rows), "the rows are sent long before the period is over")


def test_a_wake_up_in_the_middle_of_a_tick_is_not_lost(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives after the look, so that this tick cannot have seen what it is about."""
    ticks: list[int] = []
    one = bench(Settings(schedule_period_seconds=1000.0))

    def tick(ticker: Ticker) -> TickReport:
        ticks.append(1)
        if len(ticks) == 1:
            one.wake()
        return TickReport()

    monkeypatch.setattr(Ticker, "tick", tick)
    one.service.start()
    eventually(lambda: len(ticks) == 2, "the wake-up is heeded long before the period is over")


def test_s13_whatever_a_tick_raises_the_next_one_comes(
    bench: Callable[..., Bench],
    retry_list: RetryList,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S13: one exception in a tick ended the ticking elsewhere."""
    rows = retry_list.rows(2)
    errors: list[BaseException] = [RuntimeError("one"), KeyError("two"), AssertionError("three"), RecursionError()]
    tick = Ticker.tick

    def broken(ticker: Ticker) -> TickReport:
        if errors:
            raise errors.pop(0)
        return tick(ticker)

    monkeypatch.setattr(Ticker, "tick", broken)
    one = bench(Settings(schedule_period_seconds=0.1))
    one.service.start()
    eventually(lambda: sorted(one.sender.ids) == sorted(rows), "the ticking goes on")
    assert caplog.text.count("The tick failed; the next one comes") == 4


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (sa.exc.OperationalError("UPDATE", {}, Exception("database is locked")), "refused a transaction; trying on"),
        (ZeroDivisionError(), "own row cannot be written"),
    ],
    ids=["trouble", "bug"],
)
def test_an_error_over_its_own_row_does_not_let_it_oversleep_what_is_due(
    bench: Callable[..., Bench],
    retry_list: RetryList,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    words: str,
) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(processes, "see", refused)
    retry_list.rows(late_seconds=-30.0)
    one = bench(Settings(schedule_period_seconds=100.0))
    one.service.start()
    assert one.next_tick() <= 30
    assert words in caplog.text
    assert ("Traceback" in caplog.text) == isinstance(error, ZeroDivisionError), "only a bug is told with its place"


def test_after_a_lost_race_it_looks_again_soon(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(ticker: Ticker) -> TickReport:
        raise sa.exc.OperationalError("UPDATE", {}, Exception("database is locked"))

    monkeypatch.setattr(Ticker, "tick", lost)
    one = bench(Settings(schedule_period_seconds=100.0))
    one.service.start()
    assert one.next_tick() < 2.0
    assert "Traceback" not in caplog.text


def test_a_stop_takes_the_process_row_away_and_stops_listening(
    bench: Callable[..., Bench], retry_list: RetryList
) -> None:
    one = bench()
    one.service.start()
    one.next_tick()
    [row] = read(retry_list.engine, processes.all_rows)
    assert (row.holder, row.kind) == (one.service.identity.holder, "scheduler")
    one.service.stop()
    assert read(retry_list.engine, processes.all_rows) == []
    assert one.listener.stopped
    assert one.service.exit_status == ExitStatus.DRAINED


def test_s11_a_stop_does_not_wait_for_a_broker_that_hangs(bench: Callable[..., Bench], retry_list: RetryList) -> None:
    """S11: the lock is given back, and the tickets under way are the next scheduler's business."""
    retry_list.rows(3)
    one = bench()
    hangs, gate = threading.Event(), threading.Event()

    def hang(tickets: Sequence[Ticket]) -> None:
        hangs.set()
        gate.wait(600)

    one.sender.before = hang
    one.service.start()
    assert hangs.wait(30)
    assert retry_list.lock_row() is not None
    _stop_soon(one)
    assert retry_list.lock_row() is None
    assert one.service.exit_status == ExitStatus.DRAINED
    gate.set()


def test_s12_a_batch_that_does_not_end_in_its_time_is_left_and_the_exit_says_so(
    bench: Callable[..., Bench], retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: bounded also where the database hangs in the middle of a batch."""
    from retryflow.model import leases

    retry_list.rows(3)
    hangs, gate = threading.Event(), threading.Event()

    def hang(*args: object, **kwargs: object) -> int:
        hangs.set()
        gate.wait(600)
        return 0

    monkeypatch.setattr(leases, "insert_from_retry_rows", hang)
    one = bench(Settings(batch_timeout_seconds=0.5))
    one.service.start()
    assert hangs.wait(30)
    _stop_soon(one)
    assert one.service.exit_status == ExitStatus.INTERRUPTED
    gate.set()


def test_a_database_that_does_not_answer_to_a_look_is_not_waited_for(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    from retryflow.retry import tick

    hangs, gate = threading.Event(), threading.Event()

    def hang(engine: object) -> None:
        hangs.set()
        gate.wait(600)

    monkeypatch.setattr(tick, "look", hang)
    one = bench()
    one.service.start()
    assert hangs.wait(30)
    _stop_soon(one)
    assert one.service.exit_status == ExitStatus.DRAINED
    gate.set()
