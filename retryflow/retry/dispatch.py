"""Dispatch: due retry rows become leases, and after the commit their tickets go out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_log import log as logging

from retryflow import faults
from retryflow.errors import RetryflowError
from retryflow.model import leases, orders, retry_rows
from retryflow.model.orders import PENDING
from retryflow.model.transaction import ATTEMPTS, is_lost_race, read, transact
from retryflow.model.types import AnyRow
from retryflow.retry.blame import is_the_rows_fault
from retryflow.retry.lock import EntityLock
from retryflow.retry.log_context import about
from retryflow.retry.sending import Ticket
from retryflow.retry.settings import Settings

LOG = logging.getLogger(__name__)
_SET_ASIDE_SECONDS = 300.0
_CAREFUL_SECONDS = 60.0
_HASTY_ATTEMPTS = 2


class BatchMismatch(RetryflowError):
    """The database wrote fewer rows than it was told to, without an error: look for a trigger or rule of its own."""


@dataclass(slots=True)
class Batch:
    """What one batch did.

    :param tickets: to be sent now.
    :param full: there may be more, and this batch got something out of their way.
    :param late_seconds: how late the oldest row was.
    """

    tickets: list[Ticket] = field(default_factory=list)
    full: bool = False
    late_seconds: float = 0.0


class Dispatcher:
    """Turns due rows into leases, batch by batch."""

    def __init__(
        self,
        engine: sa.Engine,
        lock: EntityLock,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._lock = lock
        self._settings = settings
        self._clock = clock
        self._batch_size = settings.batch_size
        self._careful_until = float("-inf")

    def dispatch(self, limit: int) -> Batch:
        """Dispatch at most ``limit`` rows (and at most a batch).

        :raises LockLost: another scheduler has the lock; nothing of this batch was written.
        """
        limit = min(limit, self._batch_size)
        if limit <= 0:
            return Batch()
        rows = read(self._engine, lambda connection: retry_rows.due(connection, limit=limit))
        if not rows:
            return Batch()
        started = self._clock()
        moved, gone = self._move(_one_per_order(rows))
        self._adapt(self._clock() - started)
        ttl = self._settings.resend_after_seconds(1)
        return Batch(
            tickets=[
                Ticket(row.id, row.order_id, row.retry_task, row.project_id, row.request_id, ttl) for row in moved
            ],
            # Rows that somebody else has locked stand first until he lets go: looking again at once would find them.
            full=len(rows) == limit and gone > 0,
            late_seconds=max(row.late_seconds or 0.0 for row in rows),
        )

    @property
    def _is_careful(self) -> bool:
        """Whether to look before each batch which orders are locked by others; that costs more than it is worth where
        none is."""
        return self._clock() < self._careful_until

    def _adapt(self, seconds: float) -> None:
        """Keep a batch well inside its time limit: a slow database gets smaller batches, a quick one grows back."""
        if seconds > self._settings.batch_timeout_seconds / 2:
            self._batch_size = max(1, self._batch_size // 2)
            LOG.warning("A batch took %.1f seconds; the next ones have %s rows", seconds, self._batch_size)
        elif self._batch_size < self._settings.batch_size:
            self._batch_size = min(self._settings.batch_size, self._batch_size * 2)

    def _move(self, rows: Sequence[AnyRow]) -> tuple[list[AnyRow], int]:
        """:returns: the rows that are leases now, and how many are out of the way of the others."""
        try:
            moved = self._move_once(rows)
            return moved, len(moved) + sum(row.status != PENDING for row in rows)
        except Exception as error:
            if is_lost_race(error) and not self._is_careful:
                # Somebody may hold an order locked for long: those that are free need not wait for it.
                self._careful_until = self._clock() + _CAREFUL_SECONDS
                return self._move(rows)
            if not is_the_rows_fault(error):
                raise
            if len(rows) == 1:
                return [], self._give_up(rows[0], error)
        # One failing row must not hold up the others for ever (River #1318): halve down to it.
        middle = len(rows) // 2
        first, gone_first = self._move(rows[:middle])
        second, gone_second = self._move(rows[middle:])
        return first + second, gone_first + gone_second

    def _move_once(self, rows: Sequence[AnyRow]) -> list[AnyRow]:
        ended = [row.id for row in rows if row.status != PENDING]
        wanted = [row.id for row in rows if row.status == PENDING]

        def work(connection: sa.Connection) -> list[AnyRow]:
            self._lock.touch(connection)
            if ended:
                retry_rows.delete(connection, ended)
            mine = retry_rows.lock(connection, wanted) if wanted else set()
            if not mine:
                return []
            if self._is_careful:
                free = orders.free_for_reference(connection, {row.order_id for row in rows if row.id in mine})
                mine &= {row.id for row in rows if row.order_id in free}
            ids = [row_id for row_id in wanted if row_id in mine]
            if not ids:
                return []
            made = leases.insert_from_retry_rows(
                connection, ids, expires_in_seconds=self._settings.resend_after_seconds(1)
            )
            faults.point("dispatch.before_delete")
            gone = retry_rows.delete(connection, ids)
            if not made == gone == len(ids):
                raise BatchMismatch(
                    f"{made} leases were made of {gone} retry rows where there were {len(ids)}; "
                    "look for a trigger or rule in the database that keeps rows back"
                )
            faults.point("dispatch.before_commit")
            return [row for row in rows if row.id in mine]

        def read_back(connection: sa.Connection) -> list[AnyRow] | None:
            # A lease has the id of its retry row, and while the lock is ours nobody else has made it.
            self._lock.touch(connection)
            made = leases.present(connection, wanted)
            return [row for row in rows if row.id in made] or None

        attempts = ATTEMPTS if self._is_careful else _HASTY_ATTEMPTS
        moved = transact(self._engine, work, read_back=read_back, attempts=attempts)
        faults.point("dispatch.after_commit")
        return moved

    def _give_up(self, row: AnyRow, error: Exception) -> int:
        """Deal with the one row that cannot be moved.

        :returns: 1 when it stands in nobody's way any more, else 0.
        """
        if isinstance(error, db_exc.DBDuplicateEntry) and read(
            self._engine, lambda connection: leases.of_order(connection, row.order_id)
        ):
            LOG.debug(
                "order %s: has a lease since retry row %s was looked at",
                row.order_id,
                row.id,
                extra=about(row.order_id, row.request_id),
            )
            return 1
        LOG.warning(
            "order %s: retry row %s (%s) cannot be dispatched and is set aside for %.0f seconds: %s",
            row.order_id,
            row.id,
            row.retry_task,
            _SET_ASIDE_SECONDS,
            " ".join(str(error).split())[:300],
            extra=about(row.order_id, row.request_id),
        )

        def work(connection: sa.Connection) -> None:
            self._lock.touch(connection)
            retry_rows.push_out(connection, row.id, after_seconds=_SET_ASIDE_SECONDS, error=str(error))

        try:
            transact(self._engine, work)
        except Exception as second:
            if not is_the_rows_fault(second):
                raise
            LOG.warning(
                "order %s: retry row %s cannot even be set aside: %s",
                row.order_id,
                row.id,
                second,
                extra=about(row.order_id, row.request_id),
            )
            return 0
        return 1


def _one_per_order(rows: Sequence[AnyRow]) -> list[AnyRow]:
    """The first row of each order: a second one of the same order would meet the unique key of the leases."""
    seen: set[str] = set()
    chosen = []
    for row in rows:
        if row.order_id not in seen:
            seen.add(row.order_id)
            chosen.append(row)
    return chosen
