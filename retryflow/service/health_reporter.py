"""The thread that tells a process's health: into a file, to systemd, and over HTTP when it is asked."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.service.health import ALIVE, Check, Health
from retryflow.service.health_file import write_whole
from retryflow.service.health_place import Place
from retryflow.service.health_systemd import Supervisor

if TYPE_CHECKING:
    from retryflow.service.health_http import HealthServer

LOG = logging.getLogger(__name__)

_QUIET_SECONDS = 60.0
# A file system that hangs must not hold up the end of the process.
_PATIENCE_SECONDS = 0.5


class HealthReporter:
    """Looks at a process again and again, and tells. Nothing is started if nobody wants to know.

    :param place: which process this is.
    :param supervisor: what systemd wants to hear.
    :param checks: makes the checks of this moment; must not wait for anything.
    :param probe: called before each look, to ask whatever answers later; must not wait either.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        place: Place,
        supervisor: Supervisor,
        checks: Callable[[], Sequence[Check]],
        probe: Callable[[], None],
    ) -> None:
        # A service of somebody else's may not have registered our options.
        options = getattr(conf, "health", None)
        self._prog = place.prog
        self._supervisor = supervisor
        self._checks = checks
        self._probe = probe
        self._file: Path | None = place.file(options.file) if options and options.file else None
        self._address = place.address(options.address) if options and options.address else None
        self._interval_seconds: float = options.interval_seconds if options else 5.0
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._complained_at = float("-inf")
        self._server: HealthServer | None = None

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self._file or self._address or self._supervisor.watchdog_seconds)

    def look(self) -> Health:
        """The answers of this moment."""
        return Health(self._checks())

    def start(self) -> None:
        """Begin to tell.

        :raises retryflow.errors.ConfigurationError: the HTTP address cannot be used.
        """
        if not self.wanted:
            return
        if self._address is not None:
            from retryflow.service.health_http import HealthServer, application

            self._server = HealthServer(self._address, application(self.look))
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def stop(self) -> None:
        """Tell nothing more: what is left behind would be taken for the word of a living process."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        if self._file is not None and self._writing.acquire(timeout=_PATIENCE_SECONDS):
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
            self._writing.release()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tell()
            except Exception as error:  # noqa: BLE001
                self._complain(error)
            self._stopping.wait(min(self._interval_seconds, self._supervisor.watchdog_seconds or float("inf")))

    def _tell(self) -> None:
        self._probe()
        health = self.look()
        if health.answer(ALIVE):
            self._supervisor.alive()
        if self._file is not None:
            text = json.dumps({"prog": self._prog, **health.as_dict()}, indent=2)
            with self._writing:
                if not self._stopping.is_set():
                    write_whole(self._file, text + "\n")

    def _complain(self, error: Exception) -> None:
        if time.monotonic() - self._complained_at >= _QUIET_SECONDS:
            self._complained_at = time.monotonic()
            LOG.error("Cannot tell the health of this process ([health] file %s): %s", self._file, error)
