"""A connection to RabbitMQ, made as oslo.messaging makes it, that fails at once instead of trying for ever."""

import contextlib
import math
import socket
from typing import Any

import amqp
import oslo_messaging
from amqp import basic_message, method_framing
from kombu import exceptions as kombu_exceptions
from oslo_config import cfg
from oslo_messaging._drivers import common as driver_common
from oslo_messaging._drivers import impl_rabbit

# py-amqp raises AttributeError where a connection was lost under it.
BROKER_TROUBLE = (
    OSError,
    amqp.AMQPError,
    kombu_exceptions.KombuError,
    oslo_messaging.MessagingException,
    AttributeError,
    cfg.Error,
)


READ_BYTES = 65536

TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


class BrokerBlocked(Exception):
    """The broker takes no messages for now: its memory or disk alarm is on."""


class _Tolerant(basic_message.Message):  # type: ignore[misc]
    """A message whose header may hold what py-amqp cannot read (a time after the year 9999).

    An error there would cost the connection, each time the broker delivers the message again.
    """

    def _load_properties(self, class_id: Any, buf: Any, offset: int) -> Any:
        try:
            return super()._load_properties(class_id, buf, offset)
        except Exception:  # noqa: BLE001 - whatever it is, wire.decode() refuses the message
            self.properties = {"content_type": "application/x-unreadable"}
            return offset


method_framing.Message = _Tolerant


class BrokerConnection(impl_rabbit.Connection):  # type: ignore[misc]
    """One connection and one channel of our own, outside the driver's pool.

    The driver's own reconnection blocks the caller until the broker is there again, and logs each attempt; here the
    caller gets the error and decides. URL, TLS, failover list and names are those the driver would use, and so are the
    arguments of the queues that it declares. No thread sends heartbeats: whoever holds it does.

    :param transport: a transport for which :func:`~retryflow.queue.transport.is_rabbit` holds.
    :param connect_timeout_seconds: for all hosts of the URL together.
    :raises: one of ``BROKER_TROUBLE``.
    """

    def __init__(self, transport: oslo_messaging.Transport, *, connect_timeout_seconds: float) -> None:
        driver = transport._driver
        self._hosts = max(1, len(driver._url.hosts))
        self._connect_timeout_seconds = connect_timeout_seconds
        self.blocked = False
        # This purpose means: no heartbeat thread, and no lock that such a thread would hold while it reconnects.
        super().__init__(driver.conf, driver._url, driver_common.PURPOSE_LISTEN)

    def ensure_connection(self) -> None:
        """Connect once to each host of the URL until one answers."""
        self._set_current_channel(None)
        self.connection.connect_timeout = self._connect_timeout_seconds / self._hosts
        self.connection.ensure_connection(max_retries=self._hosts - 1, interval_start=0, interval_step=0)
        try:
            self.set_socket_timeout(self._connect_timeout_seconds)
            self._read_in_large_pieces()
            self._set_current_channel(self.connection.channel())
        except BaseException:
            self.abandon()
            raise

    def ensure(self, method: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Call ``method`` without the driver's retries around it."""
        return method()

    def declared_queues(self) -> list[Any]:
        """The kombu queues declared through ``declare_..._consumer``, in that order."""
        return [consumer.queue for consumer in self._consumers]

    def set_socket_timeout(self, seconds: float) -> None:
        """Let no read or write wait longer than that, nor the kernel for the other side's answer to what we sent."""
        seconds = max(seconds, 0.001)
        sock = self.connection.connection.transport.sock
        sock.settimeout(seconds)
        # py-amqp sets one second, so that a short hiccup of the network would break the connection.
        if TCP_USER_TIMEOUT is not None:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, math.ceil(seconds * 1000))

    def _read_in_large_pieces(self) -> None:
        # py-amqp asks the socket nine times for a message, and each time another thread may take the interpreter; what
        # it has read beyond the bytes that it wanted it keeps for its next call.
        transport = self.connection.connection.transport
        receive = transport._quick_recv
        transport._quick_recv = lambda count: receive(max(count, READ_BYTES))

    @property
    def has_read_more(self) -> bool:
        """Whether something was received already that :meth:`drain` has not handled: the socket may be silent then."""
        return bool(self.connection.connection.transport._read_buffer)

    def drain(self, timeout_seconds: float) -> bool:
        """Handle what the broker has sent, up to one complete message; ``False`` if none came within the time."""
        try:
            self.connection.drain_events(timeout=timeout_seconds)
        except TimeoutError:
            return False
        return True

    def drain_received(self, timeout_seconds: float) -> None:
        """Handle all that has been received; where the end of a frame is missing, wait up to that long for it."""
        connection = self.connection.connection
        # Set once, since py-amqp would set the time-out for each frame, there and back.
        with connection.transport.having_timeout(timeout_seconds), contextlib.suppress(TimeoutError):
            connection.blocking_read()
            while self.has_read_more:
                connection.blocking_read()

    def close_gracefully(self, timeout_seconds: float) -> None:
        """Close with the broker's consent, or without it when that takes too long."""
        try:
            self.set_socket_timeout(timeout_seconds)
            self.close()
        except BROKER_TROUBLE:
            self.abandon()

    def abandon(self) -> None:
        """Close the socket without a word to the broker."""
        if self.connection is not None:
            self.connection.collect()

    def _on_connection_blocked(self, _reason: str) -> None:
        self.blocked = True

    def _on_connection_unblocked(self) -> None:
        self.blocked = False
