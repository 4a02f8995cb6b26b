"""Whether a ticket can be sent from here, or is left to a scheduler."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.retry.sending import Ticket, TicketSender


class NotingSender:
    """A sender that remembers whether the broker has taken everything.

    :param sender: does the work.
    """

    def __init__(self, sender: TicketSender) -> None:
        self._sender = sender
        self.all_taken = True

    def send(self, tickets: Sequence[Ticket], *, timeout_seconds: float) -> set[str]:
        """Send them; see :class:`retryflow.retry.sending.TicketSender`."""
        try:
            failed = self._sender.send(tickets, timeout_seconds=timeout_seconds)
        except Exception:  # noqa: BLE001 - the order is committed, and a scheduler sends what was not sent here
            failed = {ticket.task_id for ticket in tickets}
        self.all_taken = self.all_taken and not failed
        return failed


def names_a_broker(conf: cfg.ConfigOpts) -> bool:
    """Whether the operator has named a broker that this process can reach.

    The in-process transport of the standalone daemon ends at that process's border, and a URL that nobody has set names
    a broker that nobody has: then the scheduler finds the order in the database.
    """
    configuration.register_all(conf)
    url = str(conf.transport_url)
    in_process = url.partition("://")[0] in ("fake", "kombu+memory")
    where = conf.get_location("transport_url")
    return not in_process and where is not None and bool(where.location.is_user_controlled)


@contextlib.contextmanager
def ticket_sender(conf: cfg.ConfigOpts) -> Iterator[NotingSender | None]:
    """A sender for one command, or ``None`` where tickets are left to a scheduler.

    :raises retryflow.errors.ConfigurationError: the transport's URL cannot be used.
    """
    if not names_a_broker(conf):
        yield None
        return
    from retryflow.queue.client import TaskClient
    from retryflow.queue.transport import get_transport

    client = TaskClient(get_transport(conf), conf)
    try:
        yield NotingSender(client)
    finally:
        client.close()


def wake_schedulers(conf: cfg.ConfigOpts) -> None:
    """Let the schedulers look at once, if they can be reached; losing it only means the next period."""
    if not names_a_broker(conf):
        return

    def send() -> None:
        import oslo_messaging

        from retryflow.queue.target import scheduler_target
        from retryflow.queue.transport import get_transport
        from retryflow.queue.wake import METHOD

        with contextlib.suppress(Exception):
            oslo_messaging.get_rpc_client(get_transport(conf), scheduler_target(conf), retry=0).cast({}, METHOD)

    # The driver may try for longer than anybody wants to wait for a hint.
    thread = threading.Thread(target=send, name="wake", daemon=True)
    thread.start()
    thread.join(conf.queue.publish_timeout_seconds)
