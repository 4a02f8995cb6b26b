"""Several services in one process, as one: started in order, stopped at the same time with the same deadline."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.service.base import BaseService
from retryflow.service.bounded import BoundedCall
from retryflow.service.deadline import StopTimes
from retryflow.service.guru import Section
from retryflow.service.health import Check, prefixed
from retryflow.service.report import Report, together
from retryflow.service.signals import seconds_until
from retryflow.service.status import ExitStatus, worst

LOG = logging.getLogger(__name__)


class ServiceGroup(BaseService):
    """A service made of services. Grace periods do not add up: all of them stop at once.

    :param services: in the order in which they start.
    """

    def __init__(self, conf: cfg.ConfigOpts, services: Sequence[BaseService]) -> None:
        super().__init__(conf)
        self.services = list(services)
        self._reports: dict[int, Report] = {}
        self._filing = threading.Lock()
        for number, member in enumerate(self.services):
            member.tell_runner = self._look_for_an_end
            member.file_report = partial(self._file_report_of, number)
        self._look_for_an_end()

    def start(self) -> None:
        """Start each; ends early once the stop has been asked for."""
        for member in self.services:
            if self.stop_requested.is_set():
                return
            member.several_processes = self.several_processes
            member.start()

    def request_stop(self, times: StopTimes, reason: str) -> None:
        """Ask every member."""
        super().request_stop(times, reason)
        for member in self.services:
            member.request_stop(times, reason)

    def hurry(self) -> None:
        """Hurry every member."""
        for member in self.services:
            member.hurry()

    def busy(self) -> bool:
        """Whether any member is."""
        return any(member.busy() for member in self.services)

    def health_checks(self) -> list[Check]:
        """Those of every member, under its name."""
        members = zip(self._names(), self.services, strict=True)
        return [check for name, member in members for check in prefixed(name, member.health_checks())]

    def health_probe(self) -> None:
        """Pass it on."""
        for member in self.services:
            member.health_probe()

    def report_sections(self) -> dict[str, Section]:
        """Those of every member; where two have one of the same title, its name is added."""
        found: dict[str, Section] = {}
        for name, member in zip(self._names(), self.services, strict=True):
            for title, section in member.report_sections().items():
                found[f"{title} ({name})" if title in found else title] = section
        return found

    def _names(self) -> list[str]:
        """Their classes', numbered where several have the same."""
        names = [type(member).__name__ for member in self.services]
        return [
            name if names.count(name) == 1 else f"{name}-{names[: place + 1].count(name)}"
            for place, name in enumerate(names)
        ]

    def reset(self) -> None:
        """Pass a SIGHUP on; one that fails does not keep it from the others."""
        for member in self.services:
            try:
                member.reset()
            except Exception:
                LOG.exception("Could not reset %s", type(member).__name__)

    def stop(self, graceful: bool = True) -> None:
        """Stop all of them at the same time; the worst exit status is that of the group."""
        times = self.times()
        calls = [(member, BoundedCall(f"stop {type(member).__name__}", member.stop)) for member in self.services]
        for member, call in calls:
            if not call.wait(seconds_until(times.end)) or call.failed:
                member.exit_status = ExitStatus.INTERRUPTED
        self.exit_status = worst(member.exit_status for member in self.services)
        with self._filing:
            # A member that has none of its own, or hangs, counts too.
            if self._reports and self._report().exit_status != self.exit_status:
                self.file_report(replace(self._report(), exit_status=self.exit_status))
        super().stop(graceful)

    def _file_report_of(self, number: int, made: Report) -> None:
        """File a member's report with those of the others; each time anew, since one that hangs never makes its own."""
        with self._filing:
            self._reports[number] = made
            self.file_report(self._report())

    def _report(self) -> Report:
        return together([self._reports[number] for number in sorted(self._reports)])

    def _look_for_an_end(self) -> None:
        for member in self.services:
            if member.ended_because is not None:
                self.end(member.ended_because)
                return
