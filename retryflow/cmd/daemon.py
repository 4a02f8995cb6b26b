"""What the three daemons have in common: parse, check, refuse with one line, or run."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oslo_config import cfg
from oslo_log import log as logging

from retryflow import conf as configuration
from retryflow.conf.backend import select_threading

# Before the rooms below it are imported, since they import oslo.messaging, which settles on a backend.
select_threading()

from retryflow.cmd import database  # noqa: E402
from retryflow.errors import ConfigurationError, RetryflowError  # noqa: E402
from retryflow.queue import transport  # noqa: E402
from retryflow.service.status import ExitStatus  # noqa: E402

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """How one daemon differs from another.

    :param defaults: changes defaults of options before the command line is parsed.
    :param prepare: checks, or makes, what the daemon needs; raises a ``RetryflowError`` to refuse.
    :param build: the name of the function of :mod:`retryflow.service.app` that makes what ``launch.run`` takes.
    :param workers: the number of processes.
    """

    prog: str
    build: str
    prepare: Callable[[cfg.ConfigOpts], None]
    defaults: Callable[[cfg.ConfigOpts], None] = configuration.register_all
    workers: Callable[[cfg.ConfigOpts], int] = lambda _conf: 1


def run(argv: Sequence[str], daemon: Daemon, conf: cfg.ConfigOpts = configuration.CONF) -> int:
    """Run a daemon until it is told to stop.

    :returns: the exit status: 1 with one line on standard error if it cannot start as it is configured.
    :raises SystemExit: 0 after ``-h``, 2 for an unknown option.
    """
    try:
        daemon.defaults(conf)
        configuration.parse(argv, prog=daemon.prog, conf=conf)
        configuration.validate(conf)
        transport.refuse_unknown_driver(conf)
        for complaint in configuration.unknown_names(conf):
            LOG.warning("%s", complaint)
        daemon.prepare(conf)
        # Not needed for -h, nor to refuse.
        from retryflow.service import app, launch

        app.check(conf, workers=daemon.workers(conf))
        status = launch.run(conf, getattr(app, daemon.build)(conf), workers=daemon.workers(conf))
    except RetryflowError as error:
        print(f"{daemon.prog}: {error}", file=sys.stderr)  # noqa: T201
        return ExitStatus.REFUSED
    # Not by returning: a thread that ignored the stop would keep the interpreter from ending.
    return launch.exit_now(status)


def refuse_in_process_transport(conf: cfg.ConfigOpts) -> None:
    """Refuse a transport that ends at the process's own border: worker and scheduler would never hear of each other.

    :raises retryflow.errors.ConfigurationError: it is such a transport.
    """
    if transport.is_in_process(conf):
        raise ConfigurationError(
            "[DEFAULT] transport_url names an in-process transport, over which other processes cannot be reached; set "
            "it to rabbit://user:password@host:5672/, or start retryflow-standalone, which is worker and scheduler in "
            "one process"
        )


def _prepare_one_of_many(conf: cfg.ConfigOpts) -> None:
    refuse_in_process_transport(conf)
    database.require_schema(conf)


def _prepare_standalone(conf: cfg.ConfigOpts) -> None:
    from retryflow.service import app

    # What is refused anyhow is refused before a database is made.
    app.check(conf)
    database.upgrade_schema(conf)


WORKER = Daemon(
    prog="barbican-worker",
    prepare=_prepare_one_of_many,
    build="build_worker",
    workers=lambda conf: int(conf.queue.asynchronous_workers),
)
SCHEDULER = Daemon(prog="barbican-task-scheduler", prepare=_prepare_one_of_many, build="build_scheduler")
STANDALONE = Daemon(
    prog="retryflow-standalone",
    defaults=transport.set_standalone_default,
    prepare=_prepare_standalone,
    build="build_standalone",
)
