"""The lease keeper: renews the leases of what this process runs, and proves the death of its neighbours.

It has its own thread and its own connection, so that busy tasks cannot starve it (Solid Queue #778), and it is the
last thing of
a worker to stop (the D1 row of six projects).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa
from oslo_log import log as logging

from retryflow.model import leases, processes
from retryflow.model.identity import ProcessIdentity, provably_dead
from retryflow.model.refusal import lacks_rights
from retryflow.model.transaction import driver_error, passes, read, transact
from retryflow.retry.log_context import about
from retryflow.retry.policy import RandomSource
from retryflow.retry.recover import recover_dead
from retryflow.retry.running import Running, RunningTasks
from retryflow.retry.settings import Settings

LOG = logging.getLogger(__name__)
_QUIET_SECONDS = 10.0
_RETRY_SECONDS = 0.5
# One more with a new connection: that a server, or something on the way to it, has ended an old one is no trouble yet.
_ATTEMPTS = 2


class LeaseKeeper:
    """Renews leases until it is stopped.

    :param engine: the keeper's own; not the pool that the tasks use.
    :param on_trouble: called with ``True`` when leases cannot be renewed (take nothing new in), with ``False`` when
        they can again.
    :param on_overdue: called once for each task that has run too long.
    :param on_renewed: called after each renewal, on the keeper's thread; may use its engine.
    :param on_recovered: called with the number of tasks of dead neighbours that were recovered and are due now.
    """

    def __init__(
        self,
        engine: sa.Engine,
        identity: ProcessIdentity,
        running: RunningTasks,
        settings: Settings,
        *,
        version: str,
        topic: str,
        on_trouble: Callable[[bool], None] = lambda trouble: None,
        on_overdue: Callable[[Running], None] = lambda running: None,
        on_recovered: Callable[[int], None] = lambda count: None,
        on_renewed: Callable[[], None] = lambda: None,
        random: RandomSource = random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._running = running
        self._settings = settings
        self._version = version
        self._topic = topic
        self._on_trouble = on_trouble
        self._on_overdue = on_overdue
        self._on_recovered = on_recovered
        self._on_renewed = on_renewed
        self._random = random
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
        self._in_trouble = False
        self._last_words = float("-inf")
        self.last_renewal = clock()

    @property
    def suspects(self) -> bool:
        """Whether this process may be fenced: it could not renew in time, so it must start nothing new.

        Also while a renewal hangs, without an error, for longer than a lease.
        """
        return self._in_trouble or self._clock() - self.last_renewal > self._settings.lease_seconds

    @property
    def lives(self) -> bool:
        """Whether its thread does, or has not begun, or was told to end."""
        return self._thread.ident is None or self._thread.is_alive() or self._stopping.is_set()

    def start(self) -> None:
        """Begin; the first round has to have been made by :meth:`round` already."""
        self._thread.start()

    def report_trouble(self) -> None:
        """A task could not reach the database: look at once instead of at the next renewal."""
        self._wake.set()

    def stop(self) -> None:
        """Stop renewing; called when nothing runs any more."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        wait = self._settings.renew_seconds
        while not self._stopping.is_set():
            self._wake.wait(wait)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self.round()
                wait = self._settings.renew_seconds
            except Exception as error:  # noqa: BLE001
                self._failed(error)
                wait = min(_RETRY_SECONDS, self._settings.renew_seconds)

    def round(self) -> None:
        """One renewal of leases and process row, and a look at the neighbours.

        :raises oslo_db.exception.DBError: the database did not answer; nothing is proven by that.
        """
        self._renew()
        transact(self._engine, self._see, attempts=_ATTEMPTS)
        self.last_renewal = self._clock()
        if self._in_trouble:
            self._in_trouble = False
            LOG.info("Leases are renewed again; taking in new tasks")
            self._on_trouble(False)
        try:
            self._on_renewed()
            self._look_at_neighbours()
        except Exception as error:
            if passes(error):
                LOG.debug("Those of dead neighbours are looked at in the next round: %s", error)
            else:
                LOG.error("The leases of dead neighbours cannot be looked at", exc_info=error)

    def _see(self, connection: sa.Connection) -> None:
        processes.see(connection, self._identity, kind="worker", version=self._version, topic=self._topic)

    def _failed(self, error: Exception) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            self._on_trouble(True)
        if self._clock() - self._last_words < _QUIET_SECONDS:
            return
        self._last_words = self._clock()
        if passes(error) or lacks_rights(error):
            text = " ".join(str(driver_error(error)).split())[:200]
            LOG.warning("Leases cannot be renewed, so nothing new is taken in; trying on: %s", text)
        else:
            LOG.error("Leases cannot be renewed, so nothing new is taken in; trying on", exc_info=error)

    def _renew(self) -> None:
        snapshot = self._running.snapshot()
        for running in snapshot:
            self._check_run_time(running)
        wanted = {
            running.claimed.task_id: running
            for running in snapshot
            if not running.overdue and not running.given_up.is_set()
        }
        if not wanted:
            return
        holder, seconds = self._identity.holder, self._settings.lease_seconds
        renewed = transact(
            self._engine,
            lambda connection: leases.renew(connection, wanted.keys(), holder=holder, lease_seconds=seconds),
            attempts=_ATTEMPTS,
        )
        missing = wanted.keys() - renewed
        if not missing:
            return
        # A row that is only locked (being finished just now) is still ours; only a row that is gone proves the loss.
        ours = read(
            self._engine, lambda connection: leases.held_by(connection, missing, holder=holder), attempts=_ATTEMPTS
        )
        for task_id in missing - ours:
            running = wanted[task_id]
            if self._running.get(task_id) is running and not running.given_up.is_set():
                LOG.warning(
                    "order %s: task %s (%s) has lost its lease (recovered, cancelled or deleted); it is told to stop, "
                    "and its outcome will be dropped",
                    running.claimed.state.order_id,
                    task_id,
                    running.claimed.state.task,
                    extra=about(running.claimed.state.order_id, running.claimed.state.request_id),
                )
                running.lose()

    def _check_run_time(self, running: Running) -> None:
        limit = self._settings.max_run_seconds
        if not limit or running.overdue or self._running.seconds(running) <= limit:
            return
        running.overdue = True
        LOG.error(
            "order %s: task %s (%s) has run longer than [lease] max_run_seconds (%.0f); its lease is left to end, and "
            "its thread counts as lost",
            running.claimed.state.order_id,
            running.claimed.task_id,
            running.claimed.state.task,
            limit,
            extra=about(running.claimed.state.order_id, running.claimed.state.request_id),
        )
        running.lose()
        self._on_overdue(running)

    def _remove(self, holder: str) -> bool:
        return transact(self._engine, lambda connection: processes.remove(connection, holder))

    def _look_at_neighbours(self) -> None:
        """Recover what provably dead processes of this host held, without waiting for their leases to end."""
        if not self._identity.boot_id or not self._identity.pid_namespace:
            return
        others = read(
            self._engine, lambda connection: processes.neighbours(connection, self._identity), attempts=_ATTEMPTS
        )
        for other in others:
            if not provably_dead(other, observer=self._identity):
                continue
            count, failed = recover_dead(self._engine, other.holder, limits=self._settings.limits, random=self._random)
            removed = not failed and self._remove(other.holder)
            if not removed and not count:
                # It stopped in good order, and took its row away, between our look at the rows and that at its pid; or
                # what it held is locked by somebody, and looked at again in the next round.
                continue
            LOG.warning("Process %s of this host has died; %s of its tasks are recovered", other.holder, count)
            if count:
                self._on_recovered(count)
