"""What lists show: pages of orders, retry rows, leases and processes, for people who look on from outside.

Pages follow an index and begin after a row (keyset), so that the thousandth costs as much as the first. Ages come from
the database's clock.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from retryflow.errors import OrderNotFound, RetryflowError
from retryflow.model.clock import now, seconds_between
from retryflow.model.orders import PENDING
from retryflow.model.retry_rows import in_order_of_time
from retryflow.model.tables import daemon_processes, order_retry_tasks, order_task_leases, orders
from retryflow.model.types import AnyRow

_orders, _rows, _leases, _processes = orders.c, order_retry_tasks.c, order_task_leases.c, daemon_processes.c


class MarkerGone(RetryflowError):
    """The row that a page was to begin after is no longer there; list from the beginning."""


@dataclass(frozen=True, kw_only=True)
class OrderFilter:
    """Which orders a list shows; what is ``None`` or empty does not matter.

    :param stuck_for_seconds: only PENDING orders whose next step is so long overdue, or that have none.
    """

    statuses: Collection[str] = ()
    order_type: str | None = None
    project_id: str | None = None
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None
    stuck_for_seconds: float | None = None

    def equal(self) -> list[tuple[sa.Column[Any], str]]:
        """:returns: columns that have one value in all these orders; what tells most comes first."""
        status = next(iter(self.statuses)) if len(self.statuses) == 1 else None
        values = [(_orders.project_id, self.project_id), (_orders.type, self.order_type), (_orders.status, status)]
        return [(column, value) for column, value in values if value is not None]

    def others(self) -> list[sa.ColumnElement[bool]]:
        """:returns: the rest of what to put into WHERE."""
        found: list[sa.ColumnElement[bool]] = []
        if len(self.statuses) > 1:
            found.append(_orders.status.in_(sorted(self.statuses)))
        if self.older_than_seconds is not None:
            found.append(_orders.created_at <= now(-self.older_than_seconds))
        if self.newer_than_seconds is not None:
            found.append(_orders.created_at >= now(-self.newer_than_seconds))
        if self.stuck_for_seconds is not None:
            found.append(is_stuck(self.stuck_for_seconds))
        return found


def is_stuck(for_seconds: float) -> sa.ColumnElement[bool]:
    """A PENDING order that nobody has moved on although somebody should have: no next step, or one long overdue.

    :param for_seconds: an order whose last change, or whose next step's time, is not so long ago is not stuck yet.
    """
    since = now(-for_seconds)
    moving_lease = sa.exists().where(_leases.order_id == _orders.id, _leases.expires_at > since)
    moving_row = sa.exists().where(_rows.order_id == _orders.id, _rows.retry_at > since)
    return sa.and_(_orders.status == PENDING, _orders.updated_at <= since, ~moving_lease, ~moving_row)


def orders_page(
    connection: sa.Connection, which: OrderFilter, *, limit: int, marker: str | None = None, oldest_first: bool = False
) -> list[AnyRow]:
    """A page of orders, the newest first.

    :param marker: id of the last order of the page before.
    :returns: rows of ``orders`` without the long columns, plus ``created_seconds`` and ``updated_seconds`` ago.
    :raises OrderNotFound: there is no order ``marker``.
    """
    statement = sa.select(
        _orders.id,
        _orders.status,
        _orders.type,
        _orders.project_id,
        _orders.sub_status,
        _orders.error_status_code,
        _orders.created_at,
        _orders.updated_at,
        seconds_between(_orders.created_at, now()).label("created_seconds"),
        seconds_between(_orders.updated_at, now()).label("updated_seconds"),
    ).where(*which.others())
    order_by: list[sa.Column[Any]] = [_orders.created_at, _orders.id]
    equal = which.equal()
    if equal and connection.dialect.name in ("mysql", "mariadb"):
        # Told that they are equal, MariaDB follows the index from its end; told of a range, it begins at the marker.
        statement = statement.where(*(sa.and_(column >= value, column <= value) for column, value in equal))
        order_by.insert(0, equal[0][0])
    else:
        statement = statement.where(*(column == value for column, value in equal))
    if marker is not None:
        found = connection.execute(sa.select(_orders.created_at).where(_orders.id == marker)).scalar_one_or_none()
        if found is None:
            raise OrderNotFound(f"there is no order {marker} to begin after; list from the beginning")
        statement = statement.where(_after(_orders.created_at, _orders.id, found, marker, descending=not oldest_first))
    statement = statement.order_by(*(column if oldest_first else column.desc() for column in order_by))
    return list(connection.execute(statement.limit(limit)))


def retry_page(
    connection: sa.Connection,
    *,
    limit: int | None = None,
    marker: str | None = None,
    order_ids: Sequence[str] | None = None,
    due: bool = False,
) -> list[AnyRow]:
    """A page of the retry list, what is due first at its head.

    :param order_ids: only rows of these orders.
    :param due: only rows that are due.
    :returns: rows of ``order_retry_tasks``, plus ``due_in_seconds``, and ``lease_id`` of the task that stands before.
    :raises MarkerGone: there is no row ``marker``.
    """
    statement = (
        sa.select(
            order_retry_tasks,
            seconds_between(now(), _rows.retry_at).label("due_in_seconds"),
            _leases.id.label("lease_id"),
        )
        .outerjoin(order_task_leases, _leases.order_id == _rows.order_id)
        .order_by(_rows.retry_at, _rows.id)
    )
    if limit is not None and order_ids is None:
        statement = in_order_of_time(statement)
    if order_ids is not None:
        statement = statement.where(_rows.order_id.in_(order_ids))
    if due:
        statement = statement.where(_rows.retry_at <= now())
    return _page(connection, statement, _rows.retry_at, _rows.id, limit=limit, marker=marker)


def lease_page(
    connection: sa.Connection,
    *,
    limit: int | None = None,
    marker: str | None = None,
    order_ids: Sequence[str] | None = None,
    held: bool | None = None,
) -> list[AnyRow]:
    """A page of leases, those that end first at its head.

    :param held: only those that somebody holds, or only those that nobody does.
    :returns: rows of ``order_task_leases`` plus ``waiting_seconds``, ``running_seconds``, ``expires_in_seconds``, and
        of the holder's process row what :func:`process_columns` names.
    :raises MarkerGone: there is no lease ``marker``.
    """
    statement = (
        sa.select(
            order_task_leases,
            seconds_between(_leases.created_at, now()).label("waiting_seconds"),
            seconds_between(_leases.started_at, now()).label("running_seconds"),
            seconds_between(now(), _leases.expires_at).label("expires_in_seconds"),
            *process_columns(),
        )
        .outerjoin(daemon_processes, _processes.holder == _leases.holder)
        .order_by(_leases.expires_at, _leases.id)
    )
    if order_ids is not None:
        statement = statement.where(_leases.order_id.in_(order_ids))
    if held is not None:
        statement = statement.where(_leases.holder.is_not(None) if held else _leases.holder.is_(None))
    return _page(connection, statement, _leases.expires_at, _leases.id, limit=limit, marker=marker)


def process_columns() -> list[sa.ColumnElement[Any]]:
    """:returns: what is needed to tell whether a process lives."""
    return [
        _processes.host,
        _processes.pid,
        _processes.boot_id,
        _processes.pid_namespace,
        _processes.start_ticks,
        seconds_between(_processes.seen_at, now()).label("unseen_seconds"),
    ]


def running_counts(connection: sa.Connection) -> dict[str, int]:
    """:returns: how many leases each holder has."""
    statement = (
        sa.select(_leases.holder, sa.func.count().label("leases"))
        .where(_leases.holder.is_not(None))
        .group_by(_leases.holder)
    )
    return {row.holder: int(row.leases) for row in connection.execute(statement)}


def order_in_full(connection: sa.Connection, order_id: str) -> AnyRow:
    """:returns: the order's row plus ``created_seconds`` and ``updated_seconds`` ago.
    :raises OrderNotFound: there is no such order.
    """
    row = connection.execute(
        sa.select(
            orders,
            seconds_between(_orders.created_at, now()).label("created_seconds"),
            seconds_between(_orders.updated_at, now()).label("updated_seconds"),
        ).where(_orders.id == order_id)
    ).one_or_none()
    if row is None:
        raise OrderNotFound(f"there is no order {order_id}; `retryflow order list` shows those there are")
    return row


def _page(
    connection: sa.Connection,
    statement: sa.Select[*tuple[Any, ...]],
    moment: sa.Column[Any],
    key: sa.Column[Any],
    *,
    limit: int | None,
    marker: str | None,
) -> list[AnyRow]:
    if marker is not None:
        found = connection.execute(sa.select(moment).where(key == marker)).scalar_one_or_none()
        if found is None:
            raise MarkerGone(f"the row {marker} to begin after is no longer there; list from the beginning")
        statement = statement.where(_after(moment, key, found, marker, descending=False))
    return list(connection.execute(statement.limit(limit) if limit is not None else statement))


def _after(
    moment: sa.Column[Any], key: sa.Column[Any], found: datetime.datetime, marker: str, *, descending: bool
) -> sa.ColumnElement[bool]:
    # Said twice: MariaDB takes no index range from a comparison of pairs, the others do, also within one moment.
    pair, behind = sa.tuple_(moment, key), sa.tuple_(sa.literal(found, moment.type), sa.literal(marker))
    if descending:
        return sa.and_(moment <= found, pair < behind)
    return sa.and_(moment >= found, pair > behind)
