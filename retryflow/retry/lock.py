"""The EntityLock on the retry list: a fence, not a wish."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_log import log as logging

from retryflow.errors import LockLost
from retryflow.model import locks
from retryflow.model.transaction import is_lost_race, read, transact

LOG = logging.getLogger(__name__)


class EntityLock:
    """One scheduler's hold on the retry list; taken anew for each tick, with a nonce of its own each time.

    :param holder: identity of the process, ``host:pid:token``.
    :param timeout_seconds: a lock that was not touched for so long is stale and may be taken over.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        holder: str,
        timeout_seconds: float,
        nonce: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._engine = engine
        self._holder = holder
        self._timeout_seconds = timeout_seconds
        self._nonce = nonce
        self._fence: str | None = None

    @property
    def fence(self) -> str | None:
        """The text in ``worker_host_name`` while this process believes to hold the lock."""
        return self._fence

    def is_stale(self, age_seconds: float | None) -> bool:
        """Whether a lock may be taken over that was last touched so long ago (negative: in the future; ``None``: there
        is none)."""
        return age_seconds is not None and abs(age_seconds) > self._timeout_seconds

    def take(self) -> bool:
        """Take the lock if it is free or stale.

        Only "inserted" and "taken over" are successes; only a duplicate key and a lost race mean "somebody else has
        it"; any
        other error comes out and nothing is dispatched (redbeat #208, Oban #1488).
        """
        fence = f"{self._holder}:{self._nonce()}"
        try:
            # On Galera the loser learns it at COMMIT, as a deadlock: both errors mean "not mine".
            transact(self._engine, lambda connection: locks.insert(connection, fence), attempts=1)
        except db_exc.DBDuplicateEntry:
            if not self._take_over(fence):
                return False
        except Exception as error:
            if is_lost_race(error):
                return False
            # The commit may have been done all the same; a lock that nobody knows of would stand until it is stale.
            self._fence = fence
            self.clear()
            raise
        self._fence = fence
        return True

    def _take_over(self, fence: str) -> bool:
        seen = read(self._engine, locks.look)
        if seen is None:
            return False
        # A process has one scheduler: a lock of its own that it no longer knows was left when it could not be cleared.
        left_over = seen.worker_host_name.startswith(f"{self._holder}:")
        timeout_seconds = 0.0 if left_over else self._timeout_seconds
        if abs(seen.age_seconds) <= timeout_seconds:
            return False
        try:
            taken = transact(
                self._engine,
                lambda connection: locks.take_over(
                    connection, fence, seen=seen.worker_host_name, older_than_seconds=timeout_seconds
                ),
                attempts=1,
            )
        except Exception as error:
            if is_lost_race(error):
                return False
            raise
        if taken and not left_over:
            LOG.warning(
                "Took over the lock on the retry list from %s, which had not touched it for %.0f seconds",
                seen.worker_host_name,
                seen.age_seconds,
            )
        return taken

    def touch(self, connection: sa.Connection) -> None:
        """The first statement of each transaction under the lock.

        :raises LockLost: another scheduler has taken it over; the transaction must not go on.
        """
        if self._fence is None or not locks.touch(connection, self._fence):
            raise LockLost(f"the lock on the retry list was taken over from {self._fence}; this tick stops")

    def clear(self) -> None:
        """Give the lock back, if it is still ours; never raises (a lock that is left is stale after its time-out)."""
        fence, self._fence = self._fence, None
        if fence is None:
            return
        try:
            cleared = transact(self._engine, lambda connection: locks.clear(connection, fence))
        except Exception as error:  # noqa: BLE001
            LOG.warning("The lock on the retry list could not be cleared: %s", error)
            return
        if not cleared:
            LOG.warning("The lock on the retry list was no longer held by %s when it was to be cleared", fence)
