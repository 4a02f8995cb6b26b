"""What decides whether a worker for orders really works: it renews its leases, and takes up what waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa
from oslo_config import cfg

from retryflow.model import leases
from retryflow.model.transaction import read
from retryflow.service.health import WORKING, Check, age


class ClaimWatch:
    """Compares the last claim with the task that waits longest on the queue.

    :param engine: looked at only after a while without a claim.
    """

    def __init__(self, conf: cfg.ConfigOpts, engine: sa.Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        options = getattr(conf, "health", None)
        self._stalled_after_seconds: float = options.stalled_after_seconds if options else 120.0
        self._engine = engine
        self._clock = clock
        self._lock = threading.Lock()
        self._claimed_at = clock()
        self._ever = False
        self._waiting_seconds: float | None = None

    def claimed(self) -> None:
        """A task was claimed just now."""
        with self._lock:
            self._claimed_at = self._clock()
            self._ever = True
            self._waiting_seconds = None

    def busy(self) -> None:
        """Every thread runs a task: what waits does so with good reason."""
        with self._lock:
            self._claimed_at = self._clock()

    def look(self) -> None:
        """Ask the database what waits longest.

        :raises oslo_db.exception.DBError: it did not answer.
        """
        if self._idle_seconds() < self._stalled_after_seconds:
            return
        waiting = read(self._engine, leases.oldest_waiting_seconds, attempts=1)
        with self._lock:
            self._waiting_seconds = waiting

    def check(self) -> Check:
        """The check of this moment."""
        with self._lock:
            idle, waiting = self._clock() - self._claimed_at, self._waiting_seconds
            ever = self._ever
        stalled = waiting is not None and waiting > self._stalled_after_seconds and idle > self._stalled_after_seconds
        last = f"the last claim was {idle:.1f} s ago" if ever else f"nothing claimed in {idle:.1f} s"
        queue = "nothing has waited long" if waiting is None else f"a task has waited for {waiting:.1f} s"
        return Check(
            name="claims",
            good=not stalled,
            says=f"{last}, and {queue}",
            decides=frozenset((WORKING,)),
            seconds=round(idle, 3),
        )

    def _idle_seconds(self) -> float:
        with self._lock:
            return self._clock() - self._claimed_at


def renewal(*, last_renewal: float, lease_seconds: float, suspects: bool = False, now: float | None = None) -> Check:
    """Whether the leases of what runs here are renewed.

    :param last_renewal: on the monotonic clock.
    :param lease_seconds: after so long without one, others take the tasks over.
    :param suspects: the last attempt has failed, and nothing new is taken in.
    """
    check = age(
        "renewal",
        seconds=(time.monotonic() if now is None else now) - last_renewal,
        limit_seconds=lease_seconds,
        what="the last renewal of leases",
    )
    if check.good and suspects:
        return replace(check, good=False, says=f"{check.says}, and no further one works, so nothing new is taken in")
    return check
