"""Statements on ``order_events``: the history of an order, written in the transaction that changes it."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from retryflow.model.clock import now
from retryflow.model.tables import order_events
from retryflow.model.types import AnyRow

SUBMITTED = "submitted"
POLLING = "polling"
RETRYING = "retrying"
CONTINUED = "continued"
DONE = "done"
FAILED = "failed"
CRASHED = "crashed"
INTERRUPTED = "interrupted"
DROPPED = "outcome dropped"
UPDATED = "update requested"
CANCELLED = "cancelled"
REOPENED = "retry requested"
RESUMED = "resumed"

_DETAIL_LENGTH = 2000
_REQUEST = "request "


def cut(detail: str | None) -> str | None:
    """:returns: ``detail`` as it is stored."""
    return detail[:_DETAIL_LENGTH] if detail else None


def request_detail(request_id: str | None) -> str | None:
    """:returns: the detail of an order's first line: its rows, which know the request id as well, go when it ends."""
    return f"{_REQUEST}{request_id}" if request_id else None


def request_given(history: Sequence[AnyRow]) -> str | None:
    """:returns: the request id that the order was last started with, if the caller chose one."""
    starts = [line for line in history if line.event in (SUBMITTED, REOPENED)]
    detail = starts[-1].detail if starts else None
    return detail.removeprefix(_REQUEST) if detail and detail.startswith(_REQUEST) else None


def add(
    connection: sa.Connection,
    order_id: str,
    event: str,
    *,
    task: str | None = None,
    task_id: str | None = None,
    holder: str | None = None,
    seconds: float | None = None,
    detail: str | None = None,
) -> None:
    """Write one line of the history.

    :param seconds: how long the run took.
    :param detail: for people; cut at 2000 characters.
    """
    values: dict[str, Any] = {
        "task": task,
        "task_id": task_id,
        "holder": holder,
        "seconds": seconds,
        "detail": cut(detail),
    }
    if event == POLLING and _counted_up(connection, order_id, values):
        return
    connection.execute(order_events.insert().values(order_id=order_id, event=event, at=now(), last_at=now(), **values))


def _counted_up(connection: sa.Connection, order_id: str, values: dict[str, Any]) -> bool:
    """A poll like the one before is counted there: a certificate that takes a week is one line, not two thousand."""
    columns = order_events.c
    last = connection.execute(
        sa.select(columns.id, columns.event, columns.task, columns.detail)
        .where(columns.order_id == order_id)
        .order_by(columns.id.desc())
        .limit(1)
    ).one_or_none()
    if last is None or (last.event, last.task, last.detail) != (POLLING, values["task"], values["detail"]):
        return False
    statement = (
        order_events.update().where(columns.id == last.id).values(count=columns.count + 1, last_at=now(), **values)
    )
    return connection.execute(statement).rowcount == 1


def ends_of(connection: sa.Connection, order_id: str, task_id: str) -> set[str]:
    """How a run of this task ended, as its own worker wrote it (for reading back after an unclear commit).

    :returns: names of events. Those of a recovery, which carry the same task id, have no run time and are left out.
    """
    columns = order_events.c
    found = connection.execute(
        sa.select(columns.event).where(
            columns.order_id == order_id, columns.task_id == task_id, columns.seconds.is_not(None)
        )
    )
    return set(found.scalars())


def was_written(connection: sa.Connection, order_id: str, event: str, *, task_id: str) -> bool:
    """Whether the order has an event of this name about this task."""
    columns = order_events.c
    statement = sa.select(columns.id).where(
        columns.order_id == order_id, columns.task_id == task_id, columns.event == event
    )
    return connection.execute(statement.limit(1)).first() is not None


def of_order(connection: sa.Connection, order_id: str) -> list[AnyRow]:
    """:returns: the history, the oldest first."""
    columns = order_events.c
    return list(
        connection.execute(sa.select(order_events).where(columns.order_id == order_id).order_by(columns.id)).all()
    )
