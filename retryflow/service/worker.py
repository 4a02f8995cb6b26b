"""A service that takes RPC messages and runs periodic tasks for a manager."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_log import log as logging

from retryflow.errors import RetryflowError
from retryflow.service import guru_tasks, report
from retryflow.service.base import BaseService
from retryflow.service.bounded import BoundedCall
from retryflow.service.deadline import StopTimes
from retryflow.service.drain import Drain
from retryflow.service.guru import Section
from retryflow.service.health import Check
from retryflow.service.health_broker import BrokerChecks
from retryflow.service.manager import Manager
from retryflow.service.signals import seconds_until
from retryflow.service.status import ExitStatus
from retryflow.tracking import TaskRecord, TrackingEndpointWrapper

LOG = logging.getLogger(__name__)

INTAKE_SECONDS = 1.0
INTAKE_CONFIRM_SECONDS = 2.0
REPLY_SECONDS = 5.0


class Server(Protocol):
    """What a service needs of the thing that takes messages in; ``retryflow.queue.server`` makes one."""

    @property
    def consuming(self) -> bool:
        """Whether it takes messages in."""
        ...

    def start(self) -> None:
        """Begin to take messages in; may block while the broker is away."""
        ...

    def stop_intake(self) -> Sequence[object]:
        """Take nothing in from now on; give back, and return, what has been received and not started."""
        ...

    def wait(self, deadline: float) -> bool:
        """Wait, until ``deadline`` on the monotonic clock, for what has been started, replies included."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


ServerFactory = Callable[[list[object]], Server]


class WorkerService(BaseService):
    """Runs a manager: its hooks, its RPC server, its periodic tasks, its stop.

    :param conf: the configuration.
    :param manager: whose methods are called.
    :param server_factory: makes the server from the wrapped endpoints; ``None`` for a service without RPC. Called in
        :meth:`start`, that is in the process that serves.
    :param periodic_interval_seconds: longest time between two looks at the periodic tasks, the first of which comes
        with the start; 0: no periodic tasks.
    :param cleanup_seconds: what closing connections and ``cleanup_host`` may take at the end; after it they are left
        to themselves, for whatever they wait for is away.
    :raises RetryflowError: ``manager`` is not one, or was not initialised.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        manager: Manager,
        *,
        server_factory: ServerFactory | None = None,
        periodic_interval_seconds: float = 60.0,
        cleanup_seconds: float = 1.0,
    ) -> None:
        super().__init__(conf)
        if not isinstance(manager, Manager) or not hasattr(manager, "tracker"):
            raise RetryflowError(
                f"the manager is an object of the class {type(manager).__name__}, which must derive from "
                "retryflow.service.manager.Manager, and whose __init__ must call super().__init__()"
            )
        self.manager = manager
        self.server: Server | None = None
        self._server_factory = server_factory
        self._periodic_interval_seconds = periodic_interval_seconds
        self._cleanup_seconds = cleanup_seconds
        self._drain: Drain | None = None
        self._hurried = False
        self._stop_once = threading.Lock()
        self._initialised = False
        self._broker = BrokerChecks(conf)
        manager.tell_service = self._look_for_an_end
        self._look_for_an_end()

    def _look_for_an_end(self) -> None:
        if self.manager.ended_because is not None:
            self.end(self.manager.ended_because)

    def health_checks(self) -> list[Check]:
        """Whether messages come in, and what the manager says."""
        broker = [] if self._server_factory is None else [self._broker.check(self.server)]
        return [*broker, *self.manager.health_checks()]

    def health_probe(self) -> None:
        """Ask the broker for a sign of life."""
        self._broker.ask(self.server)

    def report_sections(self) -> dict[str, Section]:
        """The tasks in progress, and what the manager adds."""
        in_progress = self.manager.tracker.in_progress
        return {"Tasks in progress": lambda: guru_tasks.tasks(in_progress()), **self.manager.report_sections()}

    def start(self) -> None:
        """Run the hooks and begin to take work in; ends early once the stop has been asked for."""
        for step in (self._initialise, self.manager.pre_start, self._start_server, self.manager.post_start):
            if self.stop_requested.is_set():
                return
            step()
        if self._periodic_interval_seconds and not self.stop_requested.is_set():
            self.tg.add_dynamic_timer_args(
                self._periodic_round,
                # The first look comes at once: it runs what is to run immediately, and learns when the next is due.
                initial_delay=None,
                periodic_interval_max=self._periodic_interval_seconds,
                stop_on_exception=False,
            )

    def _initialise(self) -> None:
        self.manager.init_host()
        self._initialised = True

    def _start_server(self) -> None:
        if self._server_factory is None:
            return
        endpoints = [self.manager, *self.manager.additional_endpoints]
        tracked: list[object] = [TrackingEndpointWrapper(endpoint, self.manager.tracker) for endpoint in endpoints]
        self.server = self._server_factory(tracked)
        self.server.start()

    def _periodic_round(self) -> float:
        try:
            return self.manager.periodic_tasks(oslo_context.RequestContext())
        except Exception:
            # oslo.service would run the next round without any pause.
            LOG.exception("Periodic tasks failed; the next round comes in %.0f s", self._periodic_interval_seconds)
            return self._periodic_interval_seconds

    def reset(self) -> None:
        """Pass a SIGHUP on to the manager."""
        self.manager.reset()

    def request_stop(self, times: StopTimes, reason: str) -> None:
        """Ask for the stop; hooks of the manager that wait for something can see it at once."""
        super().request_stop(times, reason)
        self.manager.begin_shutdown()

    def busy(self) -> bool:
        """Whether messages come in or any task is in progress."""
        return not self.manager.tracker.idle or (self.server is not None and self.server.consuming)

    def hurry(self) -> None:
        """End the wait for tasks now."""
        self._hurried = True
        if self._drain is not None:
            self._drain.hurry()

    def stop(self, graceful: bool = True) -> None:
        """The stop sequence: intake off, hand back, wait, interrupt what is left, report, close.

        Blocks until it is over, at most until the deadlines; a second call waits for the first.
        """
        with self._stop_once:
            if not self._stopped.is_set():
                self._stop()
                super().stop(graceful)

    def _stop(self) -> None:
        times = self.times()
        drain = self._drain = Drain(self.manager.tracker, times)
        if self._hurried:
            drain.hurry()
        self.manager.begin_shutdown()
        self.tg.stop_timers()
        drain.begin()
        intake = None if self.server is None else BoundedCall("stop the intake of messages", self.server.stop_intake)
        self._guarded("tell the tasks in progress that the service stops", self.manager.drain_started)
        drain.log_beginning()
        if intake is not None:
            # Normally a round trip to the broker; while that is away, the tasks in progress matter more.
            intake.wait(INTAKE_SECONDS)
        self._guarded("run the graceful_shutdown hook", lambda: self.manager.graceful_shutdown(drain))
        self._wait_for_replies(drain)
        handed_back = [] if intake is None else self._handed_back(intake, drain)
        left = drain.left()
        interrupted = self._interrupt(left, drain)
        tasks = [*(report.of_end(end) for end in drain.ends), *handed_back, *interrupted]
        if report.interrupted(tasks):
            self.exit_status = ExitStatus.INTERRUPTED
        self._report(tasks, times.asked)
        self._close(times.end)

    def _wait_for_replies(self, drain: Drain) -> None:
        """Wait for what the tracker cannot see: a message just before its method, and a reply just after."""
        while drain.wait():
            if self.server is None:
                return
            # Bounded, because methods that are untracked on purpose are not waited for.
            until = min(drain.until, time.monotonic() + REPLY_SECONDS)
            BoundedCall("wait for the last replies", partial(self.server.wait, until)).wait(seconds_until(until))
            if self.manager.tracker.idle:
                return

    def _handed_back(self, intake: BoundedCall[Sequence[object]], drain: Drain) -> list[report.Disposition]:
        # What is left of the reserve belongs to the tasks to be given back.
        patience = INTAKE_CONFIRM_SECONDS if self.manager.tracker.idle else seconds_until(drain.until)
        answered = intake.wait(patience) and not intake.failed
        # Whoever had nothing in hand has nothing to be confirmed.
        if not answered or (intake.result and getattr(self.server, "unconfirmed", False)):
            LOG.warning("Graceful shutdown: the broker did not confirm the end of the intake; it redelivers by itself")
            self.exit_status = ExitStatus.INTERRUPTED
        return [report.of_handed_back(item) for item in intake.result or ()]

    def _interrupt(self, left: list[TaskRecord], drain: Drain) -> list[report.Disposition]:
        if not left:
            return []
        drain.log_left(left)
        call = BoundedCall("give the interrupted tasks back", lambda: dict(self.manager.interrupt_tasks(left)))
        answered = call.wait(seconds_until(drain.times.interrupt_until))
        became = call.result or {}
        if not answered:
            LOG.warning("Graceful shutdown: giving tasks back took too long; they are abandoned")
        # One of which nothing is said may have come to its own end meanwhile.
        ends = {end.record.key: end for end in self.manager.tracker.take_ends(0) if end.record.key not in became}
        return [
            report.of_end(ends[record.key])
            if record.key in ends
            else report.of_interrupted(record, drain.seconds(record), became.get(record.key))
            for record in left
        ]

    def _report(self, tasks: list[report.Disposition], asked: float) -> None:
        made = report.Report(
            service=type(self.manager).__name__,
            reason=self.stop_reason,
            seconds=time.monotonic() - asked,
            exit_status=self.exit_status,
            tasks=tuple(tasks),
        )
        made.log()
        self.file_report(made)

    def _close(self, end: float) -> None:
        until = min(end, time.monotonic() + self._cleanup_seconds)
        for what, step in (("clean up", self._clean_up), ("close the server", self._close_server)):
            if not BoundedCall(what, step).wait(seconds_until(until)):
                LOG.warning("Graceful shutdown: could not %s in time; leaving it", what)

    def _clean_up(self) -> None:
        if self._initialised:
            self.manager.cleanup_host()

    def _close_server(self) -> None:
        if self.server is not None:
            self.server.close()

    @staticmethod
    def _guarded(what: str, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            LOG.exception("Could not %s; the stop goes on", what)
