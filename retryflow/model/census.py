"""Numbers about the whole: how many orders, how much is due, how late it is, and how fast it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from retryflow.model.clock import now, seconds_between
from retryflow.model.tables import daemon_processes, order_events, order_retry_tasks, order_task_leases, orders

_rows, _leases, _processes, _events = (
    order_retry_tasks.c,
    order_task_leases.c,
    daemon_processes.c,
    order_events.c,
)


@dataclass(frozen=True, kw_only=True)
class Census:
    """What was counted, at one moment; seconds by the database's clock, ``None`` where there is nothing to measure.

    :param orders: by status.
    :param late_seconds: how long the first due retry row has been due.
    :param next_due_seconds: until the first row that is not due yet.
    :param oldest_waiting_seconds: age of the lease that has waited longest for a worker.
    :param alive: processes seen lately, by kind.
    :param happened: changes of orders in the window, by event.
    """

    orders: dict[str, int]
    retry_rows: int
    due: int
    late_seconds: float | None
    next_due_seconds: float | None
    waiting: int
    running: int
    expired: int
    oldest_waiting_seconds: float | None
    longest_running_seconds: float | None
    alive: dict[str, int]
    happened: dict[str, int] = field(default_factory=dict)


def take(connection: sa.Connection, *, alive_within_seconds: float, window_seconds: float) -> Census:
    """Count.

    :param alive_within_seconds: a process not seen for longer is not counted.
    :param window_seconds: over which changes are counted.
    """
    row = connection.execute(_one_row()).one()
    return Census(
        orders=_counts(connection, sa.select(orders.c.status, sa.func.count()).group_by(orders.c.status)),
        retry_rows=row.retry_rows,
        due=row.due,
        late_seconds=_positive(row.late_seconds),
        next_due_seconds=None if row.next_due_seconds is None else float(row.next_due_seconds),
        waiting=row.waiting,
        running=row.running,
        expired=row.expired,
        oldest_waiting_seconds=_positive(row.oldest_waiting_seconds),
        longest_running_seconds=_positive(row.longest_running_seconds),
        alive=_counts(
            connection,
            sa.select(_processes.kind, sa.func.count())
            .where(_processes.seen_at >= now(-alive_within_seconds))
            .group_by(_processes.kind),
        ),
        happened=_counts(
            connection,
            sa.select(_events.event, sa.func.count())
            .where(_events.last_at >= now(-window_seconds))
            .group_by(_events.event),
        ),
    )


def _one_row() -> sa.Select[*tuple[Any, ...]]:
    count = sa.func.count()
    held = _leases.holder.is_not(None)
    return sa.select(
        _scalar(sa.select(count).select_from(order_retry_tasks), "retry_rows"),
        _scalar(sa.select(count).select_from(order_retry_tasks).where(_rows.retry_at <= now()), "due"),
        _scalar(
            sa.select(seconds_between(_rows.retry_at, now())).where(_rows.retry_at <= now()).order_by(_rows.retry_at),
            "late_seconds",
        ),
        _scalar(
            sa.select(seconds_between(now(), _rows.retry_at)).where(_rows.retry_at > now()).order_by(_rows.retry_at),
            "next_due_seconds",
        ),
        _scalar(sa.select(count).select_from(order_task_leases).where(~held), "waiting"),
        _scalar(sa.select(count).select_from(order_task_leases).where(held), "running"),
        _scalar(
            sa.select(count).select_from(order_task_leases).where(held, _leases.expires_at < now()),
            "expired",
        ),
        _scalar(
            sa.select(seconds_between(sa.func.min(_leases.created_at), now())).where(~held), "oldest_waiting_seconds"
        ),
        _scalar(
            sa.select(seconds_between(sa.func.min(_leases.started_at), now())).where(held), "longest_running_seconds"
        ),
    )


def _scalar(statement: sa.Select[*tuple[Any, ...]], name: str) -> sa.Label[Any]:
    return statement.limit(1).scalar_subquery().label(name)


def _counts(connection: sa.Connection, statement: sa.Select[*tuple[Any, ...]]) -> dict[str, int]:
    return {row[0]: int(row[1]) for row in connection.execute(statement)}


def _positive(value: Any) -> float | None:
    return None if value is None else max(0.0, float(value))
