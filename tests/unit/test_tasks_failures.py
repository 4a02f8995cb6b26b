"""What a task that raises does to its order: try again where it may pass, else ERROR with a neutral sentence."""

import errno
import socket
import urllib.error
from email.message import Message

import oslo_db.exception
import pytest
import sqlalchemy.exc

from retryflow.errors import LeaseLost, PluginUnavailable
from retryflow.retry.outcome import Fail, Retry
from retryflow.tasks.failures import INTERNAL_ERROR, outcome_of_exception


class BackendBusy(Exception):
    """As a client library has it."""


@pytest.mark.parametrize(
    "error",
    [
        PluginUnavailable("the authority is down"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        socket.gaierror(socket.EAI_AGAIN, "try again"),
        OSError(errno.EHOSTUNREACH, "no route"),
        OSError(errno.ENETUNREACH, "no network"),
        urllib.error.URLError(ConnectionRefusedError()),
        urllib.error.HTTPError("http://ca", 503, "busy", Message(), None),
        oslo_db.exception.DBConnectionError(),
        oslo_db.exception.DBDeadlock(),
        sqlalchemy.exc.TimeoutError(),
        sqlalchemy.exc.OperationalError("select", {}, Exception("gone"), connection_invalidated=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_out_of_reach_is_tried_again_with_backoff(error: BaseException) -> None:
    outcome = outcome_of_exception(error)
    assert isinstance(outcome, Retry)
    assert outcome.reason
    assert outcome.counted
    assert outcome.after_seconds is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret at /etc/path"),
        KeyError("secret"),
        FileNotFoundError(errno.ENOENT, "secret"),
        urllib.error.HTTPError("http://secret", 404, "no", Message(), None),
        urllib.error.URLError("secret"),
        sqlalchemy.exc.OperationalError("secret", {}, Exception()),
        BackendBusy("secret"),
        SystemExit("secret"),
        KeyboardInterrupt(),
        RecursionError("secret"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_else_ends_the_order_without_telling_the_user_the_inside(error: BaseException) -> None:
    """FAILURES D4 is about SystemExit: it must not slip through."""
    assert outcome_of_exception(error) == Fail(code="500", reason=INTERNAL_ERROR)
    assert "secret" not in INTERNAL_ERROR


def test_an_order_type_names_further_exceptions_that_pass() -> None:
    assert isinstance(outcome_of_exception(BackendBusy("later"), transient_errors=(BackendBusy,)), Retry)


def test_a_lost_lease_counts_as_no_attempt() -> None:
    outcome = outcome_of_exception(LeaseLost("gone"))
    assert isinstance(outcome, Retry)
    assert not outcome.counted


def test_the_operator_s_reason_is_one_line_without_passwords() -> None:
    outcome = outcome_of_exception(ConnectionError("cannot reach\n http://ca?password=hunter2 " + "x" * 1000))
    assert isinstance(outcome, Retry)
    assert outcome.reason.startswith("ConnectionError: cannot reach http://ca")
    assert "hunter2" not in outcome.reason
    assert "\n" not in outcome.reason
    assert len(outcome.reason) <= 500
