"""What the runner needs of a service, beyond oslo.service's own interface."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from oslo_config import cfg

from retryflow.service.deadline import StopTimes
from retryflow.service.guru import Section
from retryflow.service.health import Check
from retryflow.service.oslo import service
from retryflow.service.report import Report, report_path
from retryflow.service.status import ExitStatus


def _nobody() -> None:
    """Stand in for the runner until there is one."""


class BaseService(service.Service):  # type: ignore[misc]
    """An oslo.service Service whose stop is asked for once, has one deadline, and says how it went.

    A derived class does its work in :meth:`start` (quickly, or looking at :attr:`stop_requested` between its steps) and
    :meth:`stop`, which blocks until all is over, honours :attr:`stop_times` and sets :attr:`exit_status`.

    :param conf: the configuration.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self.conf = conf
        self.exit_status: int = ExitStatus.DRAINED
        self.stop_requested = threading.Event()
        self.stop_times: StopTimes | None = None
        self.stop_reason = "stop"
        self.several_processes = False
        self.ended_because: str | None = None
        self.tell_runner: Callable[[], None] = _nobody
        self.file_report: Callable[[Report], None] = self._write_report
        self._stopped = threading.Event()

    def request_stop(self, times: StopTimes, reason: str) -> None:
        """Ask for the stop; returns at once. The runner calls :meth:`stop` afterwards, on another thread.

        :param times: the moments of the stop; only the first request counts.
        :param reason: for the log and the report: a signal's name, for example.
        """
        if self.stop_times is None:
            self.stop_times = times
            self.stop_reason = reason
        self.stop_requested.set()

    def hurry(self) -> None:
        """Give up waiting for tasks now; returns at once."""

    def busy(self) -> bool:
        """Whether work may have been taken in, so that :meth:`stop` must run; asked when a start fails or hangs."""
        return False

    def health_checks(self) -> Sequence[Check]:
        """What there is to say of this service's health, besides whether it has started; must not wait for anything."""
        return ()

    def health_probe(self) -> None:
        """Called every few seconds where health is reported: ask what answers later; must not wait either."""

    def report_sections(self) -> Mapping[str, Section]:
        """What a Guru Meditation report says of this service: functions by title, called when one is made."""
        return {}

    def end(self, reason: str) -> None:
        """Ask, from inside, that this process stops: it cannot do its work any more. Its exit status will be 4.

        :param reason: for the log.
        """
        self.ended_because = reason
        self.tell_runner()

    def times(self) -> StopTimes:
        """The moments of the stop; if nobody has asked for it, they begin now."""
        if self.stop_times is None:
            self.request_stop(StopTimes.from_conf(self.conf, time.monotonic()), "stop")
        assert self.stop_times is not None
        return self.stop_times

    def stop(self, graceful: bool = True) -> None:
        """Stop timers and threads; a derived class does its own first."""
        self.times()
        self.tg.stop_timers()
        self._stopped.set()

    def _write_report(self, made: Report) -> None:
        if self.conf.shutdown_report_file:
            made.write(report_path(self.conf.shutdown_report_file, several_processes=self.several_processes))

    def wait(self) -> None:
        """Block until the service has stopped."""
        self._stopped.wait()
