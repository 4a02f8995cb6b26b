"""Tickets in bursts on a real RabbitMQ: what is not confirmed is reported, whatever the broker does, and in time."""

import logging
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest
from oslo_config import cfg

from retryflow.queue.burst import Burst, Letter
from retryflow.queue.client import TaskClient, TicketNotSent
from retryflow.queue.transport import get_transport
from retryflow.retry.sending import Ticket
from tests.fixtures.rabbit import Rabbit, eventually, overriding
from tests.fixtures.tcp_proxy import TcpProxy

HANG_SECONDS = 20.0


def tickets(count: int, *, ttl_seconds: float = 60.0, task: str = "process_type_order") -> list[Ticket]:
    return [
        Ticket(
            task_id=uuid.uuid4().hex,
            order_id=uuid.uuid4().hex,
            task=task,
            project_id="project",
            request_id=f"req-{number}",
            ttl_seconds=ttl_seconds,
        )
        for number in range(count)
    ]


@pytest.fixture
def client(rabbit_conf: cfg.ConfigOpts) -> Iterator[TaskClient]:
    client = TaskClient(get_transport(rabbit_conf), rabbit_conf)
    yield client
    client.close()


@pytest.fixture
def proxy(rabbit: Rabbit, tcp_proxies: list[TcpProxy]) -> TcpProxy:
    proxy = TcpProxy(rabbit.host(), rabbit.port())
    tcp_proxies.append(proxy)
    return proxy


@pytest.fixture
def proxied(rabbit: Rabbit, proxy: TcpProxy) -> Iterator[TaskClient]:
    """A client that reaches the broker through ``proxy``."""
    with overriding(rabbit.through(proxy.port).overrides) as conf:
        client = TaskClient(get_transport(conf), conf)
        yield client
        client.close()


def test_a_burst_is_confirmed_and_in_the_queue(client: TaskClient, rabbit: Rabbit) -> None:
    rabbit.declare()
    assert client.send(tickets(1234), timeout_seconds=HANG_SECONDS) == set()
    eventually(lambda: rabbit.ready() == 1234)


def test_an_empty_burst_needs_no_broker(rabbit: Rabbit) -> None:
    with overriding({**rabbit.overrides, (None, "transport_url"): "rabbit://127.0.0.1:1//"}) as conf:
        assert TaskClient(get_transport(conf), conf).send([], timeout_seconds=1.0) == set()


def test_messages_are_persistent(client: TaskClient, rabbit: Rabbit) -> None:
    rabbit.declare()
    client.send(tickets(1), timeout_seconds=HANG_SECONDS)
    assert eventually(rabbit.get).properties["delivery_mode"] == 2


def test_unroutable_tickets_are_all_reported(client: TaskClient, caplog: pytest.LogCaptureFixture) -> None:
    lost = tickets(250)
    with caplog.at_level(logging.WARNING):
        assert client.send(lost, timeout_seconds=HANG_SECONDS) == {ticket.task_id for ticket in lost}
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert "found no queue" in caplog.text


def test_a_queue_that_appears_later_is_used(client: TaskClient, rabbit: Rabbit) -> None:
    assert client.send(tickets(3), timeout_seconds=HANG_SECONDS)
    rabbit.declare()
    assert client.send(tickets(3), timeout_seconds=HANG_SECONDS) == set()


def test_a_ticket_lives_as_long_as_its_push_out(client: TaskClient, rabbit: Rabbit) -> None:
    rabbit.declare()
    client.send(tickets(5, ttl_seconds=0.5) + tickets(2, ttl_seconds=300.0), timeout_seconds=HANG_SECONDS)
    eventually(lambda: rabbit.ready() == 2)


def test_refused_tickets_are_reported(client: TaskClient, rabbit: Rabbit) -> None:
    with rabbit.channel() as channel:
        channel.exchange_declare(rabbit.name, "topic", durable=True, auto_delete=False)
        limits = {"x-max-length": 5, "x-overflow": "reject-publish"}
        channel.queue_declare(rabbit.topic, durable=True, auto_delete=False, arguments=limits)
        channel.queue_bind(rabbit.topic, rabbit.name, rabbit.topic)
    assert 10 <= len(client.send(tickets(20), timeout_seconds=HANG_SECONDS)) <= 15


def test_an_absent_broker_costs_no_more_than_the_limit(
    rabbit: Rabbit, tcp_proxies: list[TcpProxy], caplog: pytest.LogCaptureFixture
) -> None:
    """S11"""
    url = "rabbit://someone:very-secret@127.0.0.1:1//"
    with overriding({**rabbit.overrides, (None, "transport_url"): url}) as conf:
        client = TaskClient(get_transport(conf), conf)
        lost = tickets(10)
        began = time.monotonic()
        with caplog.at_level(logging.DEBUG):
            assert client.send(lost, timeout_seconds=2.0) == {ticket.task_id for ticket in lost}
        assert time.monotonic() - began < HANG_SECONDS / 2
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert "very-secret" not in caplog.text


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not yet connected"])
def test_a_hanging_broker_costs_no_more_than_the_limit(
    proxied: TaskClient, proxy: TcpProxy, rabbit: Rabbit, connected: bool
) -> None:
    """S11"""
    rabbit.declare()
    if connected:
        assert proxied.send(tickets(1), timeout_seconds=HANG_SECONDS) == set()
    proxy.stall()
    began = time.monotonic()
    # More than the buffers on the way can hold, so that writing hangs too.
    assert len(proxied.send(tickets(20000), timeout_seconds=1.0)) == 20000
    assert time.monotonic() - began < HANG_SECONDS / 2
    proxy.resume()
    assert proxied.send(tickets(10), timeout_seconds=HANG_SECONDS) == set()


def test_a_broker_that_does_not_even_read_costs_no_more_than_the_limit(
    proxied: TaskClient, proxy: TcpProxy, rabbit: Rabbit
) -> None:
    """S11"""
    rabbit.declare()
    assert proxied.send(tickets(1), timeout_seconds=HANG_SECONDS) == set()
    proxy.stall()
    assert proxied._burst is not None
    long = [Letter(str(number), lambda: b"x" * 1_000_000, 60.0) for number in range(50)]
    began = time.monotonic()
    assert len(proxied._burst.publish(long, timeout_seconds=1.0)) == 50
    assert time.monotonic() - began < HANG_SECONDS / 2


def test_a_blocking_broker_is_left_at_once(proxied: TaskClient, proxy: TcpProxy, rabbit: Rabbit) -> None:
    """S11: a memory or disk alarm. (Raising a real one would block all that uses the broker.)"""
    rabbit.declare()
    assert proxied.send(tickets(1), timeout_seconds=HANG_SECONDS) == set()
    reason = b"low on memory"
    payload = struct.pack(">HH", 10, 60) + bytes([len(reason)]) + reason
    proxy.inject(struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce")
    proxy.stall()
    began = time.monotonic()
    assert len(proxied.send(tickets(10), timeout_seconds=HANG_SECONDS)) == 10
    assert time.monotonic() - began < HANG_SECONDS / 2
    proxy.resume()
    assert proxied.send(tickets(10), timeout_seconds=HANG_SECONDS) == set()


def test_a_connection_broken_between_two_bursts_goes_unnoticed(
    proxied: TaskClient, proxy: TcpProxy, rabbit: Rabbit
) -> None:
    rabbit.declare()
    for _ in range(3):
        assert proxied.send(tickets(10), timeout_seconds=HANG_SECONDS) == set()
        proxy.cut()


def test_a_connection_broken_within_a_burst_is_reported_or_mended(
    proxied: TaskClient, proxy: TcpProxy, rabbit: Rabbit
) -> None:
    rabbit.declare()
    sent = tickets(5000)
    threading.Timer(0.05, proxy.cut).start()
    unconfirmed = proxied.send(sent, timeout_seconds=HANG_SECONDS)
    eventually(lambda: rabbit.ready() >= len(sent) - len(unconfirmed), "all that was confirmed is there")
    assert proxied.send(tickets(10), timeout_seconds=HANG_SECONDS) == set()


def test_an_unused_connection_is_not_trusted(
    client: TaskClient, rabbit: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbit.declare()
    monkeypatch.setattr("retryflow.queue.burst.IDLE_SECONDS", 0.0)
    for _ in range(3):
        assert client.send(tickets(10), timeout_seconds=HANG_SECONDS) == set()


def test_bursts_of_several_threads_do_not_mix(client: TaskClient, rabbit: Rabbit) -> None:
    rabbit.declare()
    answers: list[set[str]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.send(tickets(200), timeout_seconds=HANG_SECONDS)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert answers == [set()] * 8
    eventually(lambda: rabbit.ready() == 1600)


def test_a_ticket_that_amqp_cannot_carry_is_reported_and_the_others_go(client: TaskClient, rabbit: Rabbit) -> None:
    rabbit.declare()
    long = Ticket("x" * 300, "order", "process_type_order", None, None, 60.0)
    assert client.send([*tickets(3), long, *tickets(3)], timeout_seconds=HANG_SECONDS) == {long.task_id}
    eventually(lambda: rabbit.ready() == 6)


@pytest.mark.parametrize("size", [200_000, 1_000_000])
def test_a_cast_longer_than_a_frame_arrives_whole(client: TaskClient, rabbit: Rabbit, size: int) -> None:
    rabbit.declare()
    client.update_order("order", "project", {"csr": "x" * size}, "req-1")
    message = eventually(rabbit.get)
    assert "x" * size in message.body


CASTS: dict[str, Callable[[TaskClient], Any]] = {
    "process_type_order": lambda client: client.process_type_order("order", "project", "req-1"),
    "update_order": lambda client: client.update_order("order", "project", {"a": 1}, "req-1"),
    "check_certificate_status": lambda client: client.check_certificate_status("order", "project", "req-1"),
}


@pytest.mark.parametrize("method", CASTS)
def test_upstreams_casts_say_when_nobody_took_them(client: TaskClient, rabbit: Rabbit, method: str) -> None:
    with pytest.raises(TicketNotSent, match=f"{method} for order order"):
        CASTS[method](client)
    rabbit.declare()
    CASTS[method](client)
    eventually(lambda: rabbit.ready() == 1)


def test_a_conflicting_exchange_is_named(client: TaskClient, rabbit: Rabbit, caplog: pytest.LogCaptureFixture) -> None:
    with rabbit.channel() as channel:
        channel.exchange_declare(rabbit.name, "topic", durable=False, auto_delete=False)
    with caplog.at_level(logging.WARNING):
        assert client.send(tickets(1), timeout_seconds=HANG_SECONDS)
    assert "inequivalent arg 'durable'" in caplog.text
    assert rabbit.name in caplog.text


def test_the_frames_are_read_by_another_client(rabbit: Rabbit, rabbit_conf: cfg.ConfigOpts) -> None:
    rabbit.declare()
    client = TaskClient(get_transport(rabbit_conf), rabbit_conf)
    ticket = tickets(1)[0]
    client.send([ticket], timeout_seconds=HANG_SECONDS)
    message: amqp.Message = eventually(rabbit.get)
    properties = message.properties
    assert properties["content_type"] == "application/json"
    assert properties["content_encoding"] == "utf-8"
    assert properties["message_id"] == ticket.task_id
    assert properties["expiration"] == "60000"


def test_a_burst_after_a_fork_leaves_the_parents_connection_alone(client: TaskClient, rabbit: Rabbit) -> None:
    rabbit.declare()
    assert client.send(tickets(1), timeout_seconds=HANG_SECONDS) == set()
    burst: Burst | None = client._burst
    assert burst is not None
    link = burst._link
    assert link is not None
    link.process_id -= 1  # as it looks in a child
    assert client.send(tickets(1), timeout_seconds=HANG_SECONDS) == set()
    assert link.connection.connection.connected
