"""The RPC server of a plain service, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

if TYPE_CHECKING:
    from retryflow.service.worker import Server, ServerFactory


def rpc_server(conf: cfg.ConfigOpts, *, topic: str, server: str = "worker") -> ServerFactory:
    """What ``WorkerService`` takes as its ``server_factory``: a server that loses no message when it stops.

    It takes only what its threads can run (``executor_thread_pool_size``), plus ``[queue] read_ahead``, and calls only
    methods marked with ``retryflow.queue.delivery.expose``.

    :param topic: what clients address.
    :param server: name of this server, for clients that want this one.
    """

    def make(endpoints: list[object]) -> Server:
        import oslo_messaging

        from retryflow.conf.queue import read_ahead
        from retryflow.queue.server import get_server
        from retryflow.queue.transport import get_transport

        target = oslo_messaging.Target(topic=topic, server=server)
        return get_server(
            get_transport(conf),
            target,
            endpoints,
            threads=conf.executor_thread_pool_size,
            read_ahead=read_ahead(conf),
        )

    return make
