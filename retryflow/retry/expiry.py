"""Expired leases: those that were held are recovered, those that still wait have their tickets sent again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from oslo_log import log as logging

from retryflow.model import leases, retry_rows
from retryflow.model.orders import PENDING
from retryflow.model.tables import order_task_leases
from retryflow.model.task_state import TaskState
from retryflow.model.transaction import is_lost_race, read, transact
from retryflow.model.types import AnyRow
from retryflow.retry.blame import is_the_rows_fault
from retryflow.retry.lock import EntityLock
from retryflow.retry.log_context import about
from retryflow.retry.policy import RandomSource
from retryflow.retry.recover import RowLocked, recover_expired
from retryflow.retry.sending import Ticket
from retryflow.retry.settings import Settings

LOG = logging.getLogger(__name__)
_SUSPICIOUSLY_FAR_SECONDS = 3600.0
_SET_ASIDE_SECONDS = 300.0
# Others wait meanwhile: what loses a race twice is looked at again in the next tick.
_ATTEMPTS = 2


@dataclass(slots=True)
class Expired:
    """What one pass did.

    :param recovered: tasks of dead workers that went back to the retry list.
    :param tickets: to be sent again now.
    :param full: there may be more.
    """

    recovered: int = 0
    returned: int = 0
    tickets: list[Ticket] = field(default_factory=list)
    full: bool = False


def far_seconds(settings: Settings) -> float:
    """:returns: no lease can end later than that from now, unless the database's clock was set back."""
    longest = max(settings.lease_seconds, settings.ticket_resend_maximum_seconds, 2 * settings.schedule_period_seconds)
    return max(_SUSPICIOUSLY_FAR_SECONDS, 2 * longest)


class Expiry:
    """Deals with expired leases, each kind in transactions of its own that begin with the touch."""

    def __init__(
        self,
        engine: sa.Engine,
        lock: EntityLock,
        settings: Settings,
        *,
        random: RandomSource = random,
    ) -> None:
        self._engine = engine
        self._lock = lock
        self._settings = settings
        self._random = random
        self._touched = False

    def run(self, *, may_recover: bool) -> Expired:
        """One pass over a batch of expired leases.

        :param may_recover: whether held leases may be recovered; not while the database or its clock is under
            suspicion.
        :raises LockLost: another scheduler has the lock.
        """
        limit = self._settings.batch_size
        # Held ones that may not be recovered yet must not stand before those whose tickets are to be sent again.
        rows = read(self._engine, lambda connection: leases.expired(connection, limit=limit, held=may_recover))
        held = [row for row in rows if row.holder is not None]
        waiting = [row for row in rows if row.holder is None]
        result = Expired()
        for row in held:
            result.recovered += self._unless_it_fails(row, self._recover)
        fresh = [row for row in waiting if row.sent_count < self._settings.max_sends and row.status == PENDING]
        for row in waiting:
            if row.sent_count >= self._settings.max_sends or row.status != PENDING:
                result.returned += self._unless_it_fails(row, self._return)
        result.tickets = self._resend(fresh)
        progressed = result.recovered + result.returned + len(result.tickets)
        result.full = len(rows) == limit and progressed > 0
        return result

    def _unless_it_fails(self, row: AnyRow, work: Callable[[AnyRow], bool]) -> bool:
        """One failing lease must not hold up the others, nor the retry list behind them."""
        self._touched = False
        try:
            return work(row)
        except Exception as error:
            if isinstance(error, RowLocked) or (is_lost_race(error) and self._touched):
                LOG.debug("order %s: the expired lease %s is left for later: %s", row.order_id, row.id, error)
                return False
            if not is_the_rows_fault(error):
                raise
            self._set_aside(row, error)
            return False

    def _touch(self, connection: sa.Connection) -> None:
        # What loses a race before this has lost it for the lock, and so would all the others.
        self._lock.touch(connection)
        self._touched = True

    def _set_aside(self, row: AnyRow, error: Exception) -> None:
        LOG.warning(
            "order %s: the expired lease %s (%s) cannot be dealt with and is set aside for %.0f seconds: %s",
            row.order_id,
            row.id,
            row.task,
            _SET_ASIDE_SECONDS,
            " ".join(str(error).split())[:300],
            extra=about(row.order_id, row.request_id),
        )

        def work(connection: sa.Connection) -> None:
            self._lock.touch(connection)
            leases.push_out(connection, row.id, after_seconds=_SET_ASIDE_SECONDS, error=str(error))

        try:
            transact(self._engine, work)
        except Exception as second:
            if not is_the_rows_fault(second):
                raise
            LOG.warning(
                "order %s: the lease %s cannot even be set aside: %s",
                row.order_id,
                row.id,
                second,
                extra=about(row.order_id, row.request_id),
            )

    def pull_in(self) -> None:
        """Bring back leases that end hours from now: the database's clock was set back."""
        far = far_seconds(self._settings)

        def work(connection: sa.Connection) -> int:
            self._lock.touch(connection)
            return leases.pull_in(connection, farther_than_seconds=far, expires_in_seconds=self._settings.lease_seconds)

        count = transact(self._engine, work)
        if count:
            LOG.warning("Pulled in %s leases that ended more than %.0f seconds from now", count, far)

    def _recover(self, row: AnyRow) -> bool:
        def work(connection: sa.Connection) -> bool:
            self._touch(connection)
            return recover_expired(connection, row, limits=self._settings.limits, random=self._random)

        recovered = transact(self._engine, work, attempts=_ATTEMPTS)
        if recovered:
            LOG.warning(
                "order %s: task %s (%s) is recovered: its lease ran out, holder %s is gone",
                row.order_id,
                row.id,
                row.task,
                row.holder,
                extra=about(row.order_id, row.request_id),
            )
        return recovered

    def _return(self, row: AnyRow) -> bool:
        """Nobody claimed it after so many tickets: back to the retry list with backoff (or away with its ended
        order)."""
        delay = self._settings.ticket_resend_maximum_seconds * self._random.uniform(0.8, 1.2)

        def work(connection: sa.Connection) -> bool:
            self._touch(connection)
            whole = leases.with_task(connection, row.id)
            if whole is None or not leases.lock(connection, row.id) or not leases.delete_waiting(connection, row.id):
                return False
            if row.status == PENDING:
                retry_rows.put(connection, TaskState.of_lease(whole), after_seconds=delay)
            return True

        returned = transact(self._engine, work, attempts=_ATTEMPTS)
        if returned and row.status == PENDING:
            LOG.warning(
                "order %s: no worker took task %s (%s) after %s tickets; tried again in %.0f seconds",
                row.order_id,
                row.id,
                row.task,
                row.sent_count,
                delay,
                extra=about(row.order_id, row.request_id),
            )
        return returned

    def _resend(self, rows: Sequence[AnyRow]) -> list[Ticket]:
        if not rows:
            return []
        try:
            waiting = self._push_out(rows)
        except Exception as error:
            if not is_the_rows_fault(error):
                raise
            if len(rows) == 1:
                self._set_aside(rows[0], error)
                return []
            middle = len(rows) // 2
            return self._resend(rows[:middle]) + self._resend(rows[middle:])
        return [
            Ticket(
                row.id,
                row.order_id,
                row.task,
                row.project_id,
                row.request_id,
                self._settings.resend_after_seconds(row.sent_count + 1),
            )
            for row in rows
            if row.id in waiting
        ]

    def _push_out(self, rows: Sequence[AnyRow]) -> set[str]:
        """:returns: the ids of those that still wait for a worker; they end later now."""
        ids = [row.id for row in rows]
        after = sa.case(
            {count: self._settings.resend_after_seconds(count + 1) for count in range(self._doublings())},
            value=order_task_leases.c.sent_count,
            else_=self._settings.ticket_resend_maximum_seconds,
        )

        def work(connection: sa.Connection) -> set[str]:
            self._lock.touch(connection)
            return leases.resend(connection, ids, expires_in_seconds=after)

        def read_back(connection: sa.Connection) -> set[str] | None:
            self._lock.touch(connection)
            counts = leases.sent_counts(connection, ids)
            return {row.id for row in rows if counts.get(row.id) == row.sent_count + 1} or None

        return transact(self._engine, work, read_back=read_back)

    def _doublings(self) -> int:
        """:returns: from how many sendings on the wait is the longest."""
        longest = self._settings.ticket_resend_maximum_seconds
        return next(count for count in range(1, 64) if self._settings.resend_after_seconds(count + 1) >= longest)
