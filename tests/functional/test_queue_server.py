"""The bounded RPC server on a real RabbitMQ, within one process."""

import bz2
import json
import logging
import lzma
import socket
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import amqp
import oslo_messaging
import pytest
from oslo_config import cfg

from retryflow.queue import delivery
from retryflow.queue.client import TaskClient
from retryflow.queue.server import HandedBack, Server, get_server
from retryflow.queue.target import ticket_target, worker_target
from retryflow.queue.transport import get_transport
from retryflow.queue.window import HOLD_SECONDS
from retryflow.queue.wire import Request
from retryflow.retry.sending import Ticket
from tests.fixtures.rabbit import Rabbit, eventually, overriding
from tests.fixtures.tcp_proxy import TcpProxy

HANG_SECONDS = 20.0


class Endpoint:
    """Methods that wait until they are told to go on."""

    target = oslo_messaging.Target(namespace="barbican", version="1.1")

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.claims = True
        self.makes_room = False

    @delivery.expose(late_acknowledge=True)
    def process_type_order(self, _context: Any, task_id: str, **_arguments: Any) -> None:
        self.begun.append(task_id)
        if self.claims:
            delivery.acknowledge()
        if self.makes_room:
            delivery.make_room()
        self.go_on.wait()
        self.ended.append(task_id)

    @delivery.expose
    def check_certificate_status(self, _context: Any, task_id: str, **_arguments: Any) -> None:
        self.begun.append(task_id)
        self.go_on.wait()
        self.ended.append(task_id)

    @delivery.expose(late_acknowledge=True)
    def update_order(self, _context: Any, task_id: str, **_arguments: Any) -> None:
        self.begun.append(task_id)
        if not self.go_on.is_set():
            delivery.hand_back()
            return
        delivery.acknowledge()
        self.ended.append(task_id)

    @delivery.expose
    def ask(self, _context: Any, what: str) -> str:
        self.begun.append(what)
        self.go_on.wait()
        if what == "exit":
            raise SystemExit(7)
        if what == "fail":
            raise ValueError("it failed")
        return f"{what}!"

    @delivery.expose(late_acknowledge=True)
    def room(self, _context: Any) -> bool:
        delivery.acknowledge()
        return delivery.make_room()

    @delivery.expose
    def later(self, _context: Any) -> "Future[int]":
        future: Future[int] = Future()
        threading.Timer(0.2, future.set_result, [42]).start()
        return future

    @delivery.expose
    def fail_later(self, context: Any, what: str) -> "Future[str]":
        executor = ThreadPoolExecutor(1)
        future = executor.submit(self.ask, context, what)
        executor.shutdown(wait=False)
        return future

    def hidden(self, _context: Any) -> None:
        self.begun.append("hidden")


class Bench:
    """Makes servers and clients of one test, and ends them."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf
        self.endpoint = Endpoint()
        self.servers: list[Server] = []
        self.client = TaskClient(get_transport(conf), conf)

    def server(self, *, threads: int = 2, read_ahead: int = 2, endpoint: Endpoint | None = None) -> Server:
        server = self.unstarted(threads=threads, read_ahead=read_ahead, endpoint=endpoint)
        server.start()
        eventually(lambda: server.consuming)
        return server

    def unstarted(self, *, threads: int = 2, read_ahead: int = 2, endpoint: Endpoint | None = None) -> Server:
        server = get_server(
            get_transport(self.conf),
            worker_target(self.conf),
            [endpoint or self.endpoint],
            threads=threads,
            read_ahead=read_ahead,
        )
        self.servers.append(server)
        return server

    def send(self, count: int, task: str = "process_type_order") -> list[str]:
        several = [
            Ticket(
                task_id=uuid.uuid4().hex,
                order_id=f"order-{number}",
                task=task,
                project_id="project",
                request_id=f"req-{number}",
                ttl_seconds=300.0,
            )
            for number in range(count)
        ]
        assert self.client.send(several, timeout_seconds=HANG_SECONDS) == set()
        return [ticket.task_id for ticket in several]

    def caller(self, timeout: float = HANG_SECONDS, **options: Any) -> Any:
        return oslo_messaging.get_rpc_client(
            get_transport(self.conf), ticket_target(self.conf), timeout=timeout, **options
        )

    def close(self) -> None:
        self.endpoint.go_on.set()
        for server in self.servers:
            server.close()
        self.client.close()


@pytest.fixture
def bench(rabbit_conf: cfg.ConfigOpts) -> Iterator[Bench]:
    bench = Bench(rabbit_conf)
    yield bench
    bench.close()


@pytest.fixture
def proxy(rabbit: Rabbit, tcp_proxies: list[TcpProxy]) -> TcpProxy:
    proxy = TcpProxy(rabbit.host(), rabbit.port())
    tcp_proxies.append(proxy)
    return proxy


@pytest.fixture
def proxied(rabbit: Rabbit, proxy: TcpProxy) -> Iterator[Bench]:
    with overriding(rabbit.through(proxy.port).overrides) as conf:
        bench = Bench(conf)
        yield bench
        proxy.resume()
        bench.close()


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The exceptions that were logged as those of a message's work."""
    return [
        str(record.exc_info[1])
        for record in caplog.records
        if record.exc_info and record.message == "Exception during message handling"
    ]


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, answer


def test_each_ticket_runs_once_and_nothing_is_left(bench: Bench, rabbit: Rabbit) -> None:
    bench.server(threads=8, read_ahead=4)
    sent = bench.send(500)
    eventually(lambda: len(bench.endpoint.ended) == 500)
    assert sorted(bench.endpoint.ended) == sorted(sent)
    bench.servers[0].close()
    assert rabbit.ready() == 0


@pytest.mark.parametrize("task", ["process_type_order", "check_certificate_status"], ids=["late", "early"])
def test_takes_no_more_than_threads_and_read_ahead(bench: Bench, rabbit: Rabbit, task: str) -> None:
    """T6, also after the running ones are acknowledged, and when some of them have ended."""
    bench.endpoint.go_on.clear()
    bench.server(threads=3, read_ahead=2)
    other = Endpoint()
    bench.send(40, task)
    eventually(lambda: len(bench.endpoint.begun) == 3)
    settled = threading.Event()
    settled.wait(2 * HOLD_SECONDS)
    # Of the rest, a second worker gets all but the read-ahead of the first.
    bench.server(threads=8, read_ahead=8, endpoint=other)
    eventually(lambda: len(other.ended) == 40 - 3 - 2)
    bench.endpoint.go_on.set()
    eventually(lambda: len(bench.endpoint.ended) == 5)


def test_room_is_used_again_after_long_tasks(bench: Bench) -> None:
    bench.endpoint.go_on.clear()
    bench.server(threads=2, read_ahead=0)
    bench.send(30)
    eventually(lambda: len(bench.endpoint.begun) == 2)
    threading.Event().wait(1.5 * HOLD_SECONDS)
    bench.endpoint.go_on.set()
    eventually(lambda: len(bench.endpoint.ended) == 30)


@pytest.mark.parametrize("claims", [True, False])
def test_a_claimed_ticket_is_acknowledged_while_its_task_runs(
    proxied: Bench, proxy: TcpProxy, rabbit: Rabbit, claims: bool
) -> None:
    proxied.endpoint.claims = claims
    proxied.endpoint.go_on.clear()
    proxied.server(threads=1, read_ahead=0)
    proxied.send(1)
    eventually(lambda: proxied.endpoint.begun)
    threading.Event().wait(1.5 * HOLD_SECONDS)
    proxy.refuse()
    # What is not acknowledged by now comes back.
    eventually(lambda: rabbit.consumers() == 0)
    assert rabbit.ready() == (0 if claims else 1)


def test_an_unclaimed_ticket_comes_back_when_the_process_goes(bench: Bench, rabbit: Rabbit) -> None:
    bench.endpoint.go_on.clear()
    bench.endpoint.claims = False
    server = bench.server(threads=1, read_ahead=0)
    bench.send(1)
    eventually(lambda: bench.endpoint.begun)
    server.close()
    eventually(lambda: rabbit.ready() == 1)


def test_a_ticket_handed_back_is_delivered_again(bench: Bench) -> None:
    bench.endpoint.go_on.clear()
    bench.server()
    bench.send(1, "update_order")
    eventually(lambda: len(bench.endpoint.begun) > 2)
    bench.endpoint.go_on.set()
    eventually(lambda: len(bench.endpoint.ended) == 1)


def test_stop_intake_hands_over_what_was_not_begun(bench: Bench) -> None:
    """D10"""
    bench.endpoint.go_on.clear()
    server = bench.server(threads=2, read_ahead=2)
    other = Endpoint()
    sent = bench.send(4)
    eventually(lambda: len(bench.endpoint.begun) == 2)
    eventually(lambda: rabbit_in_hand(server) == 4)
    bench.server(threads=8, endpoint=other)
    began = time.monotonic()
    back = server.stop_intake()
    eventually(lambda: len(other.ended) == 2)
    assert time.monotonic() - began < HANG_SECONDS / 2
    assert {ticket.task_id for ticket in back} == set(sent) - set(bench.endpoint.begun) == set(other.ended)
    assert all(isinstance(ticket, HandedBack) and ticket.method == "process_type_order" for ticket in back)
    assert all(ticket.request_id and ticket.order_id for ticket in back)
    bench.endpoint.go_on.set()
    assert server.wait(time.monotonic() + HANG_SECONDS)
    assert not server.consuming


def rabbit_in_hand(server: Any) -> int:
    return len(server._intake._in_hand)


def test_stop_intake_leaves_the_queue_to_the_others(bench: Bench, rabbit: Rabbit) -> None:
    """D10: no subscription is left, so that the broker does not even try."""
    bench.endpoint.go_on.clear()
    server = bench.server()
    bench.send(1)
    eventually(lambda: bench.endpoint.begun)
    server.stop_intake()
    assert rabbit.consumers() == 0
    bench.send(5)
    assert rabbit.ready() == 5


def test_stop_intake_in_a_stream_of_tickets_loses_and_doubles_none(bench: Bench, rabbit: Rabbit) -> None:
    """D10"""
    other = Endpoint()
    server = bench.server(threads=4, read_ahead=4)
    bench.server(threads=4, read_ahead=4, endpoint=other)
    sent = bench.send(1500)
    eventually(lambda: len(bench.endpoint.ended) > 100)
    server.stop_intake()
    assert server.wait(time.monotonic() + HANG_SECONDS)
    ended = len(bench.endpoint.ended)
    server.close()
    eventually(lambda: len(other.ended) + ended == 1500)
    assert sorted(bench.endpoint.ended + other.ended) == sorted(sent)
    assert len(bench.endpoint.ended) == ended


def test_a_call_gets_its_reply_after_stop_intake(bench: Bench) -> None:
    bench.endpoint.go_on.clear()
    server = bench.server()
    thread, answer = in_background(lambda: bench.caller().call({}, "ask", what="hello"))
    eventually(lambda: bench.endpoint.begun)
    assert server.stop_intake() == []
    bench.endpoint.go_on.set()
    assert server.wait(time.monotonic() + HANG_SECONDS)
    server.close()
    thread.join(HANG_SECONDS)
    assert answer == ["hello!"]


@pytest.mark.slow
def test_a_drain_longer_than_the_heartbeat_keeps_the_connection(rabbit: Rabbit) -> None:
    """The message acknowledged at the end of the drain must not come back."""
    short = {("oslo_messaging_rabbit", "heartbeat_timeout_threshold"): 4}
    with overriding({**rabbit.overrides, **short}) as conf:
        bench = Bench(conf)
        bench.endpoint.claims = False
        bench.endpoint.go_on.clear()
        server = bench.server()
        bench.send(1)
        eventually(lambda: bench.endpoint.begun)
        server.stop_intake()
        threading.Event().wait(13.0)
        bench.endpoint.go_on.set()
        assert server.wait(time.monotonic() + HANG_SECONDS)
        server.close()
        assert rabbit.ready() == 0
        bench.close()


def test_wait_ends_at_its_deadline(bench: Bench) -> None:
    bench.endpoint.go_on.clear()
    server = bench.server()
    bench.send(1)
    eventually(lambda: bench.endpoint.begun)
    server.stop_intake()
    assert not server.wait(time.monotonic() + 0.1)
    bench.endpoint.go_on.set()
    assert server.wait(None)


def test_pause_gives_back_and_resume_takes_again(bench: Bench, rabbit: Rabbit) -> None:
    bench.endpoint.go_on.clear()
    server = bench.server(threads=1, read_ahead=3)
    sent = bench.send(4)
    eventually(lambda: rabbit_in_hand(server) == 4 and bench.endpoint.begun)
    assert len(server.pause()) == 3
    assert not server.consuming
    bench.endpoint.go_on.set()
    eventually(lambda: rabbit.ready() == 3)
    assert len(bench.endpoint.begun) == 1
    server.resume()
    eventually(lambda: len(bench.endpoint.ended) == 4)
    assert sorted(bench.endpoint.ended) == sorted(sent)
    # The queue for messages to this very server is listened to again as well.
    assert bench.caller().prepare(server="barbican.queue").call({}, "ask", what="again") == "again!"


def test_pause_and_resume_many_times_loses_none(bench: Bench) -> None:
    server = bench.server(threads=4, read_ahead=4)
    sent = bench.send(1000)
    while len(bench.endpoint.ended) < 900:
        server.pause()
        server.resume()
        reached = len(bench.endpoint.ended)
        eventually(lambda reached=reached: len(bench.endpoint.ended) > reached)
    eventually(lambda: len(bench.endpoint.ended) == 1000)
    assert sorted(bench.endpoint.ended) == sorted(sent)


def test_stop_stays_stopped_after_resume(bench: Bench, rabbit: Rabbit) -> None:
    server = bench.server()
    server.stop_intake()
    server.resume()
    bench.send(1)
    assert not server.consuming
    server.close()
    assert rabbit.ready() == 1


def envelope(message: Any) -> str:
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)})


JSON = {"content_type": "application/json", "content_encoding": "utf-8"}
REQUEST = {"method": "process_type_order", "namespace": "barbican", "version": "1.1", "args": {}, "_unique_id": "x"}
GARBAGE: dict[str, tuple[bytes | str, dict[str, Any]]] = {
    "bytes": (b"\x00\xff\xfe garbage-content", {}),
    "bytes called JSON": (b"\x00\xff\xfe garbage-content", JSON),
    "unknown encoding": (b"garbage-content", {"content_type": "application/json", "content_encoding": "klingon"}),
    "pickle": (b"garbage-content", {"content_type": "application/x-python-serialize", "content_encoding": "binary"}),
    "unknown compression": ("garbage-content", {**JSON, "application_headers": {"compression": "garbage"}}),
    "empty": (b"", JSON),
    "no JSON": ("garbage-content", JSON),
    "a string": ('"garbage-content"', JSON),
    "a list": ('["garbage-content"]', JSON),
    "null": ("null", JSON),
    "deep": ("[" * 100_000, JSON),
    "10 MB": ('{"garbage-content": "' + "x" * 10_000_000 + '"}', JSON),
    "other envelope": ('{"oslo.version": "9.0", "oslo.message": "garbage-content"}', JSON),
    "envelope with bad JSON": ('{"oslo.version": "2.0", "oslo.message": "garbage-content"}', JSON),
    "envelope of a list": (envelope(["garbage-content"]), JSON),
    "envelope of null": (envelope(None), JSON),
    "envelope version a number": ('{"oslo.version": 2, "oslo.message": "{}"}', JSON),
    "no method": (envelope({"args": {}}), JSON),
    "method a list": (envelope({**REQUEST, "method": ["garbage-content"]}), JSON),
    "args a list": (envelope({**REQUEST, "args": ["garbage-content"]}), JSON),
    "args null": (envelope({**REQUEST, "args": None}), JSON),
    "namespace a list": (envelope({**REQUEST, "namespace": []}), JSON),
    "version a number": (envelope({**REQUEST, "version": 1.1}), JSON),
    "version garbage": (envelope({**REQUEST, "version": "garbage-content"}), JSON),
    "version one number": (envelope({**REQUEST, "version": "1"}), JSON),
    "unique id a list": (envelope({**REQUEST, "_unique_id": ["garbage-content"]}), JSON),
    "message id a list": (envelope({**REQUEST, "_msg_id": ["garbage-content"]}), JSON),
    "reply queue a number": (envelope({**REQUEST, "_msg_id": "a", "_reply_q": 7}), JSON),
    "unknown method": (envelope({**REQUEST, "method": "drop_all_tables"}), JSON),
    "hidden method": (envelope({**REQUEST, "method": "hidden"}), JSON),
    "dunder method": (envelope({**REQUEST, "method": "__init__"}), JSON),
    "compressed garbage": (b"garbage-content", JSON | {"application_headers": {"compression": "application/x-gzip"}}),
    "compressed in an unknown way": (b"garbage-content", JSON | {"application_headers": {"compression": "other"}}),
    "compressed and longer than allowed": (
        zlib.compress(bytes(9 * 1024 * 1024)),
        JSON | {"application_headers": {"compression": "application/x-gzip"}},
    ),
    "attribute": (envelope({**REQUEST, "method": "begun"}), JSON),
    "target": (envelope({**REQUEST, "method": "target"}), JSON),
    "other namespace": (envelope({**REQUEST, "namespace": "other"}), JSON),
    "newer major version": (envelope({**REQUEST, "version": "2.0"}), JSON),
    "newer minor version": (envelope({**REQUEST, "version": "1.9"}), JSON),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_dropped_with_one_warning_and_the_others_go_on(
    bench: Bench, rabbit: Rabbit, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """S3, P8"""
    body, properties = GARBAGE[kind]
    server = bench.server()
    with caplog.at_level(logging.INFO, "retryflow"):
        rabbit.publish(body, **properties)
        sent = bench.send(20)
        eventually(lambda: len(bench.endpoint.ended) == 20)
        server.stop_intake()
        assert server.wait(time.monotonic() + HANG_SECONDS)
    server.close()
    assert sorted(bench.endpoint.begun) == sorted(sent)
    assert rabbit.ready() == 0, "it must not come back"
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(loud) == 1
    assert not loud[0].exc_info
    assert "garbage-content" not in caplog.text


@pytest.mark.parametrize(
    ("how", "compress"),
    [
        ("application/x-gzip", zlib.compress),
        ("application/x-bz2", bz2.compress),
        ("application/x-lzma", lzma.compress),
    ],
)
def test_a_compressed_request_is_served(
    bench: Bench, rabbit: Rabbit, how: str, compress: Callable[[bytes], bytes]
) -> None:
    """What oslo.messaging's kombu_compression does."""
    server = bench.server()
    body = compress(envelope({**REQUEST, "args": {"task_id": "small"}}).encode())
    rabbit.publish(body, **JSON, application_headers={"compression": how})
    eventually(lambda: bench.endpoint.ended == ["small"])
    server.close()


def test_a_header_that_py_amqp_cannot_read_costs_the_message_and_not_the_connection(
    bench: Bench, rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P8: a time in milliseconds, as clients in other languages write it, would come back for ever."""
    table = b"\x04sentT" + struct.pack(">Q", 1_796_000_000_000)
    properties = struct.pack(">HI", 1 << 13, len(table)) + table
    server = bench.server()
    with monkeypatch.context() as other_client, caplog.at_level(logging.INFO, "retryflow"):
        other_client.setattr(amqp.Message, "_serialize_properties", lambda _message: properties)
        rabbit.publish(b"{}")
    sent = bench.send(5)
    eventually(lambda: len(bench.endpoint.ended) == 5)
    assert sorted(bench.endpoint.begun) == sorted(sent)
    server.close()
    assert rabbit.ready() == 0, "it must not come back"
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]


def test_arguments_that_do_not_fit_disturb_nobody(bench: Bench, rabbit: Rabbit) -> None:
    """T15"""
    server = bench.server()
    rabbit.publish(envelope({**REQUEST, "args": {"surprise": 1}}), **JSON)
    sent = bench.send(5)
    eventually(lambda: len(bench.endpoint.ended) == 5)
    assert sorted(bench.endpoint.begun) == sorted(sent)
    server.close()
    assert rabbit.ready() == 0


def test_a_method_that_exits_answers_and_its_thread_lives(bench: Bench) -> None:
    """D4"""
    bench.server(threads=1, read_ahead=0)
    caller = bench.caller()
    for _ in range(2):
        with pytest.raises(oslo_messaging.RemoteError):
            caller.call({}, "ask", what="exit")
        with pytest.raises(ValueError, match="it failed"):
            caller.call({}, "ask", what="fail")
    assert caller.call({}, "ask", what="still there") == "still there!"


def test_who_waits_for_an_answer_gets_that_of_the_future(bench: Bench) -> None:
    bench.server(threads=1, read_ahead=0)
    assert bench.caller().call({}, "later") == 42


def test_who_waits_for_a_future_that_fails_gets_its_exception(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It got none, and waited for its whole time-out."""
    bench.server(threads=1, read_ahead=0)
    with pytest.raises(ValueError, match="it failed"):
        bench.caller().call({}, "fail_later", what="fail")
    with pytest.raises(oslo_messaging.RemoteError, match="SystemExit"):
        bench.caller().call({}, "fail_later", what="exit")
    assert failures(caplog) == ["it failed", "7"]
    assert "Cannot reply" not in caplog.text


def test_the_exception_of_a_future_for_which_nobody_waits_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server(threads=1, read_ahead=0)
    bench.caller().cast({"request_id": "req-1"}, "fail_later", what="fail")
    eventually(lambda: failures(caplog) == ["it failed"])
    [context] = [record.context for record in caplog.records if record.exc_info]  # type: ignore[attr-defined]
    assert context.request_id == "req-1"


def test_no_room_is_made_while_somebody_waits_for_the_answer(bench: Bench) -> None:
    """It could not be sent before the outcome is stored."""
    bench.server(threads=1, read_ahead=0)
    assert bench.caller().call({}, "room") is False


def test_an_unknown_method_is_answered_even_to_an_impatient_caller(bench: Bench) -> None:
    """With call monitoring, the library's watch over such a call never ends (an upstream bug)."""
    bench.server()
    before = threading.active_count()
    with pytest.raises(oslo_messaging.RemoteError, match="does not support RPC method"):
        bench.caller(call_monitor_timeout=2).call({}, "nonsense")
    eventually(lambda: threading.active_count() <= before + 3)
    assert not [thread for thread in threading.enumerate() if "_watchdog" in thread.name]


def test_a_long_call_with_monitoring_is_kept_alive(bench: Bench) -> None:
    bench.server()
    bench.endpoint.go_on.clear()
    threading.Timer(4.0, bench.endpoint.go_on.set).start()
    assert bench.caller(call_monitor_timeout=2).call({}, "ask", what="long") == "long!"


def test_messages_to_one_server_and_to_all_arrive(bench: Bench) -> None:
    other = Endpoint()
    bench.server()
    bench.server(endpoint=other)
    caller = bench.caller()
    assert caller.prepare(server="barbican.queue").call({}, "ask", what="one") == "one!"
    caller.prepare(fanout=True).cast({}, "ask", what="all")
    eventually(lambda: "all" in bench.endpoint.begun and "all" in other.begun)


def test_a_cut_connection_does_not_run_a_running_task_again(proxied: Bench, proxy: TcpProxy, rabbit: Rabbit) -> None:
    """T3"""
    proxied.endpoint.claims = False
    proxied.endpoint.go_on.clear()
    server = proxied.server(threads=2, read_ahead=2)
    sent = proxied.send(6)
    eventually(lambda: len(proxied.endpoint.begun) == 2)
    proxy.cut()
    eventually(lambda: not server.consuming)
    eventually(lambda: server.consuming)
    # Each redelivered message is either taken over or waits.
    eventually(lambda: rabbit_in_hand(server) == 4)
    assert len(proxied.endpoint.begun) == 2
    proxied.endpoint.go_on.set()
    eventually(lambda: len(proxied.endpoint.ended) == 6)
    server.close()
    assert sorted(proxied.endpoint.ended) == sorted(sent)
    assert rabbit.ready() == 0


@pytest.mark.parametrize("makes_room", [False, True])
def test_cuts_in_a_stream_of_tickets_lose_and_double_none(
    proxied: Bench, proxy: TcpProxy, rabbit: Rabbit, makes_room: bool
) -> None:
    """T3"""
    proxied.endpoint.makes_room = makes_room
    proxied.server(threads=4, read_ahead=4)
    sent = proxied.send(2000)
    for limit in range(200, 2000, 300):
        eventually(lambda limit=limit: len(proxied.endpoint.ended) > limit)
        proxy.cut()
    eventually(lambda: len(proxied.endpoint.ended) >= 2000)
    proxied.servers[0].close()
    assert sorted(proxied.endpoint.ended) == sorted(sent)
    assert rabbit.ready() == 0


def test_an_acknowledgement_that_cannot_be_written_is_not_written_to_the_next_connection(
    proxied: Bench, rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intake lives on, and what was delivered again is acknowledged under its new tag."""
    proxied.endpoint.makes_room = True
    server = proxied.server(threads=4, read_ahead=4)
    flush = server._intake._flush  # type: ignore[attr-defined]
    broken: list[int] = []

    def break_first() -> None:
        due = len(server._intake._to_acknowledge)  # type: ignore[attr-defined]
        if due and len(broken) < 20 and len(proxied.endpoint.ended) > 20 * len(broken):
            broken.append(due)
            server._intake._channel.connection.transport.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        flush()

    monkeypatch.setattr(server._intake, "_flush", break_first)  # type: ignore[attr-defined]
    sent = proxied.send(600)
    eventually(lambda: len(proxied.endpoint.ended) >= 600)
    assert len(broken) >= 5
    server.close()
    assert sorted(proxied.endpoint.ended) == sorted(sent)
    assert rabbit.ready() == 0


def test_an_early_acknowledged_message_is_not_run_when_its_connection_is_gone(
    proxied: Bench, proxy: TcpProxy, rabbit: Rabbit
) -> None:
    """It is delivered again, and runs at most once."""
    proxied.server(threads=4, read_ahead=4)
    sent = proxied.send(1000, "check_certificate_status")
    for limit in range(200, 1000, 300):
        eventually(lambda limit=limit: len(proxied.endpoint.ended) > limit)
        proxy.cut()
    eventually(lambda: len(set(proxied.endpoint.ended)) == 1000)
    assert sorted(proxied.endpoint.ended) == sorted(sent)


def test_a_message_that_cannot_be_acknowledged_first_is_not_run(proxied: Bench, proxy: TcpProxy) -> None:
    """Its connection was lost between its receipt and its turn: the broker gives it to somebody else."""
    server: Any = proxied.server()
    proxy.refuse()
    eventually(lambda: not server.consuming)
    for task, begun in (("check_certificate_status", []), ("process_type_order", ["1"])):
        message = {"method": task, "namespace": "barbican", "version": "1.1", "args": {"task_id": "1"}}
        server._run(delivery.Delivery(Request(message, {}, uuid.uuid4().hex, None, None, None)))
        assert proxied.endpoint.begun == begun


def test_a_stalled_broker_does_not_hold_up_a_stop(proxied: Bench, proxy: TcpProxy) -> None:
    proxied.endpoint.go_on.clear()
    server = proxied.server(threads=1, read_ahead=3)
    proxied.send(4)
    eventually(lambda: rabbit_in_hand(server) == 4 and proxied.endpoint.begun)
    proxy.stall()
    began = time.monotonic()
    assert len(server.stop_intake()) == 3
    assert server.unconfirmed
    proxied.endpoint.go_on.set()
    assert server.wait(time.monotonic() + HANG_SECONDS)
    server.close()
    assert time.monotonic() - began < HANG_SECONDS / 2
    assert len(proxied.endpoint.ended) == 1


def test_what_was_given_back_as_the_connection_broke_is_taken_again(proxied: Bench, proxy: TcpProxy) -> None:
    """Database and broker go away together. Nothing may count as running here that nothing runs: it would never run."""
    proxied.endpoint.go_on.clear()
    server: Any = proxied.server(threads=2, read_ahead=2)
    sent = proxied.send(4)
    eventually(lambda: rabbit_in_hand(server) == 4 and len(proxied.endpoint.begun) == 2)
    proxy.stall()
    assert len(server.pause()) == 2
    assert server.unconfirmed
    proxy.cut()
    proxy.resume()
    proxied.endpoint.go_on.set()
    server.resume()
    eventually(lambda: sorted(proxied.endpoint.ended) == sorted(sent), "all four are run")
    eventually(lambda: rabbit_in_hand(server) == 0, "and nothing is in hand")


def test_waits_for_an_absent_broker_says_so_seldom_and_can_be_stopped(
    proxied: Bench, proxy: TcpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse()
    server = proxied.unstarted()
    with caplog.at_level(logging.INFO):
        server.start()
        threading.Event().wait(4.0)
        assert not server.consuming
        proxy.resume()
        eventually(lambda: server.consuming)
    trouble = [record for record in caplog.records if "trying again" in record.message]
    assert len(trouble) == 1
    assert len([record for record in caplog.records if record.levelno > logging.WARNING]) == 0
    proxied.send(3)
    eventually(lambda: len(proxied.endpoint.ended) == 3)
    proxy.refuse()
    eventually(lambda: not server.consuming)
    began = time.monotonic()
    assert server.stop_intake() == []
    assert server.wait(time.monotonic() + HANG_SECONDS)
    server.close()
    assert time.monotonic() - began < HANG_SECONDS / 2


def test_a_deleted_queue_is_declared_again(bench: Bench, rabbit: Rabbit) -> None:
    server = bench.server()
    with rabbit.channel() as channel:
        channel.queue_delete(rabbit.topic)
    eventually(lambda: rabbit.ready() == 0)
    eventually(lambda: server.consuming)
    bench.send(3)
    eventually(lambda: len(bench.endpoint.ended) == 3)


def test_log_lines_of_a_task_carry_its_request_id(bench: Bench) -> None:
    seen: list[str] = []

    class Curious(Endpoint):
        @delivery.expose
        def ask(self, _context: Any, what: str) -> str:
            from oslo_context import context

            seen.append(context.get_current().request_id)
            return what

    bench.server(endpoint=Curious())
    bench.caller().call({"request_id": "req-of-the-caller"}, "ask", what="x")
    assert seen == ["req-of-the-caller"]
