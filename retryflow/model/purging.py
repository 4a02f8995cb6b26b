"""Removing what has ended long ago, in small transactions, while daemons work."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from retryflow.model.clock import now
from retryflow.model.orders import PENDING
from retryflow.model.tables import order_events, orders
from retryflow.model.types import AnyRow

_orders, _events = orders.c, order_events.c


@dataclass(frozen=True, slots=True)
class Ended:
    """Orders to purge.

    :param before: they have not changed since then.
    """

    status: str
    before: datetime.datetime

    def condition(self) -> sa.ColumnElement[bool]:
        """:returns: what to put into WHERE."""
        assert self.status != PENDING
        return sa.and_(
            _orders.status == self.status, _orders.created_at <= self.before, _orders.updated_at <= self.before
        )


def moment_before(connection: sa.Connection, seconds: float) -> datetime.datetime:
    """:returns: the database's time, less ``seconds``."""
    moment: datetime.datetime = connection.execute(sa.select(now(-seconds))).scalar_one()
    return moment


def count(connection: sa.Connection, ended: Ended) -> int:
    """:returns: how many orders there are to purge."""
    statement = sa.select(sa.func.count()).select_from(orders).where(ended.condition())
    return int(connection.execute(statement).scalar_one())


def count_events(
    connection: sa.Connection, before: datetime.datetime, *, up_to: int, apart_from: Sequence[Ended] = ()
) -> int:
    """:param up_to: counting stops there; a history may be longer than anybody wants to wait for.
    :param apart_from: not the lines of these orders, which go with them.
    :returns: how many old lines of histories there are to delete.
    """
    statement = sa.select(_events.id).where(_events.last_at <= before).limit(up_to)
    if apart_from:
        purged = sa.or_(*(ended.condition() for ended in apart_from))
        statement = statement.where(~sa.exists().where(_orders.id == _events.order_id, purged))
    return int(connection.execute(sa.select(sa.func.count()).select_from(statement.subquery())).scalar_one())


def page(connection: sa.Connection, ended: Ended, *, limit: int, after: AnyRow | None) -> list[AnyRow]:
    """:returns: ``(id, created_at)`` of the next orders to purge, in the order of the index."""
    statement = sa.select(_orders.id, _orders.created_at).where(ended.condition())
    if after is None:
        return list(connection.execute(statement.order_by(_orders.created_at, _orders.id).limit(limit)))
    # Two ranges of the index: a million orders of one moment are not to be passed over again for each page.
    same = statement.where(_orders.created_at == after.created_at, _orders.id > after.id)
    rows = list(connection.execute(same.order_by(_orders.id).limit(limit)))
    if len(rows) < limit:
        later = statement.where(_orders.created_at > after.created_at)
        rows += connection.execute(later.order_by(_orders.created_at, _orders.id).limit(limit - len(rows)))
    return rows


def delete(connection: sa.Connection, ended: Ended, ids: Sequence[str]) -> int:
    """:returns: how many orders are gone; what belongs to them goes with them (foreign keys)."""
    # An order that an operator has started over again since the page was read is not to be lost.
    # Behind a function the status offers no index: with statistics that are behind, PostgreSQL would walk that of all
    # ended orders for each batch.
    still_ended = sa.and_(sa.func.coalesce(_orders.status, "") == ended.status, _orders.updated_at <= ended.before)
    return connection.execute(orders.delete().where(_orders.id.in_(sorted(ids)), still_ended)).rowcount


def delete_events(connection: sa.Connection, before: datetime.datetime, *, limit: int) -> int:
    """Delete old lines of histories, also of orders that stay.

    :returns: how many; 0 when there are no more.
    """
    found = connection.execute(
        sa.select(_events.id).where(_events.last_at <= before).order_by(_events.last_at).limit(limit)
    ).scalars()
    ids = sorted(found)
    return connection.execute(order_events.delete().where(_events.id.in_(ids))).rowcount if ids else 0
