"""One service in one process: start it, wait for signals, stop it once."""

import os
import signal
import threading
import time
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.conf import reload
from retryflow.errors import RetryflowError
from retryflow.service.base import BaseService
from retryflow.service.bounded import log_bounded
from retryflow.service.deadline import StopTimes
from retryflow.service.health_process import ProcessHealth
from retryflow.service.signals import Inbox, seconds_until
from retryflow.service.status import ExitStatus

LOG = logging.getLogger(__name__)

ABANDON_START_SECONDS = 0.7
UP_POLL_SECONDS = 0.1

STOP, HURRY, RELOAD, DUMP = b"T", b"H", b"R", b"D"


class Runner:
    """Runs what ``factory`` makes until it has stopped. The main thread does nothing but wait and decide.

    Start, reload and stop each run on a thread of their own, so that one that hangs never keeps a signal waiting.

    :param factory: makes the service, in this process.
    :param inbox: where signals arrive.
    :param on_ready: called when the service has started.
    :param on_up: called when it has also become ready to work for the first time: its broker and database are there.
    :param control: readable end of the master's pipe, if there is a master: its words, and end of file when it dies.
    :param number: of this worker process under its master.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        factory: Callable[[], BaseService],
        inbox: Inbox,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_up: Callable[[], None] = lambda: None,
        control: int | None = None,
        number: int = 0,
    ) -> None:
        self._conf = conf
        self._factory = factory
        self._inbox = inbox
        self._on_ready = on_ready
        self._on_up = on_up
        self._control = control
        self._has_master = control is not None
        self._service: BaseService | None = None
        self._times: StopTimes | None = None
        self._reason = ""
        self._interrupts = 0
        self._ready = False
        self._up = False
        self._reload_wanted = False
        self._reload_lock = threading.Lock()
        self._start_error: BaseException | None = None
        # Flags in place of a look at the threads: a thread that has said its last word is still alive for a moment.
        self._start_over = False
        self._stop_begun = False
        self._stop_over = False
        self._health = ProcessHealth(conf, number=number, several=self._has_master, ask_main=inbox.wake)

    def run(self) -> int:
        """Run it; the exit status is returned, and threads that did not end may still be running then."""
        threading.Thread(target=self._start, name="start", daemon=True).start()
        while True:
            self._health.turned()
            status = self._advance()
            if status is not None:
                self._health.stop()
                return status
            controls = () if self._control is None else (self._control,)
            signals, readable = self._inbox.wait(self._patience(), *controls)
            for number in signals:
                self._signalled(number)
            if readable:
                self._master_said()

    def _start(self) -> None:
        try:
            service = self._factory()
            service.tell_runner = self._inbox.wake
            service.several_processes = self._has_master
            self._service = service
            # After the assignment above: whichever thread comes second sees what the first has written.
            if self._times is not None:
                service.request_stop(self._times, self._reason)
            self._health.serve(service)
            service.start()
        except BaseException as error:  # noqa: BLE001
            self._start_error = error
        finally:
            self._start_over = True
            self._inbox.wake()

    def _advance(self) -> int | None:
        """Take the steps that have become possible; an exit status when all is over."""
        if self._stop_begun:
            return self._outcome()
        if not self._start_over:
            return self._abandon_start()
        if self._start_error is not None:
            return self._start_failed(self._start_error)
        assert self._service is not None
        if not self._ready and self._times is None:
            self._ready = True
            self._on_ready()
            self._health.started()
            if self._reload_wanted:
                self._reload()
        if self._ready and not self._up and self._times is None and self._health.is_ready():
            self._up = True
            self._on_up()
            self._health.up()
        if self._service.ended_because is not None:
            self._ask_stop(self._service.ended_because)
        if self._times is not None:
            self._begin_stop(self._service)
        return None

    def _abandon_start(self) -> int | None:
        if self._times is None or time.monotonic() < self._times.asked + ABANDON_START_SECONDS:
            return None
        if self._service is not None and self._service.busy():
            self._begin_stop(self._service)
            return None
        log_bounded(LOG.info, "Stopped while starting; nothing had been taken in")
        return ExitStatus.DRAINED

    def _start_failed(self, error: BaseException) -> int | None:
        if isinstance(error, RetryflowError | cfg.Error):
            LOG.error("Cannot start: %s", error)
        else:
            LOG.error("Cannot start", exc_info=error)
        if self._service is not None and self._service.busy():
            self._ask_stop("failed start")
            self._begin_stop(self._service)
            return None
        return ExitStatus.REFUSED

    def _begin_stop(self, service: BaseService) -> None:
        self._stop_begun = True
        threading.Thread(target=self._stop, args=(service,), name="stop", daemon=True).start()

    def _stop(self, service: BaseService) -> None:
        try:
            service.stop()
        except Exception:
            LOG.exception("The stop failed")
            service.exit_status = ExitStatus.INTERRUPTED
        finally:
            self._stop_over = True
            self._inbox.wake()

    def _outcome(self) -> int | None:
        assert self._service is not None
        assert self._times is not None
        if not self._stop_over:
            if time.monotonic() < self._times.end:
                return None
            log_bounded(LOG.error, "Graceful shutdown: graceful_shutdown_timeout has passed; ending the process")
            return ExitStatus.INTERRUPTED
        if self._service.exit_status != ExitStatus.DRAINED:
            return self._service.exit_status
        if self._start_error is not None:
            return ExitStatus.REFUSED
        return ExitStatus.DRAINED if self._service.ended_because is None else ExitStatus.WORKER_LOST

    def _patience(self) -> float | None:
        """Seconds until something is to be done even if nobody says anything."""
        if self._times is None:
            return UP_POLL_SECONDS if self._ready and not self._up else None
        return seconds_until(self._times.end if self._stop_begun else self._times.asked + ABANDON_START_SECONDS)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload()
        elif number == signal.SIGUSR2:
            self._health.report()
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._interrupts += number == signal.SIGINT
            self._ask_stop(signal.Signals(number).name)
            if self._interrupts > 1:
                self._hurry()

    def _master_said(self) -> None:
        assert self._control is not None
        words = os.read(self._control, 4096)
        if not words:
            os.close(self._control)
            self._control = None
            if self._times is None:
                log_bounded(LOG.warning, "The master process has died; this worker stops")
            self._ask_stop("death of the master process")
        if STOP in words or HURRY in words:
            self._ask_stop("the master process")
        if HURRY in words:
            self._hurry()
        if RELOAD in words:
            self._reload()
        if DUMP in words:
            self._health.report()

    def _ask_stop(self, reason: str) -> None:
        if self._times is not None:
            return
        self._reason = reason
        self._times = StopTimes.from_conf(self._conf, time.monotonic())
        self._health.stopping(reason)
        if self._service is not None:
            self._service.request_stop(self._times, reason)
        log_bounded(LOG.info, "Graceful shutdown: stopping because of %s", reason)

    def _hurry(self) -> None:
        if self._service is not None:
            self._service.hurry()
            log_bounded(LOG.info, "Graceful shutdown: not waiting any longer, as asked")

    def _reload(self) -> None:
        if not self._ready:
            self._reload_wanted = True
        elif self._times is None:
            threading.Thread(target=self._reload_now, name="reload", daemon=True).start()

    def _reload_now(self) -> None:
        assert self._service is not None
        with self._reload_lock:
            if self._times is not None:
                return
            try:
                reload(self._conf)
                self._service.reset()
                LOG.info("Configuration reloaded")
            except (cfg.Error, RetryflowError) as error:
                LOG.error("Cannot reload the configuration: %s; going on with the old one", error)
            except Exception:
                LOG.exception("Could not reset the service")
