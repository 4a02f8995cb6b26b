"""The request id of log lines that speak of an order on a thread that does not run its task."""

from __future__ import annotations

from typing import Any

from oslo_context.context import RequestContext, get_current


def request_of(order_id: str, request_id: str | None) -> str:
    """The request id under which an order is spoken of in every log line, on every host and at every attempt.

    :param request_id: the one that it was submitted with; without one, it is made of the order's id.
    """
    return request_id or f"req-{order_id}"


def about(order_id: str, request_id: str | None) -> dict[str, Any]:
    """What a log call takes as ``extra``, so that its line bears the order's request id."""
    return {"context": RequestContext(request_id=request_of(order_id, request_id), overwrite=False)}


def speak_of(order_id: str, request_id: object) -> None:
    """Let every log line of this thread bear the order's request id from now on.

    :param request_id: as it came; a message can be anybody's, and must not write log lines of its own.
    """
    known = " ".join(request_id.split())[:64] if isinstance(request_id, str) else None
    wanted = request_of(order_id, known)
    current = get_current()
    if current is None or current.request_id != wanted:
        RequestContext(request_id=wanted, overwrite=True)
