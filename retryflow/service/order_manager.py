"""The manager of ``barbican-worker``: the RPC methods of orders, between ticket and outcome."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeGuard

import oslo_messaging
import sqlalchemy as sa
from oslo_config import cfg
from oslo_log import log as logging

import retryflow
from retryflow.errors import LeaseLost, RetryflowError
from retryflow.model import processes, schema
from retryflow.model.engine import is_galera
from retryflow.model.identity import ProcessIdentity
from retryflow.model.leases import Claimable
from retryflow.model.task_state import UPDATE_TASK
from retryflow.model.transaction import is_disconnect, is_trouble, transact
from retryflow.queue import delivery
from retryflow.queue.delivery import expose
from retryflow.queue.target import worker_target
from retryflow.retry.claim import NotClaimed, defer
from retryflow.retry.context import TaskContext
from retryflow.retry.finish import Finished, checkpoint, hand_back
from retryflow.retry.keeper import LeaseKeeper
from retryflow.retry.log_context import about, speak_of
from retryflow.retry.plan import clean_line, clean_text
from retryflow.retry.policy import RandomSource
from retryflow.retry.running import Running, RunningTasks
from retryflow.retry.sending import SchedulerWaker
from retryflow.retry.settings import Settings
from retryflow.retry.steer import admit_foreign_ticket, update_order
from retryflow.retry.together import TaskGroups
from retryflow.service import guru_orders
from retryflow.service.at_hand import AtHand
from retryflow.service.bounded import each_within
from retryflow.service.database import Complaints, wait_for_database
from retryflow.service.deadline import RESERVE_SECONDS, RESERVE_SHARE
from retryflow.service.guru import Section
from retryflow.service.health import EVERYTHING, Check
from retryflow.service.health_orders import ClaimWatch, renewal
from retryflow.service.manager import Manager
from retryflow.service.outcomes import Outcomes
from retryflow.service.unclear import UnclearClaims
from retryflow.service.words import short
from retryflow.tasks.order_task import run_task
from retryflow.tasks.registry import OrderTypeRegistry
from retryflow.tracking import TaskRecord, TaskTracker, untracked_rpc_method

LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
# A scheduler that is not woken may sleep so many times schedule_period_seconds.
_LONGEST_PERIOD = 1.2
_QUIET_SECONDS = 10.0
# On a Galera node a row that was committed on another one may be missing for a moment.
_LAG_SECONDS = 1.0
_ID_LENGTH = 36


class OrderManager(Manager):
    """Claims what a ticket names, runs what the row says, and commits the outcome.

    :param engine: for the tasks.
    :param keeper_engine: for the lease keeper alone.
    :param registry: the order types.
    :param waker: tells the schedulers of what is due soon.
    :param threads: how many tasks run at once.
    :param on_trouble: called with ``True`` while nothing new may be taken in, with ``False`` afterwards.
    :param on_all_lost: called when no thread is left that could run a task.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        engine: sa.Engine,
        keeper_engine: sa.Engine,
        identity: ProcessIdentity,
        settings: Settings,
        registry: OrderTypeRegistry,
        waker: SchedulerWaker,
        threads: int,
        on_trouble: Callable[[bool], None] = lambda trouble: None,
        on_all_lost: Callable[[], None] = lambda: None,
        tracker: TaskTracker | None = None,
        random: RandomSource = random,
    ) -> None:
        super().__init__(conf, tracker=tracker)
        self.target = oslo_messaging.Target(namespace=conf.queue.namespace, version=conf.queue.version)
        self.identity = identity
        self.running = RunningTasks()
        self._engine = engine
        self._keeper_engine = keeper_engine
        self._settings = settings
        self._registry = registry
        self._waker = waker
        self._threads = threads
        self._on_all_lost = on_all_lost
        self._groups = TaskGroups(engine, holder=identity.holder, settings=settings, random=random, threads=threads)
        self._one_suspect = threading.Semaphore(1)
        self._suspects: dict[str, contextlib.ExitStack] = {}
        self._at_hand: AtHand[Claimable | NotClaimed] = AtHand(self.tracker, fresh_seconds=settings.renew_seconds)
        self._unclear = UnclearClaims(keeper_engine, holder=identity.holder, at_hand=self._at_hand, waker=waker)
        self._last_words = 0.0
        self._rows_may_lag = False
        self._claims = ClaimWatch(conf, keeper_engine)
        self.keeper = LeaseKeeper(
            keeper_engine,
            identity,
            self.running,
            settings,
            version=retryflow.__version__,
            topic=worker_target(conf).topic or "",
            on_trouble=on_trouble,
            on_overdue=self._overdue,
            on_renewed=self._look_at_waiting,
            on_recovered=lambda count: waker.wake(),
            random=random,
        )
        self._outcomes = Outcomes(self._groups, self.running, self.keeper)

    # --- RPC methods, with upstream's names. A ticket holds order_id, project_id, request_id and task_id; what newer
    # clients add is let pass, and what is no ticket is dropped with one line. ---

    @expose(late_acknowledge=True)
    def process_type_order(self, context: Any, /, **ticket: Any) -> Future[None] | None:
        """Start an order."""
        return self._serve("process_type_order", **ticket)

    @expose(late_acknowledge=True)
    def check_certificate_status(self, context: Any, /, **ticket: Any) -> Future[None] | None:
        """Look again at an order that waits for its backend."""
        return self._serve("check_certificate_status", **ticket)

    @expose(late_acknowledge=True)
    def update_order(self, context: Any, /, **ticket: Any) -> Future[None] | None:
        """Look at an order's new meta; a client without leases sends it along as ``updated_meta``."""
        meta = ticket.get("updated_meta")
        if ticket.get("task_id") is None and meta is not None:
            self._admit(UPDATE_TASK, ticket.get("order_id"), ticket.get("request_id"), meta)
            return None
        return self._serve(UPDATE_TASK, **ticket)

    @expose(late_acknowledge=True)
    def run_task(self, context: Any, /, **ticket: Any) -> Future[None] | None:
        """Run a task of another name: the lease says which."""
        return self._serve("run_task", **ticket)

    @untracked_rpc_method
    def prepare_messages(self, tickets: Sequence[Mapping[str, Any]]) -> None:
        """Claim what several messages name that are about to be served, in one transaction.

        :param tickets: their arguments.
        """
        if self.keeper.suspects or self.shutdown_in_progress:
            return
        pairs: list[tuple[Any, Any]] = [(ticket.get("order_id"), ticket.get("task_id")) for ticket in tickets]
        valid = [pair for pair in pairs if all(map(_is_id, pair)) and not self._groups.is_locked(pair[1])]
        self._at_hand.claim_ahead(valid, self._groups.claim_ahead)

    # --- hooks ---

    def init_host(self) -> None:
        """Wait for the database, make oneself known, recover what dead neighbours left, and begin to renew."""
        wait_for_database(self._can_work, stopping=self._shutdown_in_progress, complaints=Complaints())
        self.keeper.start()

    def _can_work(self) -> None:
        schema.check(self._engine)
        self._rows_may_lag = is_galera(self._engine)
        self.keeper.round()

    def health_checks(self) -> list[Check]:
        """Whether leases are renewed, and whether what waits is taken up."""
        keeper = Check(
            name="lease_keeper",
            good=self.keeper.lives,
            says="the lease keeper is alive" if self.keeper.lives else "the lease keeper has died",
            decides=EVERYTHING,
        )
        renewed = renewal(
            last_renewal=self.keeper.last_renewal,
            lease_seconds=self._settings.lease_seconds,
            suspects=self.keeper.suspects,
        )
        return [keeper, renewed, self._claims.check()]

    def report_sections(self) -> dict[str, Section]:
        """The leases held, and the lock."""
        return {
            "Leases held": lambda: guru_orders.held(
                self.running.snapshot(),
                holder=self.identity.holder,
                renewed_seconds_ago=time.monotonic() - self.keeper.last_renewal,
                suspects=self.keeper.suspects,
            ),
            "Lock on the retry list": lambda: guru_orders.lock(self._engine),
        }

    def reset(self) -> None:
        """Take over the options that SIGHUP has changed."""
        self._settings.reload(self.conf)

    def drain_started(self) -> None:
        """Tell each running task that the worker is stopping."""
        for running in self.running.snapshot():
            running.context.tell_stopping()

    def interrupt_tasks(self, records: Sequence[TaskRecord]) -> Mapping[int, str]:
        """Turn the leases of what is left into retry rows, due now; one transaction each, several at once."""
        left = [(record.key, running) for record in records if (running := self._running_of(record)) is not None]
        became = each_within(
            "give a task back",
            self._interrupt,
            [running for _key, running in left],
            timeout_seconds=self._hand_back_seconds,
        )
        self._waker.wake()
        return {key: text or self._not_handed_back for (key, _running), text in zip(left, became, strict=True)}

    @property
    def _hand_back_seconds(self) -> float:
        """A little less than what the stop keeps in reserve for it, so that what was done in time is reported."""
        timeout = self.conf.manager_shutdown_timeout or RESERVE_SECONDS / RESERVE_SHARE
        return 0.9 * min(RESERVE_SECONDS, timeout * RESERVE_SHARE)

    @property
    def _not_handed_back(self) -> str:
        return f"not handed back; its lease ends by itself within {self._settings.lease_seconds:.0f} s"

    def cleanup_host(self) -> None:
        """Stop the keeper, the last of all, and take the process's row away."""
        self.keeper.stop()
        with contextlib.suppress(Exception):
            transact(
                self._keeper_engine,
                lambda connection: processes.remove(connection, self.identity.holder),
                attempts=1,
            )
        self._engine.dispose()
        self._keeper_engine.dispose()

    # --- from ticket to outcome ---

    def _serve(
        self, method: str, /, order_id: Any = None, request_id: Any = None, task_id: Any = None, **_more: Any
    ) -> Future[None] | None:
        """:returns: what is done when the outcome is stored, where nothing else has to wait for that."""
        if not _is_id(order_id) or not (task_id is None or _is_id(task_id)):
            LOG.warning("Dropped a %s message whose order_id or task_id is no id", method)
            return None
        speak_of(order_id, request_id)
        if task_id is None:
            self._admit(method, order_id, request_id, None)
            return None
        entered = self._at_hand.enter(task_id)
        if entered is None:
            LOG.debug("order %s: ticket %s is dropped: it is at work here already", order_id, task_id)
            return None
        with entered.held as held:
            claimed = entered.claimed
            # One that was claimed ahead is ours, and has to be run whatever else has happened since.
            if not isinstance(claimed, Claimable):
                claimed = self._claim(task_id, held, claimed)
            if isinstance(claimed, Claimable):
                delivery.acknowledge()
                return self._run(claimed, held)
            if claimed is not None:
                LOG.debug("order %s: ticket %s is dropped: %s", order_id, task_id, claimed.value)
        return None

    def _admit(self, task: str, order_id: Any, request_id: Any, meta: Mapping[str, Any] | None) -> None:
        """Serve a client that knows nothing of leases."""
        if not _is_id(order_id):
            LOG.warning("Dropped a %s message whose order_id is no id", task)
            return
        request = clean_line(request_id)[:64] if isinstance(request_id, str) else None
        try:
            if meta is not None:
                update_order(self._engine, order_id, meta, request_id=request, waker=self._waker)
            elif not admit_foreign_ticket(self._engine, order_id, task, request_id=request, waker=self._waker):
                LOG.debug("order %s: a %s message without task_id finds nothing to do", order_id, task)
        except RetryflowError as error:
            LOG.warning("Dropped a %s message: %s", task, clean_line(str(error)))
        except Exception as error:
            if is_trouble(error):
                self._database_trouble(error)
                delivery.hand_back()
            else:
                # It would come back for ever.
                LOG.exception("Dropped a %s message: it cannot be served", task)

    def _claim(
        self, task_id: str, held: contextlib.ExitStack, result: NotClaimed | None
    ) -> Claimable | NotClaimed | None:
        """
        :param result: of a claim ahead.
        :returns: ``None`` when the claim could not be tried and the ticket goes back to the broker.
        """
        if self.keeper.suspects or self.shutdown_in_progress:
            # While a renewal hangs nobody has stopped the intake, and the ticket would come straight back.
            self._unclear.remember(task_id)
            self._shutdown_in_progress.wait(_PAUSE_SECONDS)
            delivery.hand_back()
            return None
        try:
            claimed = result or self._groups.claim(task_id)
            if claimed is NotClaimed.GONE and self._rows_may_lag:
                self._shutdown_in_progress.wait(_LAG_SECONDS)
                claimed = self._groups.claim(task_id)
            if claimed is NotClaimed.CRASHED_BEFORE:
                return self._claim_suspect(task_id, held)
            return claimed
        except Exception as error:
            if is_trouble(error):
                self._unclear.remember(task_id)
                self._database_trouble(error)
                delivery.hand_back()
            else:
                # The scheduler sends its ticket again, after a while.
                LOG.exception("task %s cannot be claimed; its ticket is dropped", task_id)
            return None

    def _claim_suspect(self, task_id: str, held: contextlib.ExitStack) -> Claimable | NotClaimed | None:
        """Such a task may kill this worker too: at most one at a time, so that it takes no innocents along."""
        if not self._one_suspect.acquire(timeout=_PAUSE_SECONDS):
            # The one that runs may do so for hours, and this thread has other things to do.
            defer(self._engine, task_id, after_seconds=self._settings.renew_seconds)
            return None
        permit = self._suspects[task_id] = contextlib.ExitStack()
        permit.callback(self._one_suspect.release)
        permit.callback(self._suspects.pop, task_id, None)
        held.callback(permit.close)
        if self.shutdown_in_progress:
            delivery.hand_back()
            return None
        return self._groups.claim_crashed(task_id)

    def _database_trouble(self, error: Exception) -> None:
        if time.monotonic() - self._last_words >= _QUIET_SECONDS:
            self._last_words = time.monotonic()
            what = "does not answer" if is_disconnect(error) else "refuses its claim"
            LOG.warning("A ticket goes back to the queue, the database %s: %s", what, short(error))
        self.keeper.report_trouble()
        self._shutdown_in_progress.wait(_PAUSE_SECONDS)

    def _run(self, claimed: Claimable, held: contextlib.ExitStack) -> Future[None] | None:
        state = claimed.state
        # The lease's word, not the ticket's, which can be anybody's.
        speak_of(state.order_id, state.request_id)
        context = TaskContext(
            task_id=claimed.task_id,
            order_id=state.order_id,
            task=state.task,
            step=state.step,
            retry_count=state.retry_count,
            poll_count=state.poll_count,
            crash_count=state.crash_count,
            request_id=state.request_id,
            checkpoint=lambda kept: checkpoint(self._engine, claimed, kept, holder=self.identity.holder),
        )
        running = self.running.add(claimed, context)
        held.callback(self.running.remove, claimed.task_id)
        self._claims.claimed()
        if self.shutdown_in_progress:
            context.tell_stopping()
        outcome = run_task(self._registry, claimed, context)
        # While outcomes cannot be stored, this thread waits for its own: nothing more is taken in than before.
        if len(self.running.snapshot()) > 2 * self._threads or not delivery.make_room():
            self._wake_for(self._outcomes.commit(running, outcome))
            return None
        stored: Future[None] = Future()
        left = held.pop_all()

        def done(finished: Finished | None) -> None:
            left.close()
            self._wake_for(finished)
            stored.set_result(None)

        self._outcomes.commit_later(running, outcome, done)
        return stored

    def _wake_for(self, finished: Finished | None) -> None:
        due = finished.due_in_seconds if finished else None
        if due is not None and due < _LONGEST_PERIOD * self._settings.schedule_period_seconds:
            self._waker.wake()

    # --- end of a drain, lost threads ---

    def _running_of(self, record: TaskRecord) -> Running | None:
        task_id = record.arguments.get("task_id")
        return self.running.get(task_id) if isinstance(task_id, str) else None

    def _interrupt(self, running: Running) -> str:
        claimed = running.claimed
        try:
            hand_back(
                self._engine,
                claimed,
                holder=self.identity.holder,
                run_seconds=self.running.seconds(running),
            )
            became = "returned to the retry list, due now"
        except LeaseLost:
            became = "its lease is gone: it ended at the last moment, or another worker has it"
        except Exception as error:  # noqa: BLE001
            state = claimed.state
            extra = about(state.order_id, state.request_id)
            LOG.warning(
                "order %s: task %s cannot be handed back: %s",
                state.order_id,
                claimed.task_id,
                short(error),
                extra=extra,
            )
            became = self._not_handed_back
        running.lose()
        return became

    def _look_at_waiting(self) -> None:
        self._unclear.settle()
        full = len(self.running.snapshot()) >= self._threads or self.shutdown_in_progress
        (self._claims.busy if full else self._claims.look)()

    def _overdue(self, running: Running) -> None:
        """A task has run too long: its thread counts as lost, and the drain does not wait for it."""
        for record in self.tracker.in_progress():
            if record.arguments.get("task_id") == running.claimed.task_id:
                self.tracker.record_end(record.key, failed=True)
        # A call that never returns is a crash already counted: it must not keep the turn of all suspects to come.
        if (permit := self._suspects.get(running.claimed.task_id)) is not None:
            permit.close()
        if sum(other.overdue for other in self.running.snapshot()) >= self._threads:
            self._on_all_lost()


def _is_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _ID_LENGTH and clean_text(value) == value
