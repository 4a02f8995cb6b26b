"""The request id of log lines that speak of an order on a thread that does not run its task."""

from __future__ import annotations

from typing import Any

from oslo_context.context import RequestContext, get_current

from retryflow.retry.plan import clean_line


def request_of(order_id: str, request_id: str | None) -> str:
    """The request id under which an order is spoken of in every log line, on every host and at every attempt.

    :param request_id: the one that it was submitted with; without one, it is made of the order's id.
    """
    return request_id or f"req-{order_id}"


class _Aside(RequestContext):
    """A context for one line. One of oslo.context's own would stay the thread's where that has none yet."""

    def update_store(self) -> None:
        """Leave the thread's context as it is."""


def about(order_id: str, request_id: str | None) -> dict[str, Any]:
    """What a log call takes as ``extra``, so that its line, and no other, bears the order's request id."""
    return {"context": _Aside(request_id=_legible(order_id, request_id))}


def speak_of(order_id: str, request_id: object) -> None:
    """Let every log line of this thread bear the order's request id from now on.

    :param request_id: as it came; a message can be anybody's, and must not write log lines of its own.
    """
    wanted = _legible(order_id, request_id[:64] if isinstance(request_id, str) else None)
    current = get_current()
    if current is None or current.request_id != wanted:
        RequestContext(request_id=wanted, overwrite=True)


def _legible(order_id: str, request_id: str | None) -> str:
    return request_of(_one_line(order_id), _one_line(request_id or "") or None)


def _one_line(text: str) -> str:
    # Nearly every one is; this runs twice for each task.
    return text.strip() if text.isprintable() else clean_line(text)
