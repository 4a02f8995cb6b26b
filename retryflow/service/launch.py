"""The way in: run a service in this process, or in several worker processes beneath it.

(oslo.service's own launchers are not used: on the threading backend they lose the exit status of a failed drain,
restart the workers at SIGHUP, kill them at SIGINT and begin the time-out anew at each further SIGTERM.)
"""

from collections.abc import Callable

from oslo_config import cfg

from retryflow.service.base import BaseService
from retryflow.service.master import Master
from retryflow.service.runner import Runner
from retryflow.service.signals import Inbox
from retryflow.service.status import ExitStatus, exit_now

__all__ = ["ExitStatus", "exit_now", "run"]


def run(conf: cfg.ConfigOpts, factory: Callable[[], BaseService], *, workers: int = 1) -> int:
    """Run a service until it has stopped. Call it in the main thread, before any other thread is started.

    SIGTERM, once or often, to the process or to its group, drains; SIGINT drains the first time and ends the wait the
    second time; SIGHUP reloads the options that can change and calls the service's ``reset``. systemd is told when all
    workers have started.

    :param factory: makes the service; called in the process that serves, where it may open connections in ``start``.
    :param workers: how many processes; with one the service runs in this very process.
    :returns: an :class:`ExitStatus`; give it to :func:`exit_now`, since threads that ignored the stop may still run.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; at least one is needed")
    if workers > 1:
        return Master(conf, factory, workers=workers).run()
    return Runner(conf, factory, Inbox()).run()
