"""The Guru Meditation report (oslo.reports) that a daemon writes at SIGUSR2: stacks, options, and what it is doing.

The report is made on a thread of its own. The library's own handler makes it inside the signal handler, where it could
wait for a lock that the interrupted code holds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oslo_config import cfg

import retryflow
from retryflow.errors import ConfigurationError

Section = Callable[[], Mapping[str, Any]]

# A signal to the whole group, and the master's word about the same signal, are one wish.
_ONCE_IN_SECONDS = 0.5


def require_watched_file(conf: cfg.ConfigOpts) -> None:
    """Look at the file of ``[oslo_reports] file_event_handler``, if one is set.

    :raises ConfigurationError: there is no such file.
    """
    options = getattr(conf, "oslo_reports", None)
    if not options or not options.file_event_handler:
        return
    try:
        Path(options.file_event_handler).stat()
    except OSError as error:
        raise _unwatchable(options.file_event_handler, error) from None


def _unwatchable(name: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"[oslo_reports] file_event_handler {name} cannot be watched ({error.strerror}); make the file, and touch it "
        "whenever a report is wanted"
    )


class _Version:
    """What the library asks of a version object."""

    def vendor_string(self) -> str:
        return "retryflow"

    def product_string(self) -> str:
        return "retryflow"

    def version_string_with_package(self) -> str:
        return retryflow.__version__


class GuruReport:
    """Writes the report to standard error, or to a file in ``[oslo_reports] log_dir``.

    :param prog: the program's name.
    :param sections: gives, when a report is made, the sections of this process by title.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        prog: str,
        sections: Callable[[], Mapping[str, Section]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = getattr(conf, "oslo_reports", None)
        self._prog = prog
        self._sections = sections
        self._clock = clock
        self._asked_at = float("-inf")

    def watch(self) -> None:
        """Watch the file of ``[oslo_reports] file_event_handler``, if one is set.

        :raises ConfigurationError: there is no such file.
        """
        options = self._options
        if not options or not options.file_event_handler:
            return
        try:
            report = self._report_class()
            report.setup_autorun(_Version(), self._service_name(), conf=self._conf_of(options), setup_signal=False)
        except OSError as error:
            raise _unwatchable(options.file_event_handler, error) from None

    def ask(self) -> None:
        """Make a report, on a thread of its own; returns at once."""
        now = self._clock()
        if now - self._asked_at >= _ONCE_IN_SECONDS:
            self._asked_at = now
            threading.Thread(target=self._write, name="guru-meditation", daemon=True).start()

    def _write(self) -> None:
        directory = self._options.log_dir if self._options else None
        self._report_class().handle_signal(_Version(), self._service_name(), directory, None)

    def _service_name(self) -> str:
        return f"{self._prog}-{os.getpid()}"

    @staticmethod
    def _conf_of(options: Any) -> Any:
        class Conf:
            oslo_reports = options

        return Conf

    def _report_class(self) -> Any:
        # Not needed before somebody asks.
        from oslo_reports.guru_meditation_report import TextGuruMeditation
        from oslo_reports.models.with_default_views import ModelWithDefaultViews

        def generator(section: Section) -> Callable[[], Any]:
            def generate() -> Any:
                try:
                    return ModelWithDefaultViews(dict(section()))
                except Exception as error:  # noqa: BLE001 - one section must not cost the others
                    return ModelWithDefaultViews({"cannot be told": type(error).__name__})

            return generate

        class Report(TextGuruMeditation):
            persistent_sections = [(title, generator(section)) for title, section in self._sections().items()]  # noqa: RUF012

        return Report
