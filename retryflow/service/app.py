"""Puts the parts together: the worker, the scheduler and the standalone daemon, each as a factory for ``launch.run``.

A factory is called in the process that serves, after any fork: engines, transports and threads are made there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oslo_config import cfg

from retryflow.conf.queue import read_ahead
from retryflow.conf.validation import unreadable
from retryflow.errors import ConfigurationError
from retryflow.model.configured import make_engine
from retryflow.model.identity import ProcessIdentity, own_identity
from retryflow.plugin.manager import require_plugins
from retryflow.queue.client import TaskClient
from retryflow.queue.server import Server, get_server
from retryflow.queue.target import worker_target
from retryflow.queue.transport import get_transport, refuse_unknown_driver
from retryflow.queue.wake import Waker, listen
from retryflow.retry.sending import TicketSender
from retryflow.retry.settings import Settings
from retryflow.service.base import BaseService
from retryflow.service.group import ServiceGroup
from retryflow.service.guru import require_watched_file
from retryflow.service.health_place import place_of
from retryflow.service.order_manager import OrderManager
from retryflow.service.scheduler import Stoppable, TaskSchedulerService
from retryflow.service.worker import WorkerService
from retryflow.tasks.registry import OrderTypeRegistry

Factory = Callable[[], BaseService]
_STANDALONE_LOOK_SECONDS = 1.0


def check(conf: cfg.ConfigOpts, *, workers: int = 1) -> None:
    """Refuse, before any process is started, what the services would refuse as well.

    :raises retryflow.errors.ConfigurationError: one line says why.
    """
    for refusal in refusals(conf, workers=workers):
        raise refusal


def refusals(conf: cfg.ConfigOpts, *, workers: int = 1) -> Iterator[ConfigurationError]:
    """Each reason for which :func:`check` would refuse."""

    def addresses() -> None:
        if conf.health.address:
            for number in {0, max(0, workers - 1)}:
                place_of(conf, number=number, several=workers > 1).address(conf.health.address)

    def transport() -> None:
        refuse_unknown_driver(conf)
        get_transport(conf).cleanup()

    for look in (addresses, lambda: require_watched_file(conf), lambda: require_plugins(conf), transport):
        try:
            look()
        except ConfigurationError as error:
            yield error


def build_worker(conf: cfg.ConfigOpts) -> Factory:
    """:returns: makes a worker service."""
    return lambda: _worker(conf, own_identity())


def build_scheduler(conf: cfg.ConfigOpts) -> Factory:
    """:returns: makes a scheduler service."""
    return lambda: _scheduler(conf, own_identity())


def build_standalone(conf: cfg.ConfigOpts) -> Factory:
    """:returns: makes worker and scheduler as one service, over the in-process transport."""

    def make() -> BaseService:
        scheduler = _scheduler(conf, own_identity(), longest_pause_seconds=_STANDALONE_LOOK_SECONDS)
        return ServiceGroup(conf, [_worker(conf, own_identity()), scheduler])

    return make


def _worker(conf: cfg.ConfigOpts, identity: ProcessIdentity) -> WorkerService:
    threads = conf.executor_thread_pool_size
    transport = get_transport(conf)
    registry = OrderTypeRegistry(conf)
    registry.check()
    # Order types and plugins have registered options of their own by now.
    for complaint in unreadable(conf):
        raise ConfigurationError(complaint)
    servers: list[Server] = []
    service: WorkerService

    def trouble(in_trouble: bool) -> None:
        for server in servers:
            (server.pause if in_trouble else server.resume)()

    manager = OrderManager(
        conf,
        engine=make_engine(conf, connections=threads),
        # In time for another attempt, on a new connection, before the leases end.
        keeper_engine=make_engine(conf, connections=1, answer_seconds=conf.lease.lease_seconds / 2),
        identity=identity,
        settings=Settings.from_conf(conf),
        registry=registry,
        waker=Waker(transport, conf),
        threads=threads,
        on_trouble=trouble,
        on_all_lost=lambda: service.end("no thread is left that could run a task ([lease] max_run_seconds)"),
    )

    def make_server(endpoints: list[object]) -> Server:
        return get_server(transport, worker_target(conf), endpoints, threads=threads, read_ahead=read_ahead(conf))

    service = WorkerService(conf, manager, server_factory=make_server, periodic_interval_seconds=0.0)
    return service


def _scheduler(
    conf: cfg.ConfigOpts, identity: ProcessIdentity, *, longest_pause_seconds: float = float("inf")
) -> TaskSchedulerService:
    def connect(wake: Callable[[], None]) -> tuple[TicketSender, Stoppable]:
        transport = get_transport(conf)
        return TaskClient(transport, conf), listen(transport, conf, wake)

    return TaskSchedulerService(
        conf,
        engine=make_engine(conf, connections=1),
        identity=identity,
        settings=Settings.from_conf(conf),
        connect=connect,
        longest_pause_seconds=longest_pause_seconds,
    )
