"""Statements on ``order_task_leases``. A held lease never loses its holder; it can only be deleted."""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from retryflow.model.clock import now, seconds_between
from retryflow.model.orders import of_the_order
from retryflow.model.several import Answer, Several, among, one_of
from retryflow.model.tables import order_plugin_metadata, order_retry_tasks, order_task_leases, orders
from retryflow.model.task_state import TaskState, copied_to_lease, lease_columns
from retryflow.model.types import AnyRow

_columns = order_task_leases.c


def nobodys() -> sa.ColumnElement[bool]:
    """A condition beside a list of ids: nobody holds the lease.

    As ``IS NULL`` it would have an index too, and a database that does not know how many wait may read all of those.
    """
    return sa.func.coalesce(_columns.holder, sa.literal_column("''")) == sa.literal_column("''")


def insert(
    connection: sa.Connection, task_id: str, state: TaskState, *, expires_in_seconds: float, sent_count: int = 0
) -> None:
    """Insert a lease that nobody holds yet.

    :param expires_in_seconds: when its ticket is (re-)sent by the scheduler if nobody has claimed it.
    :raises oslo_db.exception.DBDuplicateEntry: the order has a lease.
    """
    connection.execute(
        order_task_leases.insert().values(
            id=task_id,
            created_at=now(),
            expires_at=now(expires_in_seconds),
            sent_count=sent_count,
            **state.lease_values(),
        )
    )


def insert_from_retry_rows(connection: sa.Connection, ids: Sequence[str], *, expires_in_seconds: float) -> int:
    """Turn retry rows into leases of the same ids, without reading them: what a row holds reaches the lease unchanged.

    :returns: how many leases were made.
    """
    names, columns = copied_to_lease()
    source = sa.select(order_retry_tasks.c.id, *columns, sa.literal(1), now(), now(expires_in_seconds)).where(
        one_of(order_retry_tasks.c.id, ids, connection)
    )
    names = ["id", *names, "sent_count", "created_at", "expires_at"]
    statement = order_task_leases.insert().from_select(names, source, include_defaults=False)
    # SQLAlchemy keeps the row count of an INSERT only when asked to.
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def claim(connection: sa.Connection, task_id: str, *, holder: str, lease_seconds: float, also_crashed: bool) -> bool:
    """Take a waiting lease.

    :param also_crashed: whether a task that has ended with its worker's death may be taken.
    :returns: ``False`` when it is held, over, or (without ``also_crashed``) has crashed before.
    """
    # Any number of copies of a ticket may be delivered at once: the row is free for one of them only.
    conditions = [_columns.id == task_id, _columns.holder.is_(None)]
    if not also_crashed:
        conditions.append(_columns.crash_count == 0)
    statement = (
        order_task_leases.update()
        .where(*conditions)
        .values(holder=holder, started_at=now(), expires_at=now(lease_seconds))
    )
    return connection.execute(statement).rowcount == 1


@dataclass(frozen=True, slots=True)
class Claimable:
    """What a lease and its order say, for the one who runs the task.

    :param retrying_seconds: since the present run of failures began.
    :param polling_seconds: since the waiting began.
    """

    task_id: str
    holder: str | None
    state: TaskState
    project_id: str | None
    order_type: str
    order_status: str
    meta: Any
    plugin_name: str | None
    plugin_state: dict[str, str]
    retrying_seconds: float
    polling_seconds: float


ByTask = dict[str, Claimable]


def read_with_order(connection: sa.Connection, task_id: str) -> Claimable | None:
    """:returns: lease, order and plugin state in one statement; ``None`` when the lease is gone."""
    several = Several(connection)
    found = read_many_with_order(several, [task_id])
    return found(several.run()).get(task_id)


def read_many_with_order(several: Several, task_ids: Collection[str]) -> Callable[[Sequence[Answer]], ByTask]:
    """Read lease, order and plugin state of these leases.

    :returns: makes of the answers those that are there, by task id.
    """
    place = several.add(_read_with_order(several.dialect), {"ids": sorted(task_ids)})
    return lambda answers: _claimables(answers[place].rows)


def _claimables(rows: Sequence[Any]) -> ByTask:
    found: ByTask = {}
    for row in rows:
        if row.id not in found:
            found[row.id] = Claimable(
                task_id=row.id,
                holder=row.holder,
                state=TaskState.of_lease(row),
                project_id=row.project_id,
                order_type=row.type,
                order_status=row.status,
                meta=row.meta,
                plugin_name=row.plugin_name,
                plugin_state={},
                retrying_seconds=float(row.retrying_seconds or 0.0),
                polling_seconds=float(row.polling_seconds or 0.0),
            )
        if row.key is not None:
            found[row.id].plugin_state[row.key] = row.value
    return found


@functools.cache
def _read_with_order(dialect: sa.Dialect) -> sa.Select[Any]:
    return (
        sa.select(
            _columns.id,
            _columns.holder,
            *lease_columns(),
            orders.c.project_id,
            orders.c.type,
            orders.c.status,
            orders.c.meta,
            orders.c.plugin_name,
            seconds_between(_columns.retry_since, now()).label("retrying_seconds"),
            seconds_between(_columns.poll_since, now()).label("polling_seconds"),
            order_plugin_metadata.c.key,
            order_plugin_metadata.c.value,
        )
        .select_from(order_task_leases)
        .join(orders, orders.c.id == _columns.order_id)
        .outerjoin(order_plugin_metadata, order_plugin_metadata.c.order_id == _columns.order_id)
        .where(among(_columns.id, dialect))
    )


def delete_held(connection: sa.Connection, task_id: str, *, holder: str) -> bool:
    """End one's own lease: the fence of finish and hand-back.

    :returns: ``False`` when it is not ours (any more): roll everything back.
    """
    # A zombie whose task was given to another finds no row, since a recovered lease has another id.
    statement = order_task_leases.delete().where(_columns.id == task_id, _columns.holder == holder)
    return connection.execute(statement).rowcount == 1


def delete_expired(connection: sa.Connection, task_id: str, *, holder: str) -> bool:
    """End the lease of a holder that has not renewed it.

    :returns: ``False`` when it was renewed, finished or recovered since it was looked at.
    """
    # Between the look and this statement the holder may have renewed: only what is expired now may be taken.
    statement = order_task_leases.delete().where(
        _columns.id == task_id, _columns.holder == holder, _columns.expires_at < now()
    )
    return connection.execute(statement).rowcount == 1


def delete_waiting(connection: sa.Connection, task_id: str) -> bool:
    """End a lease that nobody holds.

    :returns: ``False`` when somebody has claimed it meanwhile, or it is gone.
    """
    statement = order_task_leases.delete().where(_columns.id == task_id, _columns.holder.is_(None))
    return connection.execute(statement).rowcount == 1


def delete_of_order(connection: sa.Connection, order_id: str) -> int:
    """:returns: 1 when the order had a lease, else 0."""
    return connection.execute(order_task_leases.delete().where(_columns.order_id == order_id)).rowcount


def of_order(connection: sa.Connection, order_id: str) -> AnyRow | None:
    """:returns: the order's lease, if it has one, with its times as seconds from now."""
    return connection.execute(
        sa.select(
            order_task_leases,
            seconds_between(now(), _columns.expires_at).label("expires_in_seconds"),
            seconds_between(_columns.started_at, now()).label("running_seconds"),
        ).where(_columns.order_id == order_id)
    ).one_or_none()


def step_of_order(connection: sa.Connection, order_id: str) -> int:
    """:returns: the step of the order's lease; 0 without one."""
    return connection.execute(sa.select(_columns.step).where(_columns.order_id == order_id)).scalar() or 0


def waiting_of_orders(connection: sa.Connection, order_ids: Collection[str]) -> list[tuple[str, str]]:
    """:returns: id and order id of their leases that nobody has claimed yet."""
    statement = sa.select(_columns.id, _columns.order_id).where(_columns.order_id.in_(sorted(order_ids)), nobodys())
    return [(row.id, row.order_id) for row in connection.execute(statement)]


def lock(connection: sa.Connection, task_id: str) -> bool:
    """Lock a lease for this transaction, without waiting for anybody.

    :returns: ``False`` when somebody else has locked it, or it is gone.
    """
    statement = sa.select(_columns.id).where(_columns.id == task_id).with_for_update(skip_locked=True)
    return connection.execute(statement).first() is not None


def touch(connection: sa.Connection, task_id: str, *, holder: str) -> bool:
    """Change one's own lease so that what follows in this transaction is fenced (checkpoint).

    :returns: ``False`` when it is not ours (any more).
    """
    # The row must really change: on Galera an UPDATE that changes nothing is not certified against a rival's.
    statement = (
        order_task_leases.update()
        .where(_columns.id == task_id, _columns.holder == holder)
        .values(renewals=_columns.renewals + 1)
    )
    return connection.execute(statement).rowcount == 1


def renew(connection: sa.Connection, ids: Collection[str], *, holder: str, lease_seconds: float) -> set[str]:
    """Renew one's own leases, passing over rows that are locked (they are being finished or recovered just now).

    :param ids: what this process really runs; a lease that nobody runs must be left to expire.
    :returns: the ids that were renewed.
    """
    mine = (
        sa.select(_columns.id)
        .where(_columns.id.in_(sorted(ids)), _columns.holder == holder)
        .order_by(_columns.id)
        .with_for_update(skip_locked=True)
    )
    found = list(connection.execute(mine).scalars())
    if found:
        connection.execute(
            order_task_leases.update()
            .where(_columns.id.in_(found), _columns.holder == holder)
            .values(expires_at=now(lease_seconds), renewals=_columns.renewals + 1)
        )
    return set(found)


def held_by(connection: sa.Connection, ids: Collection[str], *, holder: str) -> set[str]:
    """:returns: those of ``ids`` that ``holder`` holds; a look without locks."""
    return set(
        connection.execute(
            sa.select(_columns.id).where(_columns.id.in_(sorted(ids)), _columns.holder == holder)
        ).scalars()
    )


def present(connection: sa.Connection, ids: Collection[str]) -> set[str]:
    """:returns: those of ``ids`` that there are."""
    return set(connection.execute(sa.select(_columns.id).where(_columns.id.in_(sorted(ids)))).scalars())


def of_holder(connection: sa.Connection, holder: str) -> list[AnyRow]:
    """:returns: rows ``(id, holder)`` plus the task's columns, of all leases of one holder."""
    return list(
        connection.execute(sa.select(_columns.id, _columns.holder, *lease_columns()).where(_columns.holder == holder))
    )


def expired(connection: sa.Connection, *, limit: int, held: bool = True) -> list[AnyRow]:
    """:param held: whether to look at those with a holder too, or only at those that wait.
    :returns: expired leases, the oldest first: rows ``(id, holder, sent_count, order_id, task, request_id, project_id,
        status)``. The rest is read for each by itself: one that cannot be read must not stand in the way of the others.
    """
    statement = (
        sa.select(
            _columns.id,
            _columns.holder,
            _columns.sent_count,
            _columns.order_id,
            _columns.task,
            _columns.request_id,
            *of_the_order(_columns.order_id),
        )
        .where(_columns.expires_at <= now(), sa.true() if held else _waiting_among_the_expired())
        .order_by(_columns.expires_at, _columns.id)
        .limit(limit)
    )
    return list(connection.execute(statement).all())


def with_task(connection: sa.Connection, task_id: str) -> AnyRow | None:
    """:returns: id, holder and the task's columns; ``None`` when the lease is gone."""
    statement = sa.select(_columns.id, _columns.holder, *lease_columns()).where(_columns.id == task_id)
    return connection.execute(statement).one_or_none()


def _waiting_among_the_expired() -> sa.ColumnElement[bool]:
    """Written so that no index on the holder fits: all waiting leases would be read, for the few that are expired."""
    return sa.case((_columns.holder.is_(None), 1), else_=0) == 1


def push_out(connection: sa.Connection, task_id: str, *, after_seconds: float, error: str) -> None:
    """Set an expired lease that can be neither recovered nor sent again aside, so that it is in nobody's way."""
    connection.execute(
        order_task_leases.update()
        .where(_columns.id == task_id, _columns.expires_at <= now())
        # The clocks too: a time that cannot be read would be the reason again.
        .values(expires_at=now(after_seconds), last_error=error[:2000], retry_since=None, poll_since=None)
    )


def resend(connection: sa.Connection, ids: Sequence[str], *, expires_in_seconds: sa.ColumnElement[Any]) -> set[str]:
    """Push out waiting leases before their tickets are sent again.

    :returns: the ids that still wait, whose tickets are to be sent.
    """
    waiting = (
        sa.select(_columns.id)
        .where(_columns.id.in_(ids), nobodys(), _columns.expires_at <= now())
        .order_by(_columns.id)
        .with_for_update(skip_locked=True)
    )
    found = list(connection.execute(waiting).scalars())
    if found:
        connection.execute(
            order_task_leases.update()
            .where(_columns.id.in_(found), nobodys())
            # In this order: MariaDB would compute the second from the first one's new value.
            .ordered_values(
                (_columns.expires_at, now(expires_in_seconds)), (_columns.sent_count, _columns.sent_count + 1)
            )
        )
    return set(found)


def sent_counts(connection: sa.Connection, ids: Sequence[str]) -> dict[str, int]:
    """:returns: of those that still wait, how often their tickets were sent."""
    waiting = sa.select(_columns.id, _columns.sent_count).where(_columns.id.in_(ids), nobodys())
    return {row.id: row.sent_count for row in connection.execute(waiting)}


def expire_unsent(connection: sa.Connection, ids: Collection[str], *, after_seconds: float) -> None:
    """Let the scheduler send these tickets again soon: the broker did not confirm them."""
    connection.execute(
        order_task_leases.update()
        .where(_columns.id.in_(sorted(ids)), nobodys())
        # What the broker did not take was not sent: else an outage of some minutes would count as ten tickets in vain.
        .values(
            expires_at=now(after_seconds),
            sent_count=sa.case((_columns.sent_count > 0, _columns.sent_count - 1), else_=0),
        )
    )


def waiting_count(connection: sa.Connection, *, up_to: int) -> int:
    """:returns: how many leases wait in the queue; counting stops at ``up_to``."""
    some = sa.select(_columns.id).where(_columns.holder.is_(None)).limit(up_to).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one())


def oldest_waiting_seconds(connection: sa.Connection) -> float | None:
    """:returns: how long the oldest lease has waited that any worker could claim; ``None`` if there is none.

    One whose task has crashed before is passed over: it may have to wait until another such task has ended.
    """
    waiting = sa.select(seconds_between(sa.func.min(_columns.created_at), now())).where(
        _columns.holder.is_(None), _columns.crash_count == 0
    )
    seconds = connection.execute(waiting).scalar()
    return None if seconds is None else max(0.0, float(seconds))


def pull_in(connection: sa.Connection, *, farther_than_seconds: float, expires_in_seconds: float) -> int:
    """Bring leases back that end impossibly far in the future: the database's clock was set back.

    :returns: how many there were.
    """
    return connection.execute(
        order_task_leases.update()
        .where(_columns.expires_at > now(farther_than_seconds))
        .values(expires_at=now(expires_in_seconds))
    ).rowcount


def first_expiring() -> sa.ScalarSelect[Any]:
    """:returns: a scalar query for the seconds until the first lease ends (negative: it has ended)."""
    return (
        sa.select(seconds_between(now(), _columns.expires_at))
        .order_by(_columns.expires_at, _columns.id)
        .limit(1)
        .scalar_subquery()
    )


def last_expiring() -> sa.ScalarSelect[Any]:
    """:returns: a scalar query for the seconds until the last lease ends."""
    return (
        sa.select(seconds_between(now(), _columns.expires_at))
        .order_by(_columns.expires_at.desc(), _columns.id.desc())
        .limit(1)
        .scalar_subquery()
    )
