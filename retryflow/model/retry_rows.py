"""Statements on ``order_retry_tasks``, the retry list."""

import json
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from retryflow.model.clock import now, seconds_between
from retryflow.model.orders import of_the_order
from retryflow.model.several import one_of
from retryflow.model.tables import order_retry_tasks, order_task_leases
from retryflow.model.task_state import TaskState
from retryflow.model.types import AnyRow
from retryflow.model.upsert import excluded, upsert

Query = TypeVar("Query", bound=sa.Select[Any])

_columns = order_retry_tasks.c

# Given a list of ids, the optimizer may rather read the whole table, and then waits for each row that somebody else has
# locked (Solid Queue #164). Joined like this there is one look-up by primary key for each id.
_MYSQL_DELETE = sa.text(
    "DELETE task FROM JSON_TABLE(:ids, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS wanted "
    "STRAIGHT_JOIN order_retry_tasks AS task ON task.id = CONVERT(wanted.id USING utf8mb4) COLLATE utf8mb4_bin"
)


def put(
    connection: sa.Connection,
    state: TaskState,
    *,
    after_seconds: float,
    starts_retry_clock: bool = False,
    starts_poll_clock: bool = False,
) -> None:
    """Put a task on the retry list, due ``after_seconds`` from now.

    A row of the same task is merged: the earlier time wins and the older row's counters stay. Nothing is lost by it,
    since a row only says "look again"; what to look at stands in the order.

    :param starts_retry_clock: its run of failures begins now, by the database's clock.
    :param starts_poll_clock: its waiting begins now.
    """
    values: dict[str, Any] = state.retry_values()
    values |= {"id": str(uuid.uuid4()), "retry_at": now(after_seconds), "created_at": now()}
    if starts_retry_clock:
        values["retry_since"] = now()
    if starts_poll_clock:
        values["poll_since"] = now()
    new_time = excluded(connection.dialect, order_retry_tasks, "retry_at")
    connection.execute(
        upsert(
            connection.dialect,
            order_retry_tasks,
            values,
            key=("order_id", "retry_task"),
            update={"retry_at": sa.case((_columns.retry_at <= new_time, _columns.retry_at), else_=new_time)},
        )
    )


def step_of_order(connection: sa.Connection, order_id: str) -> int:
    """:returns: the highest step of the order's retry rows; 0 without any."""
    statement = sa.select(sa.func.max(_columns.step)).where(_columns.order_id == order_id)
    return connection.execute(statement).scalar() or 0


def exists_for(connection: sa.Connection, order_id: str, task: str) -> bool:
    """Whether the order has a row of this task."""
    statement = sa.select(_columns.id).where(_columns.order_id == order_id, _columns.retry_task == task)
    return connection.execute(statement).first() is not None


def delete_of_order(connection: sa.Connection, order_id: str, *, but: str | None = None) -> int:
    """:param but: a task whose row stays.
    :returns: how many rows the order had.
    """
    statement = order_retry_tasks.delete().where(_columns.order_id == order_id)
    if but is not None:
        statement = statement.where(_columns.retry_task != but)
    return connection.execute(statement).rowcount


def count_of_order(connection: sa.Connection, order_id: str) -> int:
    """:returns: how many retry rows the order has."""
    statement = sa.select(sa.func.count()).select_from(order_retry_tasks).where(_columns.order_id == order_id)
    return int(connection.execute(statement).scalar_one())


def _dispatchable() -> sa.ColumnElement[bool]:
    """Not while a task of the same order is out: one at a time (P3), and the row would only meet the unique key."""
    # One look-up for each row, in the order of the index. Given NOT EXISTS, PostgreSQL and MariaDB may rather read all
    # leases; given IS NULL, PostgreSQL expects few rows and sorts all that is due for each batch of a storm.
    taken = sa.select(sa.false()).where(order_task_leases.c.order_id == _columns.order_id)
    return sa.func.coalesce(taken.scalar_subquery(), sa.true(), type_=sa.Boolean)


def in_order_of_time(statement: Query) -> Query:
    """:returns: a query for the first rows, which MariaDB might else find by reading and sorting all of them."""
    hint = "FORCE INDEX (ix_order_retry_tasks_retry_at_id)"
    return statement.with_hint(order_retry_tasks, hint, "mysql").with_hint(order_retry_tasks, hint, "mariadb")


def due(connection: sa.Connection, *, limit: int) -> list[AnyRow]:
    """The due rows whose order has no lease, the oldest first, with what their tickets need.

    :returns: rows ``(id, order_id, retry_task, request_id, late_seconds, status, project_id)``.
    """
    statement = (
        sa.select(
            _columns.id,
            _columns.order_id,
            _columns.retry_task,
            _columns.request_id,
            seconds_between(_columns.retry_at, now()).label("late_seconds"),
            *of_the_order(_columns.order_id),
        )
        .where(_columns.retry_at <= now(), _dispatchable())
        .order_by(_columns.retry_at, _columns.id)
        .limit(limit)
    )
    return [*connection.execute(in_order_of_time(statement))]


def lock(connection: sa.Connection, ids: Sequence[str]) -> set[str]:
    """Lock these rows, passing over those that somebody else has locked.

    :returns: the ids that are still there and locked by this transaction.
    """
    # Two schedulers that both believe to hold the EntityLock get disjoint rows; what the other has deleted is not seen.
    statement = sa.select(_columns.id).where(one_of(_columns.id, ids, connection)).with_for_update(skip_locked=True)
    return set(connection.execute(statement).scalars())


def delete(connection: sa.Connection, ids: Sequence[str]) -> int:
    """:returns: how many were there to delete; the caller compares."""
    if connection.dialect.name in ("mysql", "mariadb"):
        return connection.execute(_MYSQL_DELETE, {"ids": json.dumps(list(ids))}).rowcount
    return connection.execute(order_retry_tasks.delete().where(one_of(_columns.id, ids, connection))).rowcount


def push_out(connection: sa.Connection, row_id: str, *, after_seconds: float, error: str) -> None:
    """Set a row that cannot be dispatched aside, so that it does not stand before the others for ever."""
    connection.execute(
        order_retry_tasks.update()
        .where(_columns.id == row_id)
        .values(retry_at=now(after_seconds), last_error=error[:2000])
    )


def next_of_order(connection: sa.Connection, order_id: str) -> float | None:
    """:returns: seconds until the order's first row is due (negative: it is late); ``None`` without any."""
    statement = sa.select(seconds_between(now(), sa.func.min(_columns.retry_at))).where(_columns.order_id == order_id)
    found = connection.execute(statement).scalar()
    return None if found is None else float(found)


def make_due(connection: sa.Connection, order_id: str) -> int:
    """Let all rows of an order be due now.

    :returns: how many there are.
    """
    return connection.execute(
        order_retry_tasks.update().where(_columns.order_id == order_id).values(retry_at=now())
    ).rowcount


def first_due() -> sa.ScalarSelect[Any]:
    """:returns: a scalar query for the seconds until the first row that can be dispatched is due (negative: it is
    late)."""
    return (
        sa.select(seconds_between(now(), _columns.retry_at))
        .where(_dispatchable())
        .order_by(_columns.retry_at, _columns.id)
        .limit(1)
        .scalar_subquery()
    )
