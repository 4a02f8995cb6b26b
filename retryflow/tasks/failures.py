"""What becomes of an order whose task has raised instead of returning an outcome."""

import errno
import http.client
import socket
import urllib.error

import oslo_db.exception
import sqlalchemy.exc
from oslo_utils import strutils

from retryflow.errors import LeaseLost, PluginUnavailable
from retryflow.retry.outcome import Fail, Retry

INTERNAL_ERROR = "The order could not be completed because of an internal error. The details are in the worker's log."
"""What the user reads: the exception's own text may hold addresses, paths or secrets."""

_TRANSIENT: tuple[type[BaseException], ...] = (
    PluginUnavailable,
    ConnectionError,
    TimeoutError,
    http.client.RemoteDisconnected,
    http.client.IncompleteRead,
    # The name server is away; like the next ones no ConnectionError, though it means the same.
    socket.gaierror,
    oslo_db.exception.DBConnectionError,
    oslo_db.exception.DBDeadlock,
    sqlalchemy.exc.TimeoutError,
)
_TRANSIENT_NUMBERS = frozenset(
    {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EAGAIN}
)
_MAXIMUM_REASON_CHARACTERS = 500


def outcome_of_exception(
    error: BaseException, *, transient_errors: tuple[type[BaseException], ...] = ()
) -> Retry | Fail:
    """The outcome of a task that raised. Logging the traceback is the caller's part.

    ``PluginUnavailable`` and whatever means that something beyond a connection is out of reach give a ``Retry``, with
    the policy's backoff; everything else, also ``SystemExit``, a ``Fail`` with a neutral sentence.
    ``LeaseLost`` gives a ``Retry`` that is not counted; the finish that would commit it is refused in any case.

    :param error: what the task raised.
    :param transient_errors: more exceptions that count as out of reach, from ``OrderType.transient_errors``.
    """
    if isinstance(error, LeaseLost):
        return Retry(reason=_reason(error), counted=False)
    return transient_outcome(error, transient_errors=transient_errors) or Fail(code="500", reason=INTERNAL_ERROR)


def transient_outcome(error: BaseException, *, transient_errors: tuple[type[BaseException], ...] = ()) -> Retry | None:
    """The ``Retry`` of an exception that may pass, ``None`` of any other."""
    if isinstance(error, transient_errors) or _is_transient(error):
        return Retry(reason=_reason(error))
    return None


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, _TRANSIENT):
        return True
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (429, 502, 503, 504)
    if isinstance(error, urllib.error.URLError):
        return isinstance(error.reason, BaseException) and _is_transient(error.reason)
    if isinstance(error, sqlalchemy.exc.DBAPIError):
        return error.connection_invalidated
    return isinstance(error, OSError) and error.errno in _TRANSIENT_NUMBERS


def _reason(error: BaseException) -> str:
    """One line for the operator, who finds it as ``last_error``; passwords in it are masked."""
    name = "" if isinstance(error, PluginUnavailable) else f"{type(error).__name__}: "
    text = " ".join(strutils.mask_password(str(error)).split()) or "no details"
    return f"{name}{text}"[:_MAXIMUM_REASON_CHARACTERS]
