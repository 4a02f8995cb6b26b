"""The sending side of the task queue: tickets in bursts, and upstream Barbican's casts one by one."""

import functools
import time
import uuid
from collections.abc import Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from retryflow.errors import RetryflowError
from retryflow.queue import wire
from retryflow.queue.burst import Burst, Letter
from retryflow.queue.connection import BROKER_TROUBLE
from retryflow.queue.target import ticket_target
from retryflow.queue.transport import is_rabbit
from retryflow.retry.log_context import request_of
from retryflow.retry.sending import Ticket

LOG = logging.getLogger(__name__)

TASK_METHODS = ("process_type_order", "check_certificate_status", "update_order")
ANY_TASK_METHOD = "run_task"
CAST_TTL_SECONDS = 86400.0


class TicketNotSent(RetryflowError):
    """The broker did not take the message: it is out of reach, or no worker has ever started. Try again later."""


class TaskClient:
    """Puts work on the task queue; it is a :class:`retryflow.retry.sending.TicketSender`.

    Safe to be used by several threads. Make it after the fork.

    :param transport: from :func:`retryflow.queue.transport.get_transport`.
    """

    def __init__(self, transport: oslo_messaging.Transport, conf: cfg.ConfigOpts) -> None:
        self._target = ticket_target(conf)
        self._cast_timeout_seconds: float = conf.queue.publish_timeout_seconds
        self._burst: Burst | None = None
        if is_rabbit(transport):
            self._burst = Burst(transport, exchange=conf.control_exchange, topic=conf.queue.topic)
        else:
            self._plain = oslo_messaging.get_rpc_client(transport, self._target, retry=0)

    def send(self, tickets: Sequence[Ticket], *, timeout_seconds: float) -> set[str]:
        """Send tickets, all within ``timeout_seconds``.

        On RabbitMQ they go out in one burst; a ticket is dropped by the broker after its ``ttl_seconds``. On other
        transports they are cast one by one.

        :returns: the ``task_id`` of each ticket that was not confirmed, or could not be routed to a queue.
        """
        letters = [_letter(ticket, self._target) for ticket in tickets]
        if self._burst:
            return self._burst.publish(letters, timeout_seconds=timeout_seconds)
        return self._cast_each(tickets, time.monotonic() + timeout_seconds)

    def process_type_order(self, order_id: str, project_id: str | None, request_id: str | None) -> None:
        """Upstream Barbican's cast: work on a new order.

        :raises TicketNotSent: not confirmed within ``[queue] publish_timeout_seconds``.
        """
        self._cast("process_type_order", order_id=order_id, project_id=project_id, request_id=request_id)

    def update_order(
        self, order_id: str, project_id: str | None, updated_meta: dict[str, Any] | None, request_id: str | None
    ) -> None:
        """Upstream Barbican's cast: an order's meta has changed.

        :raises TicketNotSent: as for :meth:`process_type_order`.
        """
        self._cast(
            "update_order", order_id=order_id, project_id=project_id, updated_meta=updated_meta, request_id=request_id
        )

    def check_certificate_status(self, order_id: str, project_id: str | None, request_id: str | None) -> None:
        """Upstream Barbican's cast: ask the certificate authority how far an order is.

        :raises TicketNotSent: as for :meth:`process_type_order`.
        """
        self._cast("check_certificate_status", order_id=order_id, project_id=project_id, request_id=request_id)

    def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        if self._burst:
            self._burst.close()

    def _cast(self, method: str, **arguments: Any) -> None:
        context = {"request_id": arguments["request_id"]}
        if self._burst is None:
            sent = self._cast_plainly(method, arguments, context)
        else:
            body = wire.encode(method, arguments, target=self._target, context=context)
            letter = Letter(uuid.uuid4().hex, lambda: body, CAST_TTL_SECONDS)
            sent = not self._burst.publish([letter], timeout_seconds=self._cast_timeout_seconds)
        if not sent:
            raise TicketNotSent(
                f"{method} for order {arguments['order_id']} was not taken by the message broker; try again later"
            )

    def _cast_plainly(self, method: str, arguments: dict[str, Any], context: dict[str, Any]) -> bool:
        try:
            self._plain.cast(context, method, **arguments)
        except BROKER_TROUBLE as error:
            LOG.warning("%s was not sent: %s", method, " ".join(str(error).split()))
            return False
        return True

    def _cast_each(self, tickets: Sequence[Ticket], deadline: float) -> set[str]:
        unsent = {ticket.task_id for ticket in tickets}
        for ticket in tickets:
            if time.monotonic() >= deadline or not self._cast_plainly(*_call(ticket)):
                LOG.warning("%d of %d tickets were not sent", len(unsent), len(tickets))
                break
            unsent.discard(ticket.task_id)
        return unsent


def _call(ticket: Ticket) -> tuple[str, dict[str, Any], dict[str, Any]]:
    method = ticket.task if ticket.task in TASK_METHODS else ANY_TASK_METHOD
    # Whoever tells of the message, as at a stop, is to name what the log lines of its task bear.
    request_id = request_of(ticket.order_id, ticket.request_id)
    arguments = {
        "order_id": ticket.order_id,
        "project_id": ticket.project_id,
        "request_id": request_id,
        "task_id": ticket.task_id,
    }
    return method, arguments, {"request_id": request_id}


def _letter(ticket: Ticket, target: oslo_messaging.Target) -> Letter:
    return Letter(ticket.task_id, functools.partial(_body, ticket, target), ticket.ttl_seconds)


def _body(ticket: Ticket, target: oslo_messaging.Target) -> bytes:
    method, arguments, context = _call(ticket)
    return wire.encode(method, arguments, target=target, context=context)
