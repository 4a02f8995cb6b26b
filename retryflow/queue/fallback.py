"""The RPC server for transports other than RabbitMQ: oslo.messaging's own, with a bound on what it takes."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import oslo_messaging
from oslo_context import context as oslo_context
from oslo_log import log as logging
from oslo_messaging.rpc import server as rpc_server

from retryflow.queue.delivery import HandedBack
from retryflow.queue.threads import TaskThreads
from retryflow.queue.transport import is_in_process

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_SECONDS = 2.0


class PlainServer:
    """A :class:`~retryflow.queue.server.Server` on a transport that acknowledges what it receives at once.

    What was not begun is handed back where the transport can take it (``fake://``); elsewhere it is lost, and the
    scheduler sends the ticket again.
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
        self._server = _BoundedRPCServer(transport, target, dispatcher, threads=threads, read_ahead=read_ahead)
        self._consuming = self._started = False
        name = transport._driver._url.transport
        if is_in_process(f"{name}://"):
            LOG.info("Messages are passed on within this process (%s), without a broker", name)
        else:
            LOG.warning(
                "Transport %s cannot acknowledge a message after its task was claimed: what a worker had received when "
                "it died is lost, and sent again by the scheduler later. rabbit:// avoids that",
                name,
            )

    @property
    def consuming(self) -> bool:
        return self._consuming

    def start(self) -> None:
        self._server.threads.start()
        # Its own pool stays empty, so that one thread is more than enough.
        self._server.start(override_pool_size=1)
        self._consuming = self._started = True

    def pause(self) -> list[HandedBack]:
        self._consuming = False
        self._server.may_take.clear()
        return self._server.put_back()

    def resume(self) -> None:
        if not self._server.ending:
            self._consuming = True
            self._server.may_take.set()

    def stop_intake(self) -> list[HandedBack]:
        self._consuming = False
        self._server.ending = True
        self._server.may_take.set()
        back = self._server.put_back()
        if self._started:  # otherwise it would wait for the start
            # In a thread of its own: it waits for the receiving thread, which may be waiting for room.
            threading.Thread(target=self._server.stop, name="queue-stop", daemon=True).start()
        return back

    def wait(self, deadline: float | None) -> bool:
        return self._server.threads.wait(deadline)

    def close(self) -> None:
        if not self._server.ending:
            self.stop_intake()
        self._server.threads.stop()
        if not self._started:
            return
        closing = threading.Thread(target=self._server.wait, name="queue-close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_SECONDS)


class _BoundedRPCServer(rpc_server.RPCServer):  # type: ignore[misc]
    """Runs messages on our threads, and holds up the thread that receives while they have enough to do.

    start, stop and wait are not overridden: their decorators count the calls.
    """

    def __init__(
        self, transport: oslo_messaging.Transport, target: Any, dispatcher: Any, *, threads: int, read_ahead: int
    ) -> None:
        super().__init__(transport, target, dispatcher)
        dispatcher.dispatch = _answering(dispatcher.dispatch)
        self.threads: TaskThreads[Any] = TaskThreads(threads, self._run)
        self.may_take = threading.Event()
        self.may_take.set()
        self.ending = False
        self._room = threading.Semaphore(threads + read_ahead)

    def put_back(self) -> list[HandedBack]:
        """Give back what no thread has begun."""
        return [self._put_back(incoming) for incoming in self.threads.take_back()]

    def _put_back(self, incoming: Any) -> HandedBack:
        message = incoming[0]
        message.requeue()
        self._room.release()
        arguments = message.message.get("args") or {}
        return HandedBack(
            message.message.get("method"),
            message.ctxt.get("request_id") or arguments.get("request_id"),
            arguments.get("order_id"),
            arguments.get("task_id"),
        )

    def _on_incoming(self, incoming: Any) -> None:
        self.may_take.wait()
        self._room.acquire()
        if self.ending:
            self._put_back(incoming)
        else:
            self.threads.submit(incoming)

    def _run(self, incoming: Any) -> None:
        try:
            oslo_context.RequestContext(request_id=incoming[0].ctxt.get("request_id"), overwrite=True)
            self._process_incoming(incoming)
        finally:
            self._room.release()


def _answering(dispatch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The library would send a future as the answer, and none at all where a method exits."""

    def answer(incoming: Any) -> Any:
        try:
            result = dispatch(incoming)
            return result.result() if isinstance(result, Future) else result
        except Exception:
            raise
        except BaseException as error:
            # As a caller over RabbitMQ sees it; in its own shape, fake:// would let it end the caller's thread.
            raise oslo_messaging.RemoteError(type(error).__name__, str(error)) from error

    return answer
