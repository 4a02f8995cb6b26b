"""``basic.publish`` and ``basic.ack`` of AMQP 0-9-1 as bytes.

py-amqp looks for incoming frames and writes to the socket for each message; a burst is several times faster when the
frames of many messages are put together first. The format is that of the protocol's specification, section 4.2.
"""

import struct

PERSISTENT = 2

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_BASIC, _PUBLISH, _ACK = 60, 40, 80
_MANDATORY = 1
# Of the fourteen properties, in the order of their values: content type, content encoding, delivery mode, expiration,
# message id.
_FLAGS = 1 << 15 | 1 << 14 | 1 << 12 | 1 << 8 | 1 << 7
_FRAME_OVERHEAD = 8


def publish_method(channel_id: int, *, exchange: str, routing_key: str) -> bytes:
    """The method frame, equal for all messages of a burst: mandatory, so that what cannot be routed comes back."""
    arguments = _short_string(exchange) + _short_string(routing_key) + bytes([_MANDATORY])
    return _frame(_METHOD, channel_id, struct.pack(">HHH", _BASIC, _PUBLISH, 0) + arguments)


def ack(channel_id: int, tag: int) -> bytes:
    """The frame that acknowledges one delivery."""
    return _frame(_METHOD, channel_id, struct.pack(">HHQB", _BASIC, _ACK, tag, 0))


def content(channel_id: int, body: bytes, *, message_id: str, ttl_seconds: float, frame_max: int) -> bytes:
    """Header and body frames of one persistent JSON message.

    :param ttl_seconds: how long the broker keeps it in a queue.
    :param frame_max: what was negotiated with the broker; longer bodies are cut into several frames.
    """
    properties = _SAME_PROPERTIES + _short_string(str(max(1, int(ttl_seconds * 1000)))) + _short_string(message_id)
    header = _frame(_HEADER, channel_id, struct.pack(">HHQ", _BASIC, 0, len(body)) + properties)
    room = frame_max - _FRAME_OVERHEAD
    return header + b"".join(_frame(_BODY, channel_id, body[at : at + room]) for at in range(0, len(body), room))


def _short_string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise ValueError("longer than the 255 bytes that AMQP allows here")
    return bytes([len(data)]) + data


_SAME_PROPERTIES = (
    struct.pack(">H", _FLAGS) + _short_string("application/json") + _short_string("utf-8") + bytes([PERSISTENT])
)


def _frame(kind: int, channel_id: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel_id, len(payload)) + payload + bytes([_END])
