"""The parent of several worker processes: forks them, replaces them, stops them, and tells how it went."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.conf import reload
from retryflow.errors import RetryflowError
from retryflow.service.base import BaseService
from retryflow.service.bounded import log_bounded
from retryflow.service.deadline import StopTimes
from retryflow.service.health_systemd import Supervisor
from retryflow.service.runner import DUMP, HURRY, RELOAD, STOP, Runner
from retryflow.service.signals import HANDLED, Inbox, blocked, seconds_until
from retryflow.service.status import ExitStatus, exit_now

LOG = logging.getLogger(__name__)

READY, UP = b"R", b"U"

FAST_DEATH_SECONDS = 5.0
LONGEST_DELAY_SECONDS = 30.0
FAILED_STARTS = 5
KILL_MARGIN_SECONDS = 2.0
HURRIED_SECONDS = 12.0
AFTER_KILL_SECONDS = 5.0


@dataclass
class Place:
    """One worker process's place; processes come and go, the place stays."""

    number: int
    pid: int | None = None
    control: int = -1
    status: int = -1
    started: float = 0.0
    ready: bool = False
    up: bool = False
    fast_deaths: int = 0
    failed_starts: int = 0
    not_before: float = 0.0


@dataclass
class Ends:
    """What the ends of worker processes add up to."""

    verdict: int = ExitStatus.DRAINED
    interrupted: bool = False
    ever_ready: set[int] = field(default_factory=set)


class Master:
    """Keeps ``workers`` processes running; single-threaded, so that forking is safe at any time.

    :param factory: makes the service in each worker process.
    """

    def __init__(self, conf: cfg.ConfigOpts, factory: Callable[[], BaseService], *, workers: int) -> None:
        self._conf = conf
        self._factory = factory
        self._places = [Place(number) for number in range(workers)]
        self._inbox = Inbox((*HANDLED, signal.SIGCHLD))
        self._ends = Ends()
        self._times: StopTimes | None = None
        self._kill_at = math.inf
        self._killed = False
        self._interrupts = 0
        self._notified = False
        self._supervisor = Supervisor()
        self._beat_at = 0.0

    def run(self) -> int:
        """Run until every worker process has ended; the exit status of the whole."""
        if threading.active_count() != 1:
            LOG.error("Cannot start: several worker processes must be launched before any thread is started")
            return ExitStatus.REFUSED
        while True:
            self._fill()
            self._beat()
            status = self._advance()
            if status is not None:
                return status
            watched = [place.status for place in self._places if place.status >= 0]
            signals, readable = self._inbox.wait(self._patience(), *watched)
            for number in signals:
                self._signalled(number)
            self._listen(set(readable))
            self._reap()

    def _fill(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.pid is None and self._times is None and now >= place.not_before:
                self._fork(place)

    def _fork(self, place: Place) -> None:
        control_reader, control_writer = os.pipe()
        status_reader, status_writer = os.pipe()
        with blocked():
            try:
                pid = os.fork()
            except OSError as error:
                LOG.error("Cannot start worker process %d: %s", place.number, error)
                for descriptor in (control_reader, control_writer, status_reader, status_writer):
                    os.close(descriptor)
                self._ended(place, ready=False)
                return
            if pid == 0:
                for descriptor in (control_writer, status_reader):
                    os.close(descriptor)
                self._be_worker(control_reader, status_writer, number=place.number)
        os.close(control_reader)
        os.close(status_writer)
        place.pid, place.control, place.status = pid, control_writer, status_reader
        place.started = time.monotonic()
        LOG.info("Started worker process %d", pid)

    def _be_worker(self, control: int, status: int, *, number: int) -> NoReturn:
        """Everything that the child does; it never comes back to the master's code."""
        code: int = ExitStatus.REFUSED
        try:
            self._inbox.forget()
            for place in self._places:
                _close(place)
            inbox = Inbox()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (*HANDLED, signal.SIGCHLD))

            def tell(word: bytes) -> None:
                # A master that has died is heard of through the other pipe.
                with contextlib.suppress(OSError):
                    os.write(status, word)

            code = Runner(
                self._conf,
                self._factory,
                inbox,
                on_ready=lambda: tell(READY),
                on_up=lambda: tell(UP),
                control=control,
                number=number,
            ).run()
        except BaseException:
            LOG.exception("The worker process failed")
        finally:
            exit_now(code)

    def _listen(self, readable: set[int]) -> None:
        for place in self._places:
            if place.status not in readable:
                continue
            if words := os.read(place.status, 16):
                place.ready = True
                place.up = place.up or UP in words
                place.failed_starts = 0
                self._ends.ever_ready.add(place.number)
            else:
                os.close(place.status)
                place.status = -1
        if not self._notified and all(place.up for place in self._places):
            self._notified = True
            self._supervisor.ready()

    def _reap(self) -> None:
        for place in self._places:
            if place.pid is None:
                continue
            pid, wait_status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                self._reaped(place, os.waitstatus_to_exitcode(wait_status))

    def _reaped(self, place: Place, code: int) -> None:
        pid, ready = place.pid, place.ready
        _close(place)
        place.pid, place.ready, place.up = None, False, False
        if self._times is not None:
            # One that was not ready has taken nothing in, unless it says so itself; any other took its tasks with it.
            clean = code in (ExitStatus.DRAINED, ExitStatus.WORKER_LOST)
            clean = clean or (not ready and code != ExitStatus.INTERRUPTED)
            self._ends.interrupted |= not clean
            log_bounded(LOG.info if clean else LOG.warning, "Worker process %s ended, %s", pid, _how(code))
            return
        # Not once its place has been at work: then it is the configuration that changed beneath the others.
        if code == ExitStatus.REFUSED and place.number not in self._ends.ever_ready:
            LOG.error("Worker process %s refused to start; stopping", pid)
            self._stop(ExitStatus.REFUSED, "refusal of a worker process")
            return
        LOG.error("Worker process %s ended by itself, %s", pid, _how(code))
        self._ended(place, ready=ready)

    def _ended(self, place: Place, *, ready: bool) -> None:
        """Decide when the place gets its next process; the first replacement comes at once."""
        now = time.monotonic()
        place.failed_starts = 0 if ready else place.failed_starts + 1
        place.fast_deaths = place.fast_deaths + 1 if not ready or now < place.started + FAST_DEATH_SECONDS else 1
        if place.failed_starts >= FAILED_STARTS:
            LOG.error("Worker process %d could not be replaced in %d attempts; stopping", place.number, FAILED_STARTS)
            self._stop(ExitStatus.WORKER_LOST, "loss of a worker process")
            return
        delay = 0.0 if place.fast_deaths < 2 else min(2.0 ** (place.fast_deaths - 2), LONGEST_DELAY_SECONDS)
        place.not_before = now + delay

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP:
            # The master's own options (log levels) as well; a broken file is reported by each worker.
            with contextlib.suppress(cfg.Error, RetryflowError):
                reload(self._conf)
            self._tell(RELOAD)
        elif number == signal.SIGUSR2:
            # There is nothing to tell of this process; the tasks and their leases are in the others.
            self._tell(DUMP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._interrupts += number == signal.SIGINT
            self._stop(self._ends.verdict, signal.Signals(number).name)
            if self._interrupts > 1:
                self._tell(HURRY)
                self._kill_at = min(self._kill_at, time.monotonic() + HURRIED_SECONDS)

    def _stop(self, verdict: int, reason: str) -> None:
        if self._times is not None:
            return
        self._ends.verdict = verdict
        self._times = StopTimes.from_conf(self._conf, time.monotonic())
        self._kill_at = self._times.end + KILL_MARGIN_SECONDS
        self._supervisor.stopping(reason)
        self._tell(STOP)
        # From here on nothing is forked any more, so threads do no harm.
        log_bounded(LOG.info, "Graceful shutdown: stopping the worker processes because of %s", reason)
        if any(place.pid is None and place.failed_starts for place in self._places):
            self._ends.verdict = self._ends.verdict or ExitStatus.WORKER_LOST

    def _tell(self, word: bytes) -> None:
        for place in self._places:
            if place.control >= 0:
                with contextlib.suppress(OSError):
                    os.write(place.control, word)

    def _advance(self) -> int | None:
        if self._times is None:
            return None
        alive = [place.pid for place in self._places if place.pid is not None]
        if not alive:
            return ExitStatus.INTERRUPTED if self._ends.interrupted else self._ends.verdict
        if time.monotonic() < self._kill_at:
            return None
        if self._killed:
            log_bounded(LOG.error, "Worker processes %s cannot be killed; leaving them", alive)
            return ExitStatus.INTERRUPTED
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            log_bounded(LOG.error, "Worker process %d did not end in time; killing it", pid)
        self._killed = self._ends.interrupted = True
        self._kill_at = time.monotonic() + AFTER_KILL_SECONDS
        return None

    def _beat(self) -> None:
        """Tell systemd's watchdog that this process, which replaces and stops the others, still turns."""
        if self._supervisor.watchdog_seconds is not None and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._supervisor.watchdog_seconds
            self._supervisor.alive()

    def _patience(self) -> float | None:
        beat_at = math.inf if self._supervisor.watchdog_seconds is None else self._beat_at
        if self._times is not None:
            return seconds_until(min(self._kill_at, beat_at))
        vacant = [place.not_before for place in self._places if place.pid is None]
        return seconds_until(min([*vacant, beat_at]))


def _close(place: Place) -> None:
    for descriptor in (place.control, place.status):
        if descriptor >= 0:
            os.close(descriptor)
    place.control = place.status = -1


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
