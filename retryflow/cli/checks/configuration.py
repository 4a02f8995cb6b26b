"""The configuration: values out of range, values that contradict each other, and places that are not there."""

from __future__ import annotations

from collections.abc import Iterator

from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.cli.checks.finding import BROKEN, WARNING, Finding
from retryflow.conf.places import require_log, require_writable
from retryflow.conf.validation import contradictions, unreadable
from retryflow.errors import ConfigurationError

CHECK = "configuration"
_OTHER_USER = "; or run doctor as the daemons' user, who may be allowed it"


def check(conf: cfg.ConfigOpts) -> Iterator[Finding]:
    """Everything for which a daemon would refuse to start; and options that are without effect."""
    configuration.register_all(conf)
    no_values = [broken(line) for line in unreadable(conf)]
    yield from no_values or (broken(line) for line in contradictions(conf))
    try:
        yield from _refused(conf)
        yield from _places(conf)
    except cfg.Error:
        # One of the values that cannot be read, which are told by now.
        if not no_values:
            raise
    for line in configuration.unknown_names(conf):
        what, _, remedy = line.partition("; ")
        yield Finding(check="unknown-option", severity=WARNING, what=what, remedy=remedy or "remove it")


def broken(line: str) -> Finding:
    """:param line: what a daemon would say when it refuses to start.
    :returns: the finding."""
    what, _, remedy = line.rpartition("; ")
    return Finding(check=CHECK, what=what or line, remedy=remedy if what else "mend the configuration")


def _refused(conf: cfg.ConfigOpts) -> Iterator[Finding]:
    from retryflow.service import app

    try:
        require_log(conf)
    except ConfigurationError as error:
        what, _, remedy = str(error).partition("; ")
        only_this_user = _is_of_rights(error)
        yield Finding(
            check=CHECK,
            severity=WARNING if only_this_user else BROKEN,
            what=what,
            remedy=remedy + (_OTHER_USER if only_this_user else ""),
        )
    for refusal in app.refusals(conf, workers=int(conf.queue.asynchronous_workers)):
        what, _, remedy = str(refusal).partition("; ")
        yield Finding(check=CHECK, what=what, remedy=remedy or "mend the configuration")


def _is_of_rights(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, PermissionError):
        error = error.__cause__
    return error is not None


def _places(conf: cfg.ConfigOpts) -> Iterator[Finding]:
    """Files without which a daemon works, and that somebody waits for."""
    from retryflow.service.health_place import place_of
    from retryflow.service.report import report_path

    places = {}
    if conf.health.file:
        places["[health] file"] = place_of(conf, number=0, several=False).file(conf.health.file)
    if conf.shutdown_report_file:
        places["[DEFAULT] shutdown_report_file"] = report_path(conf.shutdown_report_file, several_processes=False)
    for name, path in places.items():
        try:
            require_writable(path, replaced=True)
        except OSError as error:
            only_this_user = isinstance(error, PermissionError)
            yield Finding(
                check=CHECK,
                severity=WARNING,
                what=f"{name} {path} cannot be written ({error.strerror}): daemons work, and nobody is told",
                remedy="make its directory, writable for the daemons" + (_OTHER_USER if only_this_user else ""),
            )
