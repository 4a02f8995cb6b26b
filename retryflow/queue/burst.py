"""Many casts in one go: pipelined, confirmed by the broker and mandatory, all within one time limit.

Through oslo.messaging each cast waits for its own confirm, waits without limit for a broker that is down, and vanishes
where no queue is bound.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import oslo_messaging
from oslo_log import log as logging

from retryflow.queue import frames
from retryflow.queue.connection import BROKER_TROUBLE, BrokerBlocked, BrokerConnection
from retryflow.queue.transport import broker_of

LOG = logging.getLogger(__name__)

CHUNK = 100
WINDOW = 2000
IDLE_SECONDS = 20.0
"""An unused connection is not used again after that long: nobody has sent its heartbeats."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One message: ``key`` is what the caller knows it by, ``encode`` makes the body when its turn comes."""

    key: str
    encode: Callable[[], bytes]
    ttl_seconds: float


class Burst:
    """Publishes to one topic of one exchange; keeps its connection for the next call.

    :param transport: a transport for which :func:`~retryflow.queue.transport.is_rabbit` holds.
    """

    def __init__(self, transport: oslo_messaging.Transport, *, exchange: str, topic: str) -> None:
        self._transport = transport
        self._exchange = exchange
        self._topic = topic
        self._lock = threading.Lock()
        self._link: _Link | None = None

    def publish(self, letters: Sequence[Letter], *, timeout_seconds: float) -> set[str]:
        """Send all letters.

        :returns: the keys of those that the broker did not confirm, refused, or could route to no queue. What is
            reported here may arrive all the same: the confirm may have been lost.
        """
        deadline = time.monotonic() + timeout_seconds
        waiting = {letter.key: letter for letter in letters}
        if not letters or not self._lock.acquire(timeout=timeout_seconds):
            return set(waiting)
        try:
            trouble, unroutable = self._attempts(waiting, deadline)
        finally:
            self._lock.release()
        if trouble:
            LOG.warning(
                "%d of %d tickets were not confirmed by %s: %s",
                len(waiting), len(letters), broker_of(self._transport), trouble,
            )  # fmt: skip
        if unroutable:
            LOG.warning(
                "%d of %d tickets found no queue %s on %s: no worker has started yet?",
                len(unroutable), len(letters), self._topic, broker_of(self._transport),
            )  # fmt: skip
        return waiting.keys() | unroutable

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        with self._lock:
            link, self._link = self._link, None
        if link:
            link.connection.close_gracefully(1.0)

    def _attempts(self, waiting: dict[str, Letter], deadline: float) -> tuple[str | None, set[str]]:
        unroutable: set[str] = set()
        while True:
            reused = self._usable()
            try:
                if not reused:
                    self._link = _Link(self._transport, self._exchange, self._topic, deadline - time.monotonic())
                assert self._link is not None
                self._link.send(waiting, unroutable, deadline)
            except (*BROKER_TROUBLE, BrokerBlocked) as error:
                self._drop()
                # The broker may have closed it since the last call; that says nothing about the broker now.
                if not reused or isinstance(error, TimeoutError | BrokerBlocked) or time.monotonic() > deadline:
                    return _reason(error), unroutable
            else:
                return None, unroutable

    def _usable(self) -> bool:
        link = self._link
        if link and link.process_id != os.getpid():
            self._link = None  # It belongs to the parent process; closing it here would close it there.
            return False
        if link and time.monotonic() - link.used_at > IDLE_SECONDS:
            self._drop()
        return self._link is not None

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link:
            link.connection.abandon()


class _Link:
    """A connection with its channel in confirm mode, and what is on its way there."""

    def __init__(self, transport: oslo_messaging.Transport, exchange: str, topic: str, timeout_seconds: float) -> None:
        self.connection = BrokerConnection(transport, connect_timeout_seconds=max(0.1, timeout_seconds))
        self.process_id = os.getpid()
        self.used_at = time.monotonic()
        try:
            self._prepare(exchange, topic)
        except BaseException:
            self.connection.abandon()
            raise

    def _prepare(self, exchange: str, topic: str) -> None:
        connection = self.connection
        # A second channel: on the first one the driver has put a handler of its own for what comes back.
        channel = connection.connection.channel()
        channel.exchange_declare(exchange, "topic", durable=connection.durable, auto_delete=connection.amqp_auto_delete)
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        self._io = channel.connection.transport
        self._frame_max = channel.connection.frame_max
        self._channel_id = channel.channel_id
        self._method = frames.publish_method(self._channel_id, exchange=exchange, routing_key=topic)
        self._tag = 0
        self._pending: dict[int, str] = {}
        self._returned: set[str] = set()
        self._refused: set[str] = set()
        self._waiting: dict[str, Letter] = {}

    def send(self, waiting: dict[str, Letter], unroutable: set[str], deadline: float) -> None:
        """Send what is in ``waiting`` and take out what has been confirmed; also on an error."""
        self._waiting, self._returned = waiting, unroutable
        letters = list(waiting.values())
        for at in range(0, len(letters), CHUNK):
            self._write(letters[at : at + CHUNK], deadline)
            while self.connection.drain(0):
                pass
            self._settle(deadline, allowed=WINDOW)
        self._settle(deadline, allowed=0)
        self.used_at = time.monotonic()
        if self._refused:
            self._refused.clear()
            raise BrokerBlocked("the broker refused some of them")

    def _write(self, letters: Iterable[Letter], deadline: float) -> None:
        parts: list[bytes] = []
        for letter in letters:
            try:
                content = self._content(letter)
            except (TypeError, ValueError) as error:
                # It stays unconfirmed; the others are not to suffer for it.
                LOG.warning("Ticket %.40s cannot be sent: %s", letter.key, error)
                continue
            self._tag += 1
            self._pending[self._tag] = letter.key
            parts += (self._method, content)
        self.connection.set_socket_timeout(deadline - time.monotonic())
        self._io.write(b"".join(parts))

    def _content(self, letter: Letter) -> bytes:
        return frames.content(
            self._channel_id,
            letter.encode(),
            message_id=letter.key,
            ttl_seconds=letter.ttl_seconds,
            frame_max=self._frame_max,
        )

    def _settle(self, deadline: float, *, allowed: int) -> None:
        while len(self._pending) > allowed:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("time ran out")
            if self.connection.blocked:
                raise BrokerBlocked("the broker takes no messages for now (memory or disk alarm)")
            self.connection.drain(left)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        for key in self._take(tag, multiple):
            self._waiting.pop(key, None)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._refused.update(self._take(tag, multiple))

    def _take(self, tag: int, multiple: bool) -> list[str]:
        # Tags stand in the order of sending, so that only the settled ones are looked at.
        tags = []
        if multiple:
            for pending in self._pending:
                if pending > tag:
                    break
                tags.append(pending)
        elif tag in self._pending:
            tags.append(tag)
        return [self._pending.pop(each) for each in tags]

    def _on_return(self, _error: Exception, _exchange: str, _routing_key: str, message: Any) -> None:
        # It comes before the confirm of the same message.
        self._returned.add(message.properties.get("message_id"))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
