"""The health of one process: what its runner knows, and what its service knows."""

from __future__ import annotations

import time
from collections.abc import Callable

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.service.base import BaseService
from retryflow.service.guru import GuruReport, Section
from retryflow.service.health import EVERYTHING, READY, USABLE, Check, Health, age
from retryflow.service.health_place import place_of
from retryflow.service.health_reporter import HealthReporter
from retryflow.service.health_systemd import Supervisor

LOG = logging.getLogger(__name__)

# Far longer than the main thread ever takes: it only waits and decides.
MAIN_THREAD_SECONDS = 60.0


class ProcessHealth:
    """Keeps what the runner tells it, and tells the world.

    :param number: of this worker process under its master.
    :param several: whether there is a master.
    :param ask_main: makes the main thread turn once, and call :meth:`turned`.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        number: int,
        several: bool,
        ask_main: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask_main = ask_main
        self._clock = clock
        self._service: BaseService | None = None
        self._turned_at = clock()
        self._started = False
        self._stopping_because: str | None = None
        self._supervisor = Supervisor()
        self._place = place_of(conf, number=number, several=several)
        self._conf = conf
        self._reporter: HealthReporter | None = None
        self._guru = GuruReport(conf, prog=self._place.prog, sections=self._sections)

    def turned(self) -> None:
        """The main thread is alive."""
        self._turned_at = self._clock()

    def serve(self, service: BaseService) -> None:
        """Begin to tell; called before the service starts, since that may take as long as the database is away.

        :raises retryflow.errors.ConfigurationError: ``[health]`` cannot be used as it is set.
        """
        self._service = service
        self._reporter = HealthReporter(
            self._conf, place=self._place, supervisor=self._supervisor, checks=self.checks, probe=self._probe
        )
        self._reporter.start()
        self._guru.watch()

    def started(self) -> None:
        """The service has started."""
        self._started = True

    def up(self) -> None:
        """It has become ready for the first time."""
        self._supervisor.ready()

    def is_ready(self) -> bool:
        """Whether it is ready now."""
        return Health(self.checks()).answer(READY)

    def stopping(self, reason: str) -> None:
        """The stop has begun."""
        self._stopping_because = reason
        self._supervisor.stopping(reason)

    def report(self) -> None:
        """Write a Guru Meditation report, on a thread of its own."""
        self._guru.ask()

    def stop(self) -> None:
        """The process ends."""
        if self._reporter is not None:
            self._reporter.stop()

    def checks(self) -> list[Check]:
        """All checks of this moment."""
        turned = age(
            "main_thread",
            seconds=self._clock() - self._turned_at,
            limit_seconds=MAIN_THREAD_SECONDS,
            what="the main thread's last sign of life",
            decides=EVERYTHING,
        )
        return [turned, self._stage(), *self._of_service()]

    def _stage(self) -> Check:
        if self._stopping_because is not None:
            return Check(
                name="stage",
                good=False,
                says=f"stopping because of {self._stopping_because}",
                decides=frozenset((READY,)),
            )
        return Check(name="stage", good=self._started, says="started" if self._started else "starting", decides=USABLE)

    def _of_service(self) -> list[Check]:
        if self._service is None:
            return []
        try:
            return list(self._service.health_checks())
        except Exception as error:
            LOG.exception("The health of %s cannot be told", type(self._service).__name__)
            return [Check(name="service", good=False, says=f"cannot be told: {type(error).__name__}")]

    def _sections(self) -> dict[str, Section]:
        service = {} if self._service is None else self._service.report_sections()
        return {"Health": lambda: Health(self.checks()).as_dict(), **service}

    def _probe(self) -> None:
        self._ask_main()
        if self._service is not None:
            self._service.health_probe()
