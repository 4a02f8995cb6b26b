"""Wake-ups: a worker tells the schedulers that something is due before their next period."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_log import log as logging

from retryflow.queue.delivery import Delivery, expose
from retryflow.queue.intake import Intake
from retryflow.queue.target import scheduler_target
from retryflow.queue.transport import is_rabbit

LOG = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.1
METHOD = "wake"


class Waker:
    """Sends wake-ups, at most ten in a second; it is a :class:`retryflow.retry.sending.SchedulerWaker`.

    Its thread starts with the first wake-up. Losing one only means the next tick, so nothing is tried twice.
    """

    def __init__(self, transport: oslo_messaging.Transport, conf: cfg.ConfigOpts) -> None:
        self._client = oslo_messaging.get_rpc_client(transport, scheduler_target(conf), retry=0)
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._process_id: int | None = None

    def wake(self) -> None:
        """Wake every scheduler soon; returns at once and never raises."""
        self._due.set()
        if self._process_id != os.getpid():
            with self._lock:
                if self._process_id != os.getpid():
                    threading.Thread(target=self._send, name="waker", daemon=True).start()
                    self._process_id = os.getpid()

    def stop(self) -> None:
        """Send nothing more; does not wait."""
        self._stopped.set()
        self._due.set()

    def _send(self) -> None:
        while True:
            self._due.wait()
            if self._stopped.is_set():
                return
            self._due.clear()
            try:
                self._client.cast({}, METHOD)
            except Exception as error:  # noqa: BLE001 - nothing here may reach the task
                LOG.debug("Schedulers were not woken: %s", error)
            self._stopped.wait(INTERVAL_SECONDS)


class Listener:
    """Calls back for each wake-up until it is stopped.

    :param intake: what listens, on RabbitMQ; within a process there is no connection that could be lost.
    """

    def __init__(self, stop: Callable[[], None], intake: Intake | None = None) -> None:
        self._stop = stop
        self._intake = intake

    @property
    def consuming(self) -> bool:
        """Whether it is connected and listens."""
        return self._intake is None or self._intake.consuming

    @property
    def answered_at(self) -> float:
        """When the broker last answered :meth:`ask`, on the monotonic clock."""
        return time.monotonic() if self._intake is None else self._intake.answered_at

    def ask(self) -> None:
        """Ask the broker for a sign of life; returns at once."""
        if self._intake is not None:
            self._intake.ask()

    def stop(self) -> None:
        """Listen no longer; returns within seconds, whatever the broker does."""
        self._stop()


def listen(transport: oslo_messaging.Transport, conf: cfg.ConfigOpts, callback: Callable[[], None]) -> Listener:
    """Call ``callback`` for each wake-up that any worker sends.

    Returns at once; on RabbitMQ it connects in the background, again and again if need be.

    :param callback: called on a thread of the listener; must not block. Setting an event is what it is for.
    """
    if is_rabbit(transport):
        return _listen_on_rabbit(transport, conf, callback)
    target = oslo_messaging.Target(
        topic=conf.queue.scheduler_topic, server=f"{socket.gethostname()}-{uuid.uuid4().hex}"
    )
    server = oslo_messaging.get_rpc_server(
        transport, target, [_Endpoint(conf, callback)], access_policy=oslo_messaging.ExplicitRPCAccessPolicy
    )
    server.start(override_pool_size=1)

    def stop() -> None:
        server.stop()
        server.wait()

    return Listener(stop)


def _listen_on_rabbit(
    transport: oslo_messaging.Transport, conf: cfg.ConfigOpts, callback: Callable[[], None]
) -> Listener:
    def receive(delivery: Delivery) -> None:
        intake.claimed(delivery)
        intake.finished(delivery)
        if delivery.request.method == METHOD:
            callback()

    # Only the fanout queue: oslo.messaging's server would add a durable queue for each scheduler that ever lived.
    intake = Intake(
        transport,
        name=conf.queue.scheduler_topic,
        declare=lambda connection: connection.declare_fanout_consumer(conf.queue.scheduler_topic, None),
        capacity=10,
        receive=receive,
        take_back=lambda _count: [],
    )
    intake.start()

    def stop() -> None:
        intake.close(3.0)

    return Listener(stop, intake)


class _Endpoint:
    """The listener's only method."""

    def __init__(self, conf: cfg.ConfigOpts, callback: Callable[[], None]) -> None:
        self.target = oslo_messaging.Target(namespace=conf.queue.namespace, version=conf.queue.version)
        self._callback = callback

    @expose
    def wake(self, _context: Any) -> None:
        self._callback()
