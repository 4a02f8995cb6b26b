"""The wire format of oslo.messaging's RPC over AMQP: what we send, and a strict reading of what comes in."""

import bz2
import json
import lzma
import os
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import oslo_messaging
from oslo_messaging._drivers import amqp as driver_amqp
from oslo_messaging._drivers import common as driver_common
from oslo_serialization import jsonutils

# Our own, which no application can have given the same seed in each of its processes.
_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)
# As ``jsonutils.dumps`` would, which makes one for each message.
_encoder = json.JSONEncoder(default=jsonutils.to_primitive)
ENVELOPE_VERSION = "2.0"
MAXIMUM_BODY_BYTES = 8 * 1024 * 1024


class NotARequest(Exception):
    """A message that is no RPC request; its text tells what is wrong, without any of the content."""


@dataclass(frozen=True, slots=True)
class Request:
    """An RPC request as it came in."""

    message: dict[str, Any]
    context: dict[str, Any]
    unique_id: str
    message_id: str | None
    reply_queue: str | None
    client_timeout: Any

    @property
    def method(self) -> str:
        method: str = self.message["method"]
        return method

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = self.message.get("args") or {}
        return arguments

    @property
    def request_id(self) -> str | None:
        return self.context.get("request_id") or self.arguments.get("request_id")


def encode(
    method: str, arguments: dict[str, Any], *, target: oslo_messaging.Target, context: dict[str, Any] | None = None
) -> bytes:
    """The body of a cast."""
    message = {"method": method, "args": arguments, "_unique_id": _new_id()}
    if target.namespace is not None:
        message["namespace"] = target.namespace
    if target.version is not None:
        message["version"] = target.version
    for key, value in (context or {}).items():
        message[f"_context_{key}"] = value
    return json.dumps({"oslo.version": ENVELOPE_VERSION, "oslo.message": _encoder.encode(message)}).encode()


def _new_id() -> str:
    """What receivers know copies of a message by. Nobody has to be kept from guessing it."""
    return f"{_random.getrandbits(128):032x}"


def refuse_bomb(body: bytes, properties: Mapping[str, Any]) -> None:
    """Look how long a compressed body is before kombu unpacks all of it.

    :raises NotARequest: too long, or compressed in a way whose result cannot be bounded.
    """
    how = (properties.get("application_headers") or {}).get("compression")
    if not how:
        return
    # The names are those that kombu puts there for ``kombu_compression``.
    unpackers: dict[str, Callable[[], Any]] = {
        "application/x-gzip": zlib.decompressobj,
        "application/x-bz2": bz2.BZ2Decompressor,
        "application/x-lzma": lzma.LZMADecompressor,
    }
    if how not in unpackers:
        raise NotARequest("compressed in an unknown way")
    try:
        length = len(unpackers[how]().decompress(bytes(body), MAXIMUM_BODY_BYTES + 1))
    except Exception as error:  # noqa: BLE001 - anything can be in there
        raise NotARequest(f"cannot be decompressed ({type(error).__name__})") from None
    if length > MAXIMUM_BODY_BYTES:
        raise NotARequest(f"longer than {MAXIMUM_BODY_BYTES} bytes")


def decode(raw: Any) -> Request:
    """Read a received message.

    :param raw: kombu's message.
    :raises NotARequest: it is not one that the dispatcher can be given.
    """
    if len(raw.body or b"") > MAXIMUM_BODY_BYTES:
        raise NotARequest(f"longer than {MAXIMUM_BODY_BYTES} bytes")
    try:
        message = driver_common.deserialize_msg(raw.payload)
    except Exception as error:  # noqa: BLE001 - see below
        # Anything can be in there: wrong encoding, a type we do not accept, nesting without end.
        raise NotARequest(f"cannot be decoded ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise NotARequest(f"a {type(message).__name__} in place of an object")
    context = driver_amqp.unpack_context(message)
    values = context.to_dict()
    unique_id = message.pop(driver_amqp.UNIQUE_ID, None) or _new_id()
    for name, value, kinds in (
        ("method", message.get("method"), (str,)),
        ("args", message.get("args", {}), (dict,)),
        ("namespace", message.get("namespace"), (str, type(None))),
        ("_unique_id", unique_id, (str,)),
        ("_msg_id", context.msg_id, (str, type(None))),
        ("_reply_q", context.reply_q, (str, type(None))),
    ):
        if not isinstance(value, kinds):
            raise NotARequest(f"{name} is a {type(value).__name__}")
    _check_version(message.get("version", "1.0"))
    return Request(message, values, unique_id, context.msg_id, context.reply_q, context.client_timeout)


def _check_version(version: object) -> None:
    if not isinstance(version, str) or not all(part.isdecimal() for part in version.split(".")) or "." not in version:
        raise NotARequest("version is not major.minor")
