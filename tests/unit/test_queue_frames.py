"""Our bytes of ``basic.publish`` and ``basic.ack`` are those that py-amqp would write."""

from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message, spec
from amqp.method_framing import frame_handler, frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

from retryflow.queue import frames


class Transport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)


def as_py_amqp_writes(body: bytes, *, frame_max: int, message_id: str) -> bytes:
    transport = Transport()
    connection = SimpleNamespace(frame_max=frame_max, bytes_sent=0)
    message = Message(
        body,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        expiration="1500",
        message_id=message_id,
    )
    arguments = dumps("Bssbb", (0, "exchange", "topic", True, False))
    frame_writer(connection, transport)(1, 7, spec.Basic.Publish, arguments, message)
    return transport.written


def as_we_write(body: bytes, *, frame_max: int, message_id: str) -> bytes:
    return frames.publish_method(7, exchange="exchange", routing_key="topic") + frames.content(
        7, body, message_id=message_id, ttl_seconds=1.5, frame_max=frame_max
    )


@given(body=st.binary(min_size=1, max_size=500), message_id=st.text("abcdef0123456789-", min_size=1, max_size=255))
def test_the_bytes_are_the_same(body: bytes, message_id: str) -> None:
    ours = as_we_write(body, frame_max=4096, message_id=message_id)
    assert ours == as_py_amqp_writes(body, frame_max=4096, message_id=message_id)


@given(tag=st.integers(1, 2**64 - 1), channel=st.integers(1, 2**16 - 1))
def test_the_bytes_of_an_acknowledgement_are_the_same(tag: int, channel: int) -> None:
    transport = Transport()
    write = frame_writer(SimpleNamespace(frame_max=4096, bytes_sent=0), transport)
    write(1, channel, spec.Basic.Ack, dumps("Lb", (tag, False)), None)
    assert frames.ack(channel, tag) == transport.written


@pytest.mark.parametrize("length", [0, 1, 4087, 4088, 4089, 8176, 8177, 100_000])
def test_a_body_of_any_length_is_read_back_whole(length: int) -> None:
    body = bytes(number % 251 for number in range(length))
    data = as_we_write(body, frame_max=4096, message_id="x")
    received: list[Any] = []
    handle = frame_handler(
        SimpleNamespace(bytes_recv=0),
        lambda _channel, _method, _arguments, message: received.append(message),
        content_methods=frozenset([spec.Basic.Publish]),
    )
    while data:
        size = int.from_bytes(data[3:7], "big")
        assert size <= 4096 - 8
        assert data[7 + size] == 0xCE
        handle((data[0], int.from_bytes(data[1:3], "big"), data[7 : 7 + size]))
        data = data[8 + size :]
    assert [bytes(message.body or b"") for message in received] == [body]


def test_a_name_too_long_for_the_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="255"):
        frames.publish_method(1, exchange="x" * 256, routing_key="")


def test_no_lifetime_is_rounded_to_nothing() -> None:
    assert b"\x011" in frames.content(1, b"", message_id="", ttl_seconds=0.0, frame_max=4096)
