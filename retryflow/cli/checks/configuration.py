"""The configuration: values out of range, and values that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.cli.checks.finding import WARNING, Finding
from retryflow.conf.validation import contradictions, unreadable
from retryflow.errors import ConfigurationError

CHECK = "configuration"


def check(conf: cfg.ConfigOpts) -> Iterator[Finding]:
    """Everything for which a daemon would refuse to start; and options that are without effect."""
    configuration.register_all(conf)
    for line in list(unreadable(conf)) or list(contradictions(conf)):
        what, _, remedy = line.rpartition("; ")
        yield Finding(check=CHECK, what=what or line, remedy=remedy)
    from retryflow.queue.transport import refuse_unknown_driver
    from retryflow.service import app

    for look in (refuse_unknown_driver, app.check):
        try:
            look(conf)
        except ConfigurationError as error:
            what, _, remedy = str(error).partition("; ")
            yield Finding(check=CHECK, what=what, remedy=remedy or "mend the configuration")
            break
    for line in configuration.unknown_names(conf):
        what, _, remedy = line.partition("; ")
        yield Finding(check="unknown-option", severity=WARNING, what=what, remedy=remedy or "remove it")
