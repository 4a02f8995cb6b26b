"""What should not be there: overdue rows, orders without a next step, rows of ended orders; and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from retryflow.model import events, retry_rows
from retryflow.model.clock import now
from retryflow.model.orders import PENDING
from retryflow.model.tables import order_events, order_retry_tasks, order_task_leases, orders
from retryflow.model.task_state import TaskState
from retryflow.model.types import AnyRow

_orders, _rows, _leases, _events = orders.c, order_retry_tasks.c, order_task_leases.c, order_events.c
_FIRST_TASK, _STATUS_TASK = "process_type_order", "check_certificate_status"

Ailing = sa.Select[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Sample:
    """How many there are, and some of the orders."""

    count: int
    order_ids: Sequence[str]


def sample(connection: sa.Connection, *, statement: Ailing, limit: int) -> Sample:
    """:param statement: selects order ids.
    :param limit: how many to name.
    """
    count = connection.execute(sa.select(sa.func.count()).select_from(statement.subquery())).scalar_one()
    return Sample(int(count), list(connection.execute(statement.limit(limit)).scalars()) if count else [])


def expired_leases(for_seconds: float, *, held: bool) -> Ailing:
    """:returns: a query for the orders of leases that ended so long ago and that nobody took up."""
    holder = _leases.holder.is_not(None) if held else _leases.holder.is_(None)
    return sa.select(_leases.order_id).where(_leases.expires_at < now(-for_seconds), holder)


def overdue_rows(for_seconds: float) -> Ailing:
    """:returns: a query for the orders of retry rows that are so long due, and that nothing stands before."""
    behind = sa.exists().where(_leases.order_id == _rows.order_id)
    return sa.select(_rows.order_id).where(_rows.retry_at < now(-for_seconds), ~behind)


def orders_without_next_step(for_seconds: float) -> Ailing:
    """:returns: a query for the PENDING orders that have neither lease nor retry row, and have not changed so long."""
    return sa.select(_orders.id).where(
        _orders.status == PENDING,
        _orders.updated_at < now(-for_seconds),
        ~sa.exists().where(_leases.order_id == _orders.id),
        ~sa.exists().where(_rows.order_id == _orders.id),
    )


def rows_of_ended_orders() -> Ailing:
    """:returns: a query for the orders that have ended and still have a lease or a retry row."""
    leases = sa.select(_leases.order_id).join(orders, _orders.id == _leases.order_id).where(_orders.status != PENDING)
    rows = sa.select(_rows.order_id).join(orders, _orders.id == _rows.order_id).where(_orders.status != PENDING)
    return sa.select(sa.union_all(leases, rows).subquery())


def planned_tasks(connection: sa.Connection) -> list[AnyRow]:
    """:returns: ``(type, retry_task, rows)``: what stands on the retry list for PENDING orders."""
    statement = (
        sa.select(_orders.type, _rows.retry_task, sa.func.count().label("rows"))
        .join(orders, _orders.id == _rows.order_id)
        .where(_orders.status == PENDING)
        .group_by(_orders.type, _rows.retry_task)
        .order_by(_orders.type, _rows.retry_task)
    )
    return list(connection.execute(statement))


def give_next_step(connection: sa.Connection, *, for_seconds: float, limit: int) -> int:
    """Put PENDING orders without a next step on the retry list, due now.

    :returns: how many orders.
    """
    found = list(connection.execute(orders_without_next_step(for_seconds).limit(limit)).scalars())
    for order_id in found:
        # The row is locked, so that the order cannot end between this look and the new row.
        row = connection.execute(
            sa.select(orders).where(_orders.id == order_id, _orders.status == PENDING).with_for_update()
        ).one_or_none()
        if row is None:
            continue
        # A plugin that has taken the order on is asked how it stands; to ask it for another certificate would be wrong.
        task = _FIRST_TASK if row.plugin_name is None else _STATUS_TASK
        state = TaskState.first(
            order_id, task, project_id=row.project_id, request_id=None, step=next_step(connection, order_id)
        )
        retry_rows.put(connection, state, after_seconds=0.0)
        events.add(connection, order_id, events.RESUMED, task=task, detail="it had no next step (retryflow doctor)")
    return len(found)


def delete_rows_of_ended_orders(connection: sa.Connection) -> int:
    """:returns: how many rows are gone."""
    ended = sa.select(_orders.id).where(_orders.status != PENDING)
    gone = connection.execute(order_retry_tasks.delete().where(_rows.order_id.in_(ended))).rowcount
    return gone + connection.execute(order_task_leases.delete().where(_leases.order_id.in_(ended))).rowcount


def next_step(connection: sa.Connection, order_id: str) -> int:
    """:returns: the step that the order has come to: the polls and the new starts that were committed."""
    committed = sa.select(sa.func.coalesce(sa.func.sum(_events.count), 0)).where(
        _events.order_id == order_id, _events.event.in_((events.POLLING, events.CONTINUED, events.REOPENED))
    )
    return int(connection.execute(committed).scalar_one())
