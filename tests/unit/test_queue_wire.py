"""The wire format: what we write is read back, and nothing else gets through."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_messaging import Target

from retryflow.queue import wire

TARGET = Target(namespace="barbican", version="1.1", topic="x")
TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("method", "args", "namespace", "version", "_unique_id", "_msg_id", "_reply_q", "_timeout")


def received(payload: Any) -> Any:
    return SimpleNamespace(body="x", payload=payload)


def read_back(body: bytes) -> wire.Request:
    return wire.decode(received(json.loads(body)))


@given(arguments=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_arguments_come_back_as_they_went(arguments: dict[str, Any]) -> None:
    request = read_back(wire.encode("do_it", arguments, target=TARGET, context={"request_id": "req-1"}))
    assert request.method == "do_it"
    assert request.arguments == arguments
    assert request.request_id == "req-1"
    assert request.message["namespace"] == "barbican"
    assert request.message["version"] == "1.1"
    assert request.message_id is None


def test_each_message_has_its_own_id() -> None:
    ids = {read_back(wire.encode("do_it", {}, target=TARGET)).unique_id for _ in range(100)}
    assert len(ids) == 100


def test_the_request_id_may_be_an_argument() -> None:
    assert read_back(wire.encode("do_it", {"request_id": "req-2"}, target=TARGET)).request_id == "req-2"


@given(payload=VALUES | st.fixed_dictionaries({"oslo.version": VALUES, "oslo.message": VALUES}))
def test_whatever_comes_in_is_a_request_or_refused(payload: Any) -> None:
    """S3, P8"""
    try:
        request = wire.decode(received(payload))
    except wire.NotARequest:
        return
    assert isinstance(request.method, str)
    assert isinstance(request.arguments, dict)


@given(
    message=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("method", "args", "namespace", "version", "_unique_id", "_msg_id", "_reply_q", "_timeout"), VALUES
        ),
    )
)
def test_whatever_is_in_an_envelope_is_a_request_or_refused(message: dict[str, Any]) -> None:
    """S3, P8"""
    envelope = {"oslo.version": "2.0", "oslo.message": json.dumps(message)}
    try:
        request = wire.decode(received(envelope))
    except wire.NotARequest:
        return
    assert isinstance(request.method, str)
    assert isinstance(request.unique_id, str)
    assert isinstance(request.message_id, str | None)


def test_the_text_of_a_refusal_holds_none_of_the_content() -> None:
    with pytest.raises(wire.NotARequest) as refusal:
        wire.decode(received("secret"))
    assert "secret" not in str(refusal.value)


def test_an_oversized_message_is_not_even_parsed() -> None:
    class Huge:
        body = "x" * (wire.MAXIMUM_BODY_BYTES + 1)

        @property
        def payload(self) -> Any:
            raise AssertionError

    with pytest.raises(wire.NotARequest, match="longer than"):
        wire.decode(Huge())
