"""``barbican-task-scheduler``: the periodic retry process (retry specification), on as many nodes as there are."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

import sqlalchemy as sa
from oslo_config import cfg
from oslo_log import log as logging

import retryflow
from retryflow.model import processes, schema
from retryflow.model.identity import ProcessIdentity
from retryflow.model.refusal import lacks_rights
from retryflow.model.transaction import passes, transact
from retryflow.retry.policy import RandomSource
from retryflow.retry.sending import TicketSender
from retryflow.retry.settings import Settings
from retryflow.retry.tick import Phase, Ticker, TickReport
from retryflow.service import guru_orders
from retryflow.service.base import BaseService
from retryflow.service.database import Complaints, wait_for_database
from retryflow.service.guru import Section
from retryflow.service.health import Check
from retryflow.service.health_broker import BrokerChecks
from retryflow.service.health_scheduler import tick_checks
from retryflow.service.status import ExitStatus

LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
_SHORTEST_PAUSE_SECONDS = 0.02
_DITHER = (0.8, 1.2)
# A stop waits so long for a database or broker that does not answer; nothing is lost by leaving then.
_SILENCE_SECONDS = 0.5
_PURGE_SECONDS = 3600.0
_LONG_GONE_SECONDS = 86_400.0


class Stoppable(Protocol):
    """The listener for wake-ups."""

    @property
    def consuming(self) -> bool: ...

    def stop(self) -> None: ...


class TaskSchedulerService(BaseService):
    """Ticks each ``schedule_period_seconds`` times uniform(0.8, 1.2), or as soon as the next thing is due.

    :param connect: makes, once the service starts, the sender of tickets and the listener that calls back at a wake-up.
    :param longest_pause_seconds: look at least this often; the standalone daemon looks for orders that another
        process wrote.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        engine: sa.Engine,
        identity: ProcessIdentity,
        settings: Settings,
        connect: Callable[[Callable[[], None]], tuple[TicketSender, Stoppable]],
        longest_pause_seconds: float = float("inf"),
        random: RandomSource = random,
    ) -> None:
        super().__init__(conf)
        self.identity = identity
        self._engine = engine
        self._settings = settings
        self._connect = connect
        self._longest_pause_seconds = longest_pause_seconds
        self._random = random
        self._wake = threading.Event()
        self._listener: Stoppable | None = None
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._complaints = Complaints()
        self._seen_at = float("-inf")
        self._purged_at = time.monotonic()
        self.last_tick = float("-inf")
        self._last_report = TickReport()
        self._broker = BrokerChecks(conf)

    def health_checks(self) -> list[Check]:
        """Whether it ticks, and whether the broker hears and is heard."""
        if self._listener is None:
            return []
        return [
            self._broker.check(self._listener),
            *tick_checks(
                self._settings,
                thread_lives=self._thread.ident is None or self._thread.is_alive() or self.stop_requested.is_set(),
                last_progress=max(self.last_tick, self._ticker.progressed_at),
                last_report=self._last_report,
            ),
        ]

    def report_sections(self) -> dict[str, Section]:
        """What it is at, and the lock."""
        return {
            "Scheduler": self._report,
            "Lock on the retry list": lambda: guru_orders.lock(self._engine),
        }

    def _report(self) -> dict[str, object]:
        now = time.monotonic()
        return {
            "holder": self.identity.holder,
            "phase": self._ticker.phase.value if self._listener is not None else "starting",
            "last tick, seconds ago": round(now - self.last_tick, 1),
            "last tick": asdict(self._last_report),
        }

    def health_probe(self) -> None:
        """Ask the broker for a sign of life."""
        self._broker.ask(self._listener)

    def start(self) -> None:
        """Wait for the database, then begin to tick."""
        wait_for_database(self._can_work, stopping=self.stop_requested, complaints=self._complaints)
        if self.stop_requested.is_set():
            return
        sender, listener = self._connect(self._wake.set)
        self._ticker = Ticker(
            self._engine,
            holder=self.identity.holder,
            sender=sender,
            settings=self._settings,
            stopping=self.stop_requested.is_set,
            random=self._random,
        )
        self._listener = listener
        self._thread.start()

    def reset(self) -> None:
        """Take over the options that SIGHUP has changed."""
        self._settings.reload(self.conf)

    def stop(self, graceful: bool = True) -> None:
        """End after the current batch, and clear the lock; do not wait for a broker or database that is silent."""
        times = self.times()
        self._wake.set()
        silent = self._wait_for_tick(times.drain_until)
        if self._listener is not None:
            # The broker may not answer to its goodbye either.
            listener = threading.Thread(target=self._listener.stop, name="listener-stop", daemon=True)
            listener.start()
            listener.join(_SILENCE_SECONDS)
        if not silent:
            with contextlib.suppress(Exception):
                transact(
                    self._engine, lambda connection: processes.remove(connection, self.identity.holder), attempts=1
                )
            self._engine.dispose()
        super().stop(graceful)

    def _wait_for_tick(self, drain_until: float) -> bool:
        """:returns: whether the database is silent, and nothing more is to be asked of it."""
        asked = time.monotonic()
        batch_until = min(drain_until, asked + self._settings.batch_timeout_seconds)
        until = {Phase.WORKING: batch_until}
        while self._thread.is_alive():
            self._thread.join(0.02)
            phase = self._ticker.phase
            if not self._thread.is_alive() or time.monotonic() < until.get(phase, asked + _SILENCE_SECONDS):
                continue
            if phase is Phase.SENDING:
                LOG.info("The broker is silent; the tickets under way are sent by the next scheduler")
                self._ticker.release()
                return False
            if phase is Phase.WORKING:
                LOG.warning("Graceful shutdown timed out with a batch still in progress; its lock ends by itself")
                self.exit_status = ExitStatus.INTERRUPTED
            return True
        return False

    def busy(self) -> bool:
        """Whether a tick is under way."""
        return self._thread.is_alive()

    def _can_work(self) -> None:
        schema.check(self._engine)
        # There is no such row yet, but not everybody may say so.
        transact(self._engine, lambda connection: processes.remove(connection, self.identity.holder), attempts=1)

    def _run(self) -> None:
        while not self.stop_requested.is_set():
            self._wake.clear()
            report = self._tick()
            period = self._settings.schedule_period_seconds * self._random.uniform(*_DITHER)
            pause = min(period, self._longest_pause_seconds)
            if report is not None and report.next_in is not None:
                pause = min(pause, max(report.next_in, _SHORTEST_PAUSE_SECONDS))
            if not self.stop_requested.is_set():
                self._wake.wait(pause)

    def _tick(self) -> TickReport | None:
        """One tick; its errors never end the ticking (Barbican 02dc4cdb)."""
        try:
            report = self._last_report = self._ticker.tick()
        except Exception as error:
            if not passes(error) and not lacks_rights(error):
                LOG.exception("The tick failed; the next one comes")
                return None
            self._complaints.tell(error)
            return TickReport(next_in=_PAUSE_SECONDS)
        self.last_tick = time.monotonic()
        try:
            self._housekeeping()
        except Exception as error:
            # What the tick has found is not forgotten over it.
            if passes(error) or lacks_rights(error):
                self._complaints.tell(error)
            else:
                LOG.exception("The scheduler's own row cannot be written; the next tick comes")
        return report

    def _housekeeping(self) -> None:
        now = time.monotonic()
        if now - self._seen_at >= self._settings.renew_seconds:
            self._seen_at = now
            transact(self._engine, self._see, attempts=1)
        if now - self._purged_at >= _PURGE_SECONDS:
            self._purged_at = now
            transact(
                self._engine,
                lambda connection: processes.purge(connection, unseen_for_seconds=_LONG_GONE_SECONDS),
                attempts=1,
            )

    def _see(self, connection: sa.Connection) -> None:
        processes.see(connection, self.identity, kind="scheduler", version=retryflow.__version__, topic=None)
