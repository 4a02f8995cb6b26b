"""The RPC server of a worker: takes only what its threads can run, and loses nothing when it stops."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import oslo_messaging
from oslo_context import context as oslo_context
from oslo_log import log as logging
from oslo_messaging._drivers import amqpdriver

from retryflow.queue import fallback
from retryflow.queue.connection import BrokerConnection
from retryflow.queue.delivery import Delivery, HandedBack, delivering, expose, is_late
from retryflow.queue.intake import Intake
from retryflow.queue.threads import TaskThreads
from retryflow.queue.transport import is_rabbit
from retryflow.queue.wire import Request

__all__ = ["HandedBack", "RabbitServer", "Server", "expose", "get_server"]

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_SECONDS = 3.0
HANDLING_FAILED = "Exception during message handling"
"""The words of oslo.messaging, which rules for logs look for."""
SPARE_THREADS = 2
"""For those whose outcomes wait to be stored, while as many tasks run as may."""


class Server(Protocol):
    """What a worker does with its RPC server. Nothing here waits for the broker longer than two or three seconds."""

    @property
    def consuming(self) -> bool:
        """Whether messages come in: connected, and neither paused nor stopped."""

    def start(self) -> None:
        """Begin to take messages; returns at once, and connects in the background for as long as it takes."""

    def pause(self) -> list[HandedBack]:
        """Take nothing more until :meth:`resume`, and hand back what was not begun."""

    def resume(self) -> None:
        """Take messages again."""

    def stop_intake(self) -> list[HandedBack]:
        """Take nothing more for good; what was not begun goes back to the broker and is returned. What runs goes on."""

    def wait(self, deadline: float | None) -> bool:
        """Wait until nothing runs any more.

        :param deadline: an instant of ``time.monotonic()``; ``None`` waits without limit.
        :returns: ``False`` if the deadline came first.
        """

    def close(self) -> None:
        """Close the connection. What still runs goes on, unseen."""


def get_server(
    transport: oslo_messaging.Transport,
    target: oslo_messaging.Target,
    endpoints: Sequence[object],
    *,
    threads: int,
    read_ahead: int,
) -> Server:
    """Make an RPC server; only methods marked with :func:`~retryflow.queue.delivery.expose` can be called.

    :param endpoints: the objects whose methods are called.
    :param target: topic and server name to listen on.
    :param threads: how many messages are worked on at the same time.
    :param read_ahead: how many more are taken from the broker in advance.
    """
    dispatcher = oslo_messaging.RPCDispatcher(
        list(endpoints), None, access_policy=oslo_messaging.ExplicitRPCAccessPolicy
    )
    if is_rabbit(transport):
        return RabbitServer(transport, target, dispatcher, threads=threads, read_ahead=read_ahead)
    return fallback.PlainServer(transport, target, dispatcher, threads=threads, read_ahead=read_ahead)


class RabbitServer:
    """A :class:`Server` on RabbitMQ that acknowledges a message when its endpoint method says so.

    (oslo.messaging's own server acknowledges what it receives at once and keeps it in an unbounded queue, which a stop
    or a crash loses.)
    """

    def __init__(
        self,
        transport: oslo_messaging.Transport,
        target: oslo_messaging.Target,
        dispatcher: oslo_messaging.RPCDispatcher,
        *,
        threads: int,
        read_ahead: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._target = target
        self._exchange = target.exchange or transport.conf.control_exchange
        self._preparing = [
            (each, prepare)
            for each in dispatcher.endpoints
            if (prepare := getattr(each, "prepare_messages", None)) is not None
        ]
        self._threads: TaskThreads[Delivery] = TaskThreads(
            threads, self._run, spare=SPARE_THREADS, prepare=self._prepare if self._preparing else None
        )
        self._replies = _Replies(transport)
        self._intake = Intake(
            transport,
            name=target.topic,
            declare=self._declare,
            capacity=threads + read_ahead,
            receive=self._threads.submit,
            take_back=self._threads.take_back,
        )
        self._settler = _Settler(self._intake, self._threads)

    @property
    def consuming(self) -> bool:
        return self._intake.consuming

    @property
    def answered_at(self) -> float:
        """When the broker last answered :meth:`ask`, on the monotonic clock."""
        return self._intake.answered_at

    def ask(self) -> None:
        """Ask the broker for a sign of life; returns at once."""
        self._intake.ask()

    def start(self) -> None:
        self._threads.start()
        self._intake.start()

    def pause(self) -> list[HandedBack]:
        return [HandedBack.of(delivery.request) for delivery in self._intake.release(ending=False)]

    def resume(self) -> None:
        self._intake.resume()

    def stop_intake(self) -> list[HandedBack]:
        return [HandedBack.of(delivery.request) for delivery in self._intake.release(ending=True)]

    @property
    def unconfirmed(self) -> bool:
        """Whether the broker has not confirmed what :meth:`stop_intake` says went back: it redelivers by itself."""
        return self._intake.unconfirmed

    def wait(self, deadline: float | None) -> bool:
        return self._threads.wait(deadline)

    def close(self) -> None:
        self._threads.stop()
        self._intake.close(CLOSE_TIMEOUT_SECONDS)

    def _declare(self, connection: BrokerConnection) -> None:
        # The three that any oslo.messaging server listens on.
        connection.declare_topic_consumer(self._exchange, self._target.topic)
        connection.declare_topic_consumer(self._exchange, f"{self._target.topic}.{self._target.server}")
        connection.declare_fanout_consumer(self._target.topic, None)

    def _prepare(self, deliveries: Sequence[Delivery]) -> None:
        found = [(each.request, *self._find(each.request)) for each in deliveries]
        for endpoint, prepare in self._preparing:
            late = [request.arguments for request, of, method in found if of is endpoint and is_late(method)]
            if late:
                prepare(late)

    def _run(self, delivery: Delivery) -> None:
        request = delivery.request
        _endpoint, method = self._find(request)
        late = is_late(method)
        try:
            if not late and not self._intake.acknowledge_now(delivery):
                self._intake.unwanted(delivery)
                return
            incoming = self._replies.incoming(request, monitored=method is not None)
            context = oslo_context.RequestContext(request_id=request.request_id, overwrite=True)
            with delivering(self._settler, delivery):
                result, failure = _outcome(partial(self._dispatcher.dispatch, incoming))
        finally:
            self._intake.finished(delivery)
        if isinstance(result, Future):
            if request.message_id is not None:
                result, failure = _outcome(result.result)
            else:
                # Nobody waits for the answer of a cast, so this thread does not either.
                result.add_done_callback(partial(_log_failure, context))
                result = None
        self._reply(incoming, result, failure)

    def _find(self, request: Request) -> tuple[object | None, object | None]:
        """:returns: endpoint and method that it will be dispatched to."""
        namespace, version = request.message.get("namespace"), request.message.get("version", "1.0")
        for endpoint in self._dispatcher.endpoints:
            target = getattr(endpoint, "target", None) or oslo_messaging.Target()
            if self._dispatcher._is_namespace(target, namespace) and self._dispatcher._is_compatible(target, version):
                method = getattr(endpoint, request.method, None)
                if method is not None and self._dispatcher.access_policy.is_allowed(endpoint, request.method):
                    return endpoint, method
        return None, None

    def _reply(self, incoming: Any, result: Any, failure: Any) -> None:
        try:
            if failure:
                incoming.reply(failure=failure)
            else:
                incoming.reply(result)
        except Exception:
            LOG.exception("Cannot reply to message %s", incoming.msg_id)


def _outcome(work: Callable[[], Any]) -> tuple[Any, Any]:
    """:returns: what the work of a message returns and what it raises, as a reply takes them."""
    try:
        return work(), None
    except oslo_messaging.ExpectedException as expected:
        return None, expected.exc_info
    except oslo_messaging.RPCDispatcherError as error:
        LOG.warning("Dropped a message that nothing here serves: %.200s", error)
        return None, sys.exc_info()
    except BaseException:
        # SystemExit too: a method must not end one of our threads, nor leave its caller without an answer.
        LOG.exception(HANDLING_FAILED)
        return None, sys.exc_info()


def _log_failure(context: oslo_context.RequestContext, future: "Future[Any]") -> None:
    """Log what the work of a cast raises, with the request id of the cast: this is the thread of an executor."""
    try:
        future.result()
    except oslo_messaging.ExpectedException:
        return
    except BaseException:
        LOG.exception(HANDLING_FAILED, extra={"context": context})


class _Settler:
    """What an endpoint method says of its message, for those whom it concerns."""

    def __init__(self, intake: Intake, threads: TaskThreads[Delivery]) -> None:
        self.claimed = intake.claimed
        self.unwanted = intake.unwanted
        self._finished = intake.finished
        self._make_room = threads.make_room

    def over(self, delivery: Delivery) -> bool:
        if delivery.request.message_id is not None:
            return False
        self._finished(delivery)
        self._make_room()
        return True


class _Replies:
    """Makes the objects through which a caller is answered; the driver takes it for a listener."""

    def __init__(self, transport: oslo_messaging.Transport) -> None:
        self.driver = transport._driver
        self._gone = amqpdriver.ObsoleteReplyQueuesCache()

    def incoming(self, request: Request, *, monitored: bool) -> Any:
        return amqpdriver.AMQPIncomingMessage(
            self,
            request.context,
            request.message,
            request.unique_id,
            request.message_id,
            request.reply_queue,
            # Its watch over the caller's patience never ends where no method is found (an upstream bug).
            request.client_timeout if monitored else None,
            self._gone,
            None,
        )
