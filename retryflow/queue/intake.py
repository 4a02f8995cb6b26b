"""The thread that takes messages from RabbitMQ, tells it what became of them, and comes back after each outage."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import oslo_messaging
from oslo_log import log as logging

from retryflow.queue import frames, wire
from retryflow.queue.connection import BROKER_TROUBLE, BrokerConnection
from retryflow.queue.delivery import Delivery
from retryflow.queue.transport import broker_of
from retryflow.queue.wakeup import WakeUp
from retryflow.queue.window import HOLD_SECONDS, Window

LOG = logging.getLogger(__name__)

CONNECT_TIMEOUT_SECONDS = 5.0
SOCKET_TIMEOUT_SECONDS = 10.0
LOG_EACH_SECONDS = 10.0
RECONNECT_SECONDS = (0.1, 0.5, 1.0, 2.0)
HEARTBEAT_SECONDS = 1.0
HEARTBEAT_RATE = 4
"""How many times within the agreed time; a loaded machine may be late with some."""
RELEASE_TIMEOUT_SECONDS = 1.0
REMEMBERED = 1000
NEVER = 3600.0


class Intake:
    """Receives messages and passes them on; all its public methods may be called from any thread.

    :param declare: called with each new connection: declares the queues to consume. The first of them is bounded by
        ``capacity``, each further one to a single message.
    :param receive: what takes a delivery; called on the intake's thread, must not block.
    :param take_back: gives back up to that many (``None``: all) received deliveries that were not begun.
    """

    def __init__(
        self,
        transport: oslo_messaging.Transport,
        *,
        name: str,
        declare: Callable[[BrokerConnection], None],
        capacity: int,
        receive: Callable[[Delivery], None],
        take_back: Callable[[int | None], list[Delivery]],
    ) -> None:
        self._transport = transport
        self._name = name
        self._declare = declare
        self._receive = receive
        self._take_back = take_back
        self._window = Window(capacity)
        self._in_hand: dict[str, Delivery] = {}
        self._held: OrderedDict[str, tuple[float, Delivery]] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._returned: list[Delivery] = []
        self._orders: deque[Callable[[], None]] = deque()
        self._woken = False
        self._to_acknowledge: dict[Delivery, None] = {}
        self._wanted = True
        self._ending = False
        self._closed = False
        self._connection: BrokerConnection | None = None
        self._channel: Any = None
        self._queues: list[Any] = []
        self._tag: str | None = None
        self._subscriptions = 0
        self._failures = 0
        self._logged_at = -LOG_EACH_SECONDS
        self._trouble_told = False
        self._next_heartbeat = 0.0
        self._subscribed = False
        self._hanging = False
        self._asked = False
        self.answered_at = float("-inf")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to connect and consume; returns at once, whether the broker is there or not."""
        self._wakeup = WakeUp()
        self._thread = threading.Thread(target=self._live, name=self._name, daemon=True)
        self._thread.start()

    @property
    def consuming(self) -> bool:
        """Whether the broker is connected and sends us what we have room for."""
        return self._subscribed and self._wanted

    def ask(self) -> None:
        """Ask the broker for a sign of life; returns at once, and :attr:`answered_at` tells of the answer."""
        if not self._asked:
            self._asked = True
            self._order(self._on_ask)

    def claimed(self, delivery: Delivery) -> None:
        """The message need not be delivered again."""
        # There is time until the next turn, whatever the reason for it: one comes with each heartbeat.
        until = time.monotonic() + HOLD_SECONDS
        self._orders.append(lambda: self._on_claimed(delivery, until))

    def unwanted(self, delivery: Delivery) -> None:
        """The message has to be delivered again once it is finished here."""
        delivery.unwanted = True

    def finished(self, delivery: Delivery) -> None:
        """Nothing works on the message any more."""
        self._order(lambda: self._on_finished(delivery))

    def acknowledge_now(self, delivery: Delivery) -> bool:
        """Acknowledge before anything is done; ``False``: the connection is lost, and the broker delivers it again."""
        done = threading.Event()
        self._order(lambda: self._on_acknowledge_now(delivery, done))
        done.wait(SOCKET_TIMEOUT_SECONDS + CONNECT_TIMEOUT_SECONDS)
        return delivery.settled

    def release(self, *, ending: bool) -> list[Delivery]:
        """Take nothing more, and give back what was not begun.

        :param ending: for good; otherwise until :meth:`resume`.
        :returns: what went back.
        """
        self._ending = self._ending or ending
        self._wanted = False
        taken = self._take_back(None)
        if self._thread is None or not self._thread.is_alive():
            return taken
        done = threading.Event()
        self._order(lambda: self._on_release(taken, done))
        # Without a connection there is nothing to tell the broker: it has taken everything back by itself.
        self._hanging = not done.wait(RELEASE_TIMEOUT_SECONDS if self._connection else 0.1)
        more, self._returned = self._returned, []
        return taken + more

    @property
    def unconfirmed(self) -> bool:
        """Whether the broker, though connected, has not taken note of the last :meth:`release` in time."""
        return self._hanging

    def resume(self) -> None:
        """Take messages again, unless the end has come."""
        if not self._ending:
            self._wanted = True
            self._order(lambda: None)

    def close(self, timeout_seconds: float) -> None:
        """Give back what is left, close the connection, end the thread; do not wait for a broker that hangs."""
        self._closed = True
        self._wanted = False
        if self._thread is not None:
            self._wakeup.wake()
            self._thread.join(timeout_seconds if self._connection and not self._hanging else 0.1)

    # What follows runs on the intake's own thread.

    def _order(self, action: Callable[[], None]) -> None:
        self._orders.append(action)
        # One word is enough for all that is ordered before the thread looks.
        if self._thread is not None and not self._woken:
            self._woken = True
            self._wakeup.wake()

    def _live(self) -> None:
        while not self._closed:
            try:
                if not self._ending:
                    self._connect()
                while not self._closed:
                    self._turn()
            except Exception as error:  # noqa: BLE001 - see below
                # Whatever a broker, a proxy or a library does to us, the worker has to come back.
                self._lose(error)
        self._subscribed = False
        if self._connection:
            self._say_goodbye(self._connection)
        self._wakeup.close()

    def _say_goodbye(self, connection: BrokerConnection) -> None:
        try:
            self._cancel_all()
            self._obey()
            self._acknowledge_held()
            self._flush()
        except BROKER_TROUBLE as error:
            LOG.debug("%s: connection lost while closing: %s", self._name, error)
        connection.close_gracefully(1.0)

    def _connect(self) -> None:
        connection = BrokerConnection(self._transport, connect_timeout_seconds=CONNECT_TIMEOUT_SECONDS)
        self._connection = connection
        connection.set_socket_timeout(SOCKET_TIMEOUT_SECONDS)
        self._channel = connection.channel
        self._declare(connection)
        self._queues = connection.declared_queues()
        self._wakeup.watch(self._channel.connection.transport.sock)
        self._heartbeat_seconds = min(HEARTBEAT_SECONDS, (self._channel.connection.heartbeat or 60) / 8)
        self._tag = None
        self._window.close()
        self._adjust(time.monotonic())
        # Not for each time where a connection comes and goes: as seldom as its loss.
        if self._trouble_told or not self._failures:
            LOG.info("%s: connected to %s", self._name, broker_of(self._transport))
        self._trouble_told = False
        self._failures = 0

    def _lose(self, error: Exception) -> None:
        self._subscribed = False
        self._wakeup.watch(None)
        connection, self._connection = self._connection, None
        if connection:
            connection.abandon()
        for delivery in self._take_back(None):
            self._in_hand.pop(delivery.request.unique_id, None)
        # Also those that are in hand no longer: their threads may speak of them once more.
        for delivery in (*self._in_hand.values(), *self._to_acknowledge):
            delivery.tag = None
        self._held.clear()
        self._to_acknowledge.clear()
        now = time.monotonic()
        if not self._closed and now - self._logged_at >= LOG_EACH_SECONDS:
            self._logged_at, self._trouble_told = now, True
            LOG.warning(
                "%s: cannot consume from %s, trying again: %s",
                self._name, broker_of(self._transport), " ".join(str(error).split()) or type(error).__name__,
            )  # fmt: skip
        wait_until = now + RECONNECT_SECONDS[min(self._failures, len(RECONNECT_SECONDS) - 1)]
        self._failures += 1
        while not self._closed and (left := wait_until - time.monotonic()) > 0:
            self._obey()
            self._wakeup.sleep(left)

    def _turn(self) -> None:
        self._obey()
        if self._connection is None:
            self._wakeup.sleep(NEVER)
            return
        now = time.monotonic()
        self._adjust(now)
        nap = self._next_heartbeat - now
        if self._held:
            nap = min(nap, next(iter(self._held.values()))[0] - now)
        if (at := self._window.look_again_at) is not None:
            nap = min(nap, at - now)
        self._flush()
        if self._wakeup.sleep(0.0 if self._connection.has_read_more else nap) or self._connection.has_read_more:
            self._connection.drain_received(HEARTBEAT_SECONDS)
        if now >= self._next_heartbeat:
            self._connection.connection.heartbeat_check(rate=HEARTBEAT_RATE)
            self._next_heartbeat = now + self._heartbeat_seconds

    def _obey(self) -> None:
        self._woken = False
        while self._orders:
            self._orders.popleft()()
        self._flush()

    def _adjust(self, now: float) -> None:
        due = [delivery for at, delivery in self._held.values() if at <= now]
        if due:
            self._unsubscribe()
            for delivery in due:
                self._held.pop(delivery.request.unique_id, None)
                self._acknowledge(delivery)
            self._give_back(self._take_back(max(0, len(self._in_hand) - self._window.capacity)))
        if self._wanted and not self._subscribed:
            self._subscribe_all()
        elif self._wanted and self._window.should_change(len(self._in_hand), now):
            self._unsubscribe()
            self._subscribe()

    def _subscribe_all(self) -> None:
        for queue in self._queues[1:]:
            self._consume(queue, 1)
        self._subscribe()
        self._subscribed = True

    def _subscribe(self) -> None:
        prefetch = self._window.open(len(self._in_hand))
        if prefetch:
            self._tag = self._consume(self._queues[0], prefetch)

    def _consume(self, queue: Any, prefetch: int) -> str:
        self._subscriptions += 1
        tag = f"{self._name}-{self._subscriptions}"
        # The third argument: for each consumer, not for the channel, which quorum queues refuse.
        self._channel.basic_qos(0, prefetch, False)
        queue.consume(consumer_tag=tag, callback=self._on_message, no_ack=False)
        return tag

    def _unsubscribe(self) -> None:
        if self._tag:
            # Waits for the broker's answer, before which everything that it has sent has come in.
            self._channel.basic_cancel(self._tag)
        self._tag = None
        self._window.close()

    def _on_message(self, raw: Any) -> None:
        tag = raw.delivery_tag
        try:
            wire.refuse_bomb(raw.body, raw.properties)
            request = wire.decode(self._channel.message_to_python(raw))
        except wire.NotARequest as problem:
            LOG.warning("%s: dropped a message that is no request: %s", self._name, problem)
            self._channel.basic_reject(tag, requeue=False)
            return
        delivery = Delivery(request, raw.delivery_info["consumer_tag"], tag)
        if delivery.subscription == self._tag:
            self._window.received()
        if not self._wanted:
            self._reject(delivery)
            self._returned.append(delivery)
        elif known := self._in_hand.get(request.unique_id):
            self._on_known(known, delivery)
        elif request.unique_id in self._finished:
            self._acknowledge(delivery)
        else:
            self._in_hand[request.unique_id] = delivery
            self._receive(delivery)

    def _on_known(self, known: Delivery, again: Delivery) -> None:
        if known.settled or known.tag is not None:
            self._acknowledge(again)  # published twice, or acknowledged in vain
        else:
            LOG.info(
                "%s: %s of request %s is running here, its delivery after a reconnect is taken over",
                self._name, known.request.method, known.request.request_id,
            )  # fmt: skip
            known.tag, known.subscription = again.tag, again.subscription
            if known.claimed:
                self._acknowledge(known)

    def _on_ask(self) -> None:
        self._asked = False
        if self._connection:
            # Concerns consumers to come, and each of them sets its own before it begins.
            self._channel.basic_qos(0, 1, False)
            self.answered_at = time.monotonic()

    def _on_claimed(self, delivery: Delivery, until: float) -> None:
        if not delivery.claimed and delivery.tag is not None:
            self._held[delivery.request.unique_id] = (until, delivery)
        delivery.claimed = True

    def _on_acknowledge_now(self, delivery: Delivery, done: threading.Event) -> None:
        try:
            self._acknowledge(delivery)
            self._flush()
            if delivery.settled:
                # Not to be answered any more, but while it runs it takes room that the broker knows nothing of.
                self._held[delivery.request.unique_id] = (time.monotonic() + HOLD_SECONDS, delivery)
        finally:
            done.set()

    def _on_finished(self, delivery: Delivery) -> None:
        unique_id = delivery.request.unique_id
        self._in_hand.pop(unique_id, None)
        self._held.pop(unique_id, None)
        if delivery.unwanted and not delivery.claimed:
            self._reject(delivery)
            return
        self._finished[unique_id] = None
        if len(self._finished) > REMEMBERED:
            self._finished.popitem(last=False)
        self._acknowledge(delivery)

    def _on_release(self, taken: list[Delivery], done: threading.Event) -> None:
        try:
            self._subscribed = False
            self._forget(taken)
            if self._connection:
                self._cancel_all()
            # What was received between the caller's look and the cancelling.
            late = self._take_back(None)
            self._returned.extend(late)
            self._forget(late)
            self._give_back(taken + late)
            self._acknowledge_held()
            self._flush()
        finally:
            done.set()

    def _cancel_all(self) -> None:
        for tag in list(self._channel.callbacks):
            self._channel.basic_cancel(tag)
        self._tag = None
        self._window.close()

    def _acknowledge_held(self) -> None:
        while self._held:
            self._acknowledge(self._held.popitem(last=False)[1][1])

    def _acknowledge(self, delivery: Delivery) -> None:
        self._to_acknowledge[delivery] = None

    def _flush(self) -> None:
        """Tell the broker of all that was acknowledged, in one piece."""
        due = {each: each.tag for each in self._to_acknowledge if each.tag is not None}
        if due:
            channel = self._channel
            # Kept where this fails: _lose() takes their tags away.
            channel.connection.transport.write(b"".join(frames.ack(channel.channel_id, tag) for tag in due.values()))
        self._to_acknowledge.clear()
        for each in due:
            self._settle(each)

    def _give_back(self, deliveries: list[Delivery]) -> None:
        self._forget(deliveries)
        for delivery in deliveries:
            self._reject(delivery)

    def _forget(self, deliveries: list[Delivery]) -> None:
        """Nothing here will run them. Before the first word to the broker, after which the connection may be lost: what
        is still in hand then would not be taken from the next one.
        """
        for delivery in deliveries:
            self._in_hand.pop(delivery.request.unique_id, None)

    def _reject(self, delivery: Delivery) -> None:
        self._in_hand.pop(delivery.request.unique_id, None)
        if delivery.tag is not None:
            self._channel.basic_reject(delivery.tag, requeue=True)
            self._settle(delivery)

    def _settle(self, delivery: Delivery) -> None:
        delivery.tag, delivery.settled = None, True
        if delivery.subscription == self._tag:
            self._window.answered()
