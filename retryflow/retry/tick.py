"""The tick: everything a scheduler does under the EntityLock (retry specification, pseudo code of the periodic
method)."""

from __future__ import annotations

import enum
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_log import log as logging

from retryflow import faults
from retryflow.errors import LockLost
from retryflow.model import leases
from retryflow.model.transaction import is_disconnect, read
from retryflow.retry.dispatch import Dispatcher
from retryflow.retry.expiry import Expired, Expiry, far_seconds
from retryflow.retry.lock import EntityLock
from retryflow.retry.look import Look, look
from retryflow.retry.policy import RandomSource
from retryflow.retry.sending import Ticket, TicketSender
from retryflow.retry.settings import Settings
from retryflow.retry.submit import send_and_mark
from retryflow.retry.trust import DatabaseTrust

LOG = logging.getLogger(__name__)
_SHORT_PAUSE_SECONDS = 1.0
# In a long tick leases are looked at so often, and not beside each batch.
_EXPIRY_SECONDS = 1.0


class Phase(enum.Enum):
    """What a scheduler is at; whoever wants to stop it knows by it how long to wait, and for whom."""

    IDLE = "idle"
    LOOKING = "waiting for the database"
    WORKING = "at work on a batch"
    SENDING = "waiting for the broker"


@dataclass(slots=True)
class TickReport:
    """What a tick really did.

    :param capped: more rows are due, but too many tickets are outstanding.
    :param busy: another scheduler had the lock.
    :param unsent: tickets that the broker did not confirm; they are sent again at the next tick.
    :param next_in: seconds until the next thing is due, as far as it is known; ``None``: nothing is.
    """

    dispatched: int = 0
    resent: int = 0
    recovered: int = 0
    returned: int = 0
    unsent: int = 0
    late_seconds: float = 0.0
    seconds: float = 0.0
    capped: bool = False
    busy: bool = False
    lock_lost: bool = False
    next_in: float | None = None

    @property
    def did_something(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.dispatched or self.resent or self.recovered or self.returned or self.unsent)


class Ticker:
    """One scheduler's work on the retry list."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        holder: str,
        sender: TicketSender,
        settings: Settings,
        stopping: Callable[[], bool] = lambda: False,
        random: RandomSource = random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._sender = sender
        self._settings = settings
        self._stopping = stopping
        self._clock = clock
        self._lock = EntityLock(engine, holder=holder, timeout_seconds=settings.retry_lock_timeout_seconds)
        self._dispatcher = Dispatcher(engine, self._lock, settings, clock=clock)
        self._expiry = Expiry(engine, self._lock, settings, random=random)
        self._ration_at = float("-inf")
        self._under_way: _Sending | None = None
        self.trust = DatabaseTrust(
            needed_seconds=settings.lease_seconds,
            # An outage ends a lease only where it lasts from one renewal to the lease's end.
            longest_gap_seconds=settings.lease_seconds - settings.renew_seconds,
            clock=clock,
        )
        self.phase = Phase.IDLE
        self.progressed_at = float("-inf")
        """When a batch last began, on the monotonic clock: a tick over a long list may take long, and still works."""

    def tick(self) -> TickReport:
        """Do all that is due, batch by batch, until nothing is left or the process is stopping.

        :raises oslo_db.exception.DBError: the database failed; what was committed is in order, the next tick goes on.
        """
        try:
            return self._tick()
        except Exception as error:
            if is_disconnect(error):
                self.trust.failed()
            raise
        finally:
            self.phase = Phase.IDLE

    def release(self) -> None:
        """Clear the lock from another thread: a tick that still waits for the broker finds that it has lost it."""
        self._lock.clear()

    def _tick(self) -> TickReport:
        started = self._clock()
        report = TickReport()
        self.phase = Phase.LOOKING
        try:
            seen = look(self._engine)
        except Exception:
            self.trust.failed()
            raise
        self.trust.saw(seen.database_seconds)
        if self._is_idle(seen):
            report.next_in = seen.next_in
            return report
        self.phase = Phase.WORKING
        if not self._lock.take():
            report.busy = True
            report.next_in = _SHORT_PAUSE_SECONDS
            return report
        faults.point("tick.locked")
        try:
            self._work(report, seen)
        except LockLost as error:
            LOG.warning("%s", error)
            report.lock_lost = True
        finally:
            self._lock.clear()
        report.seconds = self._clock() - started
        if report.did_something:
            _log(report)
        report.next_in = self._pause_after(report, seen)
        return report

    def _pause_after(self, report: TickReport, seen: Look) -> float | None:
        if report.unsent:
            return None
        if report.capped or report.lock_lost:
            return _SHORT_PAUSE_SECONDS
        if not report.did_something:
            if (seen.next_in is None or seen.next_in > 0) and not self._far_away(seen):
                # A dead scheduler's lock was all.
                return seen.next_in
            row_due_in = seen.row_due_in
            # What is due may not be done yet: leases are not recovered before the database is trusted.
            wait = max(_SHORT_PAUSE_SECONDS, self.trust.remaining_seconds)
            # A row that will be due meanwhile does not wait for that.
            return wait if row_due_in is None or row_due_in <= 0 else min(wait, row_due_in)
        return 0.0

    def _is_idle(self, seen: Look) -> bool:
        row_due = seen.row_due_in is not None and seen.row_due_in <= 0
        lease_over = seen.lease_ends_in is not None and seen.lease_ends_in <= 0
        # A lock that a dead scheduler has left is in nobody's way, but people and probes would go on seeing it.
        left_lock = self._lock.is_stale(seen.lock_age_seconds)
        return not (row_due or lease_over or left_lock or self._far_away(seen))

    def _far_away(self, seen: Look) -> bool:
        limit = far_seconds(self._settings)
        return seen.last_lease_ends_in is not None and seen.last_lease_ends_in > limit

    def _work(self, report: TickReport, seen: Look) -> None:
        if self._far_away(seen):
            self._expiry.pull_in()
        room = self._room()
        more, answers, expiry_at = True, False, float("-inf")
        try:
            while more and not self._stopping():
                self.progressed_at = self._clock()
                expired = Expired()
                if self.progressed_at >= expiry_at:
                    expired = self._expiry.run(may_recover=self.trust.allows_recovery)
                    expiry_at = self.progressed_at + (0.0 if expired.full else _EXPIRY_SECONDS)
                report.recovered += expired.recovered
                report.returned += expired.returned
                resent = self._send(expired.tickets, report)
                report.resent += resent
                if self._stopping():
                    break
                batch = self._dispatcher.dispatch(room)
                room -= len(batch.tickets)
                report.late_seconds = max(report.late_seconds, batch.late_seconds)
                report.capped = room <= 0
                goes_on = expired.full or (batch.full and room > 0)
                if self._under_way is not None:
                    answers = self._finish(report)
                if goes_on and answers:
                    # The next batch is written while the broker takes this one.
                    self._under_way = _Sending(batch.tickets, self._confirmed)
                else:
                    dispatched = self._send(batch.tickets, report)
                    report.dispatched += dispatched
                    answers = dispatched > 0
                # With the broker away more batches would only turn the retry list into leases that wait for nobody. A
                # few tickets that it does not take are no reason to stop.
                silent = bool(expired.tickets or batch.tickets) and not (resent or answers)
                more = goes_on and not silent
        finally:
            self._finish(report)

    def _room(self) -> int:
        """How many rows may be dispatched in this tick: the backlog belongs in the database, not in the broker's
        memory."""
        cap = self._settings.max_outstanding_tickets
        waiting = read(self._engine, lambda connection: leases.waiting_count(connection, up_to=cap + 1))
        # A tenth of a batch once in a period even beyond the cap, so that tickets which nobody takes do not starve the
        # others' retries.
        ration = max(1, self._settings.batch_size // 10)
        room = max(0, cap - waiting)
        if room >= ration or self._clock() - self._ration_at < self._settings.schedule_period_seconds:
            return room
        self._ration_at = self._clock()
        LOG.info("%s tickets wait for a worker (max_outstanding_tickets); the retry list goes on slowly", waiting)
        return ration

    def _send(self, tickets: list[Ticket], report: TickReport) -> int:
        if not tickets:
            return 0
        self.phase = Phase.SENDING
        try:
            confirmed = self._confirmed(tickets)
        finally:
            self.phase = Phase.WORKING
        report.unsent += len(tickets) - confirmed
        return confirmed

    def _confirmed(self, tickets: list[Ticket]) -> int:
        return send_and_mark(
            self._engine,
            tickets,
            sender=self._sender,
            settings=self._settings,
            again_after_seconds=self._settings.schedule_period_seconds,
        )

    def _finish(self, report: TickReport) -> bool:
        """Wait for the tickets that are under way, if any, and report them.

        :returns: whether the broker has confirmed any of them.
        """
        sending, self._under_way = self._under_way, None
        if sending is None:
            return False
        self.phase = Phase.SENDING
        try:
            confirmed = sending.confirmed()
        finally:
            self.phase = Phase.WORKING
        report.dispatched += confirmed
        report.unsent += len(sending.tickets) - confirmed
        return confirmed > 0


class _Sending:
    """Tickets on their way to the broker, while the next batch is written."""

    def __init__(self, tickets: list[Ticket], send: Callable[[list[Ticket]], int]) -> None:
        self.tickets = tickets
        self._result: Future[int] = Future()
        threading.Thread(target=self._run, args=(send,), name="send", daemon=True).start()

    def _run(self, send: Callable[[list[Ticket]], int]) -> None:
        try:
            self._result.set_result(send(self.tickets))
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
            self._result.set_exception(error)

    def confirmed(self) -> int:
        """Wait for the end.

        :returns: how many the broker has confirmed.
        """
        return self._result.result()


def _log(report: TickReport) -> None:
    LOG.info(
        "Retry list: %s dispatched (the oldest %.1f seconds late), %s sent again, %s recovered, %s returned, "
        "%s not confirmed by the broker, in %.2f seconds",
        report.dispatched,
        report.late_seconds,
        report.resent,
        report.recovered,
        report.returned,
        report.unsent,
        report.seconds,
    )
