"""The base class of a service author's manager: RPC methods, periodic tasks, and hooks around start and stop."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.service.drain import Drain
from retryflow.service.guru import Section
from retryflow.service.health import Check
from retryflow.service.oslo import periodic_task
from retryflow.tracking import TaskRecord, TaskTracker

LOG = logging.getLogger(__name__)


def _nobody() -> None:
    """Stand in for the service until there is one."""


class Manager(periodic_task.PeriodicTasks):  # type: ignore[misc]
    """Derive from it, add RPC methods and ``@periodic_task`` methods, and override the hooks that you need.

    The hooks in the order of a life: :meth:`init_host`, :meth:`pre_start`, (the RPC server starts), :meth:`post_start`,
    :meth:`reset` at each SIGHUP, and on the stop :meth:`drain_started`, :meth:`graceful_shutdown`,
    :meth:`interrupt_tasks` if anything is left, :meth:`cleanup_host`.

    :param conf: the configuration.
    :param tracker: where tasks are recorded; ``None`` makes a new one.
    """

    _periodic_tasks: list[tuple[str, Callable[["Manager", Any], Any]]]

    def __init__(self, conf: cfg.ConfigOpts = cfg.CONF, *, tracker: TaskTracker | None = None) -> None:
        super().__init__(conf)
        self.tracker = tracker or TaskTracker()
        self.additional_endpoints: list[object] = []
        self.ended_because: str | None = None
        self.tell_service: Callable[[], None] = _nobody
        self._shutdown_in_progress = threading.Event()
        # PeriodicTasks keeps its list on the class; this manager's own copy records each run.
        self._periodic_tasks = [(name, _recorded(name, task)) for name, task in self._periodic_tasks]

    @property
    def shutdown_in_progress(self) -> bool:
        """Whether the stop has begun: nothing new is taken in."""
        return self._shutdown_in_progress.is_set()

    def begin_shutdown(self) -> None:
        """Set the flag that skips periodic tasks from now on; the service calls it first thing in a stop."""
        self._shutdown_in_progress.set()

    def end(self, reason: str) -> None:
        """Say that this manager can do its work no longer. Any thread may call it; returns at once.

        The process drains as after SIGTERM and ends with status 4, or 3 if something was interrupted; a master replaces
        it. Called during the start, it lets that come to its end first: to refuse the start, raise an exception.

        :param reason: for the log and the report, in words that follow "stopping because of".
        """
        self.ended_because = reason
        self.tell_service()

    def periodic_tasks(self, context: Any, raise_on_error: bool = False) -> float:
        """Run the periodic tasks that are due; the service's timer calls it.

        During a shutdown nothing is run, and a round that is under way ends after the task that is running.

        :param context: given to each task.
        :param raise_on_error: raise what a task raises, in place of logging it.
        :returns: seconds until the next one is due. Always a number: the timer of Nova, which the specification's
            sample gives None, raised in the middle of the drain and took the process with it.
        """
        if self.shutdown_in_progress:
            LOG.debug("Skipping periodic tasks during graceful shutdown")
            return self._idle_seconds()
        return float(self.run_periodic_tasks(context, raise_on_error=raise_on_error))

    def _idle_seconds(self) -> float:
        spacings = [float(self._periodic_spacing[name]) for name, _task in self._periodic_tasks]
        return min(spacings, default=float(periodic_task.DEFAULT_INTERVAL))

    def init_host(self) -> None:
        """First step of the start: check and prepare what the service needs. Does nothing by default.

        It may block until a database or a broker is there; a SIGTERM meanwhile ends the process. An exception ends the
        start: status 1, with the message if it is a :class:`~retryflow.errors.RetryflowError`, else with a traceback.
        """

    def pre_start(self) -> None:
        """Just before the RPC server starts. Does nothing by default; an exception ends the start."""

    def post_start(self) -> None:
        """Just after the RPC server has started and before timers do. Does nothing by default.

        An exception ends the start; what the server has taken in meanwhile is drained.
        """

    def reset(self) -> None:
        """At SIGHUP, after the options that can change have been read anew. Does nothing by default.

        Runs beside the tasks, never during a shutdown. An exception is logged, and the service goes on.
        """

    def drain_started(self) -> None:
        """The stop has begun, and the tasks in progress may be told. Does nothing by default.

        It must not block: no log line, no server. An exception is logged, and the stop goes on.
        """

    def graceful_shutdown(self, drain: Drain) -> None:
        """Wait for the tasks in progress: nothing new comes in any more. By default just that.

        Override it to do something before or after ``super().graceful_shutdown(drain)``; look at ``drain.until``, the
        one deadline of the whole stop. After it has returned, or raised (which is logged), the service waits for
        whatever is still in progress.
        """
        drain.wait()

    def interrupt_tasks(self, records: Sequence[TaskRecord]) -> Mapping[int, str]:
        """The deadline has passed and these are left: give them back to whoever can do them again.

        By default nothing is done. An exception is logged; it and a call that takes longer than the reserve (3 seconds)
        leave the tasks abandoned.

        :returns: by the record's key what became of it, in words for the operator; one not named is "abandoned".
        """
        return {}

    def health_checks(self) -> Sequence[Check]:
        """What there is to say of the manager's health; nothing by default. It must not wait for anything.

        :returns: checks, each of which says which answers it decides. Let ``alive`` depend only on what a restart of
            the process would mend.
        """
        return ()

    def report_sections(self) -> Mapping[str, Section]:
        """What a Guru Meditation report (SIGUSR2) says besides the tasks in progress; nothing by default.

        :returns: functions by title, each of which returns a mapping when a report is made.
        """
        return {}

    def cleanup_host(self) -> None:
        """Last step of the stop, before connections close. Does nothing by default.

        An exception is logged. It is given a limited time (see :class:`~retryflow.service.worker.WorkerService`).
        """


def _recorded(name: str, task: Callable[[Manager, Any], Any]) -> Callable[[Manager, Any], Any]:
    @functools.wraps(task)
    def run(manager: Manager, context: Any) -> Any:
        key = manager.tracker.record_start(name, request_id=getattr(context, "request_id", None), kind="periodic")
        failed = True
        try:
            # Looked at after the record exists: either the drain waits for this run, or this run sees the drain.
            result = None if manager.shutdown_in_progress else task(manager, context)
            failed = False
            return result
        finally:
            manager.tracker.record_end(key, failed=failed)

    return run
