"""Statements on ``orders`` and ``order_plugin_metadata``."""

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from retryflow.model.clock import now
from retryflow.model.tables import order_plugin_metadata, orders
from retryflow.model.types import AnyRow
from retryflow.model.upsert import excluded, insert_or_ignore, upsert

PENDING, ACTIVE, ERROR = "PENDING", "ACTIVE", "ERROR"
STATUSES = (PENDING, ACTIVE, ERROR)


def insert(
    connection: sa.Connection, *, order_id: str, project_id: str | None, order_type: str, meta: Mapping[str, Any]
) -> bool:
    """Insert a PENDING order.

    :returns: ``False`` when an order with this id exists already; nothing is changed then.
    """
    values = {
        "id": order_id,
        "project_id": project_id,
        "type": order_type,
        "meta": dict(meta),
        "status": PENDING,
        "created_at": now(),
        "updated_at": now(),
    }
    return insert_or_ignore(connection, orders, values, key=("id",))


def get(connection: sa.Connection, order_id: str) -> AnyRow | None:
    """:returns: the order's row, or ``None``."""
    return connection.execute(sa.select(orders).where(orders.c.id == order_id)).one_or_none()


def of_the_order(order_id: sa.Column[str]) -> list[sa.ColumnElement[Any]]:
    """:returns: ``status`` and ``project_id`` of the order that another table's row belongs to, one look-up for each
    row: a join may read all orders for the sake of a few rows.
    """
    return [
        sa.select(column).where(orders.c.id == order_id).scalar_subquery().label(column.name)
        for column in (orders.c.status, orders.c.project_id)
    ]


def lock(connection: sa.Connection, order_id: str) -> bool:
    """Lock an order for this transaction, without waiting for anybody.

    :returns: ``False`` when somebody else has locked it, or it is gone.
    """
    statement = sa.select(orders.c.id).where(orders.c.id == order_id).with_for_update(skip_locked=True)
    return connection.execute(statement).first() is not None


def free_for_reference(connection: sa.Connection, order_ids: Collection[str]) -> set[str]:
    """Lock those of these orders that nobody has locked, as a new row that refers to them would.

    :returns: their ids.
    """
    statement = sa.select(orders.c.id).where(orders.c.id.in_(sorted(order_ids)))
    # In another index, which has the ids as well, MariaDB would lock entries that nobody else has locked.
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(orders, "FORCE INDEX (PRIMARY)", dialect)
    locking = statement.with_for_update(read=True, key_share=True, skip_locked=True)
    return set(connection.execute(locking).scalars())


def update_pending(connection: sa.Connection, order_id: str, **values: Any) -> bool:
    """Change an order that has not ended.

    :returns: ``False`` when it has ended, or is gone.
    """
    # An ended order never changes again: whoever comes second (cancel, finish, cap) finds no row here.
    statement = (
        orders.update().where(orders.c.id == order_id, orders.c.status == PENDING).values(updated_at=now(), **values)
    )
    return connection.execute(statement).rowcount == 1


def reopen(connection: sa.Connection, order_id: str) -> bool:
    """ERROR -> PENDING, as an operator asked for.

    :returns: ``False`` when the order is not in ERROR.
    """
    statement = (
        orders.update()
        .where(orders.c.id == order_id, orders.c.status == ERROR)
        .values(
            status=PENDING,
            sub_status=None,
            sub_status_message=None,
            error_status_code=None,
            error_reason=None,
            result=None,
            updated_at=now(),
        )
    )
    return connection.execute(statement).rowcount == 1


def put_off_end(connection: sa.Connection, order_id: str) -> None:
    """Take back the end that was written in this transaction, and keep the result."""
    connection.execute(orders.update().where(orders.c.id == order_id).values(status=PENDING))


def has_result(connection: sa.Connection, order_id: str) -> bool:
    """Whether the order would have ended, but for an update."""
    found = sa.select(orders.c.id).where(orders.c.id == order_id, orders.c.result.is_not(None))
    return connection.execute(found).first() is not None


def delete(connection: sa.Connection, order_id: str) -> bool:
    """Delete the order; its other rows go with it (foreign keys).

    :returns: ``False`` when there is none.
    """
    return connection.execute(orders.delete().where(orders.c.id == order_id)).rowcount == 1


def save_state(connection: sa.Connection, order_id: str, state: Mapping[str, str]) -> None:
    """Add to the plugin state of an order; a key that is there is replaced (never a second row).

    :raises TypeError: a value is no text. Some drivers would store whatever it prints as.
    """
    if not state:
        return
    for key, value in dict[Any, Any](state).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"plugin state must be texts by key; {key!r} is {type(value).__name__}")
    values = [{"order_id": order_id, "key": key, "value": state[key]} for key in sorted(state)]
    connection.execute(
        upsert(
            connection.dialect,
            order_plugin_metadata,
            values,
            key=("order_id", "key"),
            update={"value": excluded(connection.dialect, order_plugin_metadata, "value")},
        )
    )


def state(connection: sa.Connection, order_id: str) -> dict[str, str]:
    """:returns: the plugin state of an order."""
    columns = order_plugin_metadata.c
    rows = connection.execute(sa.select(columns.key, columns.value).where(columns.order_id == order_id))
    return {row.key: row.value for row in rows}
