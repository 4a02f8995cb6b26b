"""What retryflow.queue builds on in other libraries without their promise: fails by name when a release moves it.

Run it against the oldest and the newest releases that pyproject.toml allows: ``tox -e oldest``, ``tox -e functional``.
"""

import importlib
import importlib.metadata
import inspect
import socket
import threading
from collections.abc import Iterator
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from retryflow.queue.client import TaskClient
from retryflow.queue.connection import BrokerConnection
from retryflow.queue.server import get_server
from retryflow.queue.target import ticket_target, worker_target
from retryflow.queue.transport import get_transport
from tests.fixtures.rabbit import Rabbit, eventually
from tests.functional.test_queue_burst import HANG_SECONDS, tickets
from tests.functional.test_queue_server import Endpoint

# Module, name within it, parameters that we pass (None: it is not called), who relies on it.
NAMES: list[tuple[str, str, list[str] | None, str]] = [
    ("oslo_messaging._drivers.impl_rabbit", "RabbitDriver", None, "transport.is_rabbit"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection.__init__", ["conf", "url", "purpose"], "connection"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection.ensure_connection", [], "connection overrides it"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection.ensure", ["method"], "connection overrides it"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection._set_current_channel", ["new_channel"], "connection"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection.close", [], "connection"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection.durable", None, "burst"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection._on_connection_blocked", None, "connection overrides it"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection._on_connection_unblocked", None, "connection overrides it"),
    ("oslo_messaging._drivers.impl_rabbit", "Connection.declare_topic_consumer", ["exchange_name", "topic"], "server"),
    (
        "oslo_messaging._drivers.impl_rabbit",
        "Connection.declare_fanout_consumer",
        ["topic", "callback"],
        "server, wake",
    ),
    ("oslo_messaging._drivers.common", "PURPOSE_LISTEN", None, "connection"),
    ("oslo_messaging._drivers.common", "deserialize_msg", ["msg"], "wire"),
    ("oslo_messaging._drivers.amqp", "unpack_context", ["msg"], "wire"),
    ("oslo_messaging._drivers.amqp", "UNIQUE_ID", None, "wire"),
    ("oslo_messaging._drivers.amqpdriver", "ObsoleteReplyQueuesCache", [], "server"),
    (
        "oslo_messaging._drivers.amqpdriver",
        "AMQPIncomingMessage.__init__",
        [
            "listener",
            "ctxt",
            "message",
            "unique_id",
            "msg_id",
            "reply_q",
            "client_timeout",
            "obsolete_reply_queues",
            "message_operations_handler",
        ],
        "server",
    ),
    ("oslo_messaging.rpc.dispatcher", "RPCDispatcher._is_namespace", ["target", "namespace"], "server"),
    ("oslo_messaging.rpc.dispatcher", "RPCDispatcher._is_compatible", ["target", "version"], "server"),
    ("oslo_messaging.rpc.dispatcher", "RPCDispatcher.dispatch", ["incoming"], "server"),
    ("oslo_messaging.rpc.server", "RPCServer._on_incoming", ["incoming"], "fallback overrides it"),
    ("oslo_messaging.rpc.server", "RPCServer._process_incoming", ["incoming"], "fallback"),
    ("amqp", "Connection.blocking_read", ["timeout"], "connection"),
    ("amqp.transport", "TCPTransport.having_timeout", ["timeout"], "connection"),
    ("amqp.transport", "SSLTransport.having_timeout", ["timeout"], "connection"),
    ("amqp", "Channel.basic_reject", ["delivery_tag", "requeue"], "intake"),
    ("amqp", "Channel.basic_cancel", ["consumer_tag"], "intake"),
    ("amqp", "Channel.basic_qos", ["prefetch_size", "prefetch_count", "a_global"], "intake"),
    ("amqp", "Channel.confirm_select", [], "burst"),
    ("kombu", "Connection.collect", [], "connection"),
    ("kombu", "Connection.heartbeat_check", ["rate"], "intake"),
    ("kombu", "Connection.drain_events", None, "connection"),
    ("kombu", "Queue.consume", ["consumer_tag", "callback", "no_ack"], "intake"),
]


def found(module: str, name: str) -> Any:
    versions = ", ".join(f"{each} {importlib.metadata.version(each)}" for each in ("oslo.messaging", "kombu", "amqp"))
    thing: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(thing, part):
            pytest.fail(f"{module}.{name} is not there any more ({versions})", pytrace=False)
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize(("module", "name", "parameters", "user"), NAMES, ids=[f"{row[0]}.{row[1]}" for row in NAMES])
def test_what_we_build_on_is_there(module: str, name: str, parameters: list[str] | None, user: str) -> None:
    thing = found(module, name)
    if parameters is None:
        return
    signature = inspect.signature(thing)
    names = [each for each in signature.parameters if each != "self"]
    missing = [
        each
        for each, parameter in signature.parameters.items()
        if each not in {*parameters, "self"}
        and parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]
    assert names[: len(parameters)] == parameters or set(parameters) <= set(names), f"{name}: {user} calls it otherwise"
    assert not missing, f"{name}: {user} does not pass {missing}"


@pytest.fixture
def connection(rabbit_conf: cfg.ConfigOpts) -> Iterator[BrokerConnection]:
    connection = BrokerConnection(get_transport(rabbit_conf), connect_timeout_seconds=HANG_SECONDS)
    yield connection
    connection.close_gracefully(HANG_SECONDS)


def test_a_connection_has_the_parts_that_we_use(connection: BrokerConnection, rabbit: Rabbit) -> None:
    assert connection.durable is True, "quorum queues are the default"
    assert connection.amqp_auto_delete is False
    channel = connection.channel
    assert channel.channel_id == 1
    assert channel.connection.frame_max > 4096
    assert channel.connection.heartbeat > 0
    assert channel.connection.transport.sock.fileno() > 0
    assert callable(channel.connection.transport.write)
    assert isinstance(channel.connection.transport._read_buffer, bytes)
    assert callable(channel.connection.transport._quick_recv)
    connection.set_socket_timeout(7.0)
    kernel_timeout = channel.connection.transport.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert kernel_timeout == 7000, "py-amqp's own is one second"
    assert channel.callbacks == {}
    for event in ("basic_ack", "basic_nack", "basic_return"):
        assert isinstance(channel.events[event], set)
    connection.declare_topic_consumer(rabbit.name, rabbit.topic)
    connection.declare_fanout_consumer(rabbit.topic, None)
    queues = connection.declared_queues()
    assert queues[0].name == rabbit.topic
    assert queues[1].name.startswith(f"{rabbit.topic}_fanout_")


def test_a_connection_has_no_thread_of_its_own(rabbit_conf: cfg.ConfigOpts) -> None:
    before = set(threading.enumerate())
    connection = BrokerConnection(get_transport(rabbit_conf), connect_timeout_seconds=HANG_SECONDS)
    assert set(threading.enumerate()) == before
    connection.close_gracefully(HANG_SECONDS)


def stock_server(conf: cfg.ConfigOpts, endpoint: Endpoint) -> Any:
    server = oslo_messaging.get_rpc_server(
        get_transport(conf),
        worker_target(conf),
        [endpoint],
        access_policy=oslo_messaging.ExplicitRPCAccessPolicy,
    )
    server.start()
    return server


def test_the_librarys_own_server_serves_our_tickets(rabbit: Rabbit, rabbit_conf: cfg.ConfigOpts) -> None:
    endpoint = Endpoint()
    server = stock_server(rabbit_conf, endpoint)
    client = TaskClient(get_transport(rabbit_conf), rabbit_conf)
    sent = tickets(100)
    assert client.send(sent, timeout_seconds=HANG_SECONDS) == set()
    eventually(lambda: len(endpoint.ended) == 100)
    assert sorted(endpoint.ended) == sorted(ticket.task_id for ticket in sent)
    client.close()
    server.stop()
    server.wait()


def test_the_librarys_own_client_reaches_our_server(rabbit_conf: cfg.ConfigOpts) -> None:
    endpoint = Endpoint()
    server = get_server(get_transport(rabbit_conf), worker_target(rabbit_conf), [endpoint], threads=2, read_ahead=2)
    server.start()
    eventually(lambda: server.consuming)
    client = oslo_messaging.get_rpc_client(get_transport(rabbit_conf), ticket_target(rabbit_conf), timeout=HANG_SECONDS)
    assert client.call({"request_id": "req-1"}, "ask", what="hello") == "hello!"
    client.cast({}, "process_type_order", task_id="1", order_id="o", project_id=None, request_id=None)
    eventually(lambda: endpoint.ended == ["1"])
    server.close()


def test_both_servers_share_one_queue(rabbit_conf: cfg.ConfigOpts) -> None:
    """A rolling change from one to the other: the queues must be declared alike."""
    ours, theirs = Endpoint(), Endpoint()
    stock = stock_server(rabbit_conf, theirs)
    server = get_server(get_transport(rabbit_conf), worker_target(rabbit_conf), [ours], threads=2, read_ahead=2)
    server.start()
    eventually(lambda: server.consuming)
    client = TaskClient(get_transport(rabbit_conf), rabbit_conf)
    client.send(tickets(200), timeout_seconds=HANG_SECONDS)
    eventually(lambda: len(ours.ended) + len(theirs.ended) == 200)
    assert ours.ended
    assert theirs.ended
    client.close()
    server.close()
    stock.stop()
    stock.wait()


def test_the_operators_prefetch_stays_his(rabbit_conf: cfg.ConfigOpts) -> None:
    """Ours is set on our own channel, not in the configuration that other users of the library share."""
    transport = get_transport(rabbit_conf)
    server = get_server(transport, worker_target(rabbit_conf), [Endpoint()], threads=2, read_ahead=2)
    server.start()
    eventually(lambda: server.consuming)
    assert rabbit_conf.oslo_messaging_rabbit.rabbit_qos_prefetch_count == 0
    server.close()
