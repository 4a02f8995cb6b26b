"""All that a service without orders and without a database needs: a manager, and one call that serves it."""

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import retryflow.service.oslo
from retryflow import conf as configuration
from retryflow.conf import CONF
from retryflow.errors import RetryflowError
from retryflow.queue.delivery import expose
from retryflow.service import launch
from retryflow.service.manager import Manager
from retryflow.service.rpc import rpc_server
from retryflow.service.signals import install_early
from retryflow.service.worker import WorkerService
from retryflow.tracking import submit_tracked, untracked_rpc_method

__all__ = ["Manager", "expose", "periodic_task", "serve", "submit_tracked", "untracked_rpc_method"]

periodic_task = retryflow.service.oslo.periodic_task.periodic_task


def serve(
    make_manager: Callable[[], Manager],
    *,
    topic: str,
    argv: Sequence[str],
    workers: int = 1,
    periodic_interval_seconds: float = 60.0,
) -> NoReturn:
    """Serve the manager's exposed methods and run its periodic tasks until the process is told to stop.

    :param make_manager: called in each process that serves; a class derived from :class:`Manager` will do.
    :param topic: what clients address; also the program's name, after which Oslo looks for a configuration file.
    :param argv: the arguments after the program's name, as ``--config-file FILE``.
    :param workers: how many processes; each runs the periodic tasks.
    :param periodic_interval_seconds: longest time between two looks at the periodic tasks; 0: no periodic tasks.
    """
    install_early()
    try:
        configuration.parse(argv, prog=topic)
        configuration.validate(CONF)
        if not callable(make_manager):
            raise RetryflowError(
                f"serve needs a class derived from Manager, or a function that makes one; it was given an object of "
                f"the class {type(make_manager).__name__}"
            )
    except RetryflowError as error:
        sys.stderr.write(f"{topic}: {error}\n")
        launch.exit_now(launch.ExitStatus.REFUSED)

    def make_service() -> WorkerService:
        return WorkerService(
            CONF,
            make_manager(),
            server_factory=rpc_server(CONF, topic=topic),
            periodic_interval_seconds=periodic_interval_seconds,
        )

    launch.exit_now(launch.run(CONF, make_service, workers=workers))
