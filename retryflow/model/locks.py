"""Statements on ``entity_locks``."""

from typing import Any

import sqlalchemy as sa

from retryflow.model.clock import now, seconds_between
from retryflow.model.tables import entity_locks
from retryflow.model.types import AnyRow

RETRY_LIST = "OrderRetryTask"
_columns = entity_locks.c
_is_lock = _columns.entity_to_lock == RETRY_LIST


def insert(connection: sa.Connection, fence: str) -> None:
    """:raises oslo_db.exception.DBDuplicateEntry: somebody has the lock."""
    connection.execute(
        entity_locks.insert().values(entity_to_lock=RETRY_LIST, worker_host_name=fence, created_at=now(), batches=0)
    )


def look(connection: sa.Connection) -> AnyRow | None:
    """:returns: ``(worker_host_name, age_seconds, batches)`` of the lock, or ``None``."""
    return connection.execute(
        sa.select(
            _columns.worker_host_name,
            seconds_between(_columns.created_at, now()).label("age_seconds"),
            _columns.batches,
        ).where(_is_lock)
    ).one_or_none()


def age() -> sa.ScalarSelect[Any]:
    """:returns: a scalar query for the seconds since the lock was touched last; NULL where nobody has it."""
    return sa.select(seconds_between(_columns.created_at, now())).where(_is_lock).scalar_subquery()


def touch(connection: sa.Connection, fence: str) -> bool:
    """The first statement of each of the scheduler's transactions.

    :returns: ``False`` when the lock was taken over: the transaction must not go on.
    """
    # Inside the transaction it protects, and it always changes the row: a lock that was broken meanwhile makes it all
    # fail.
    statement = (
        entity_locks.update()
        .where(_is_lock, _columns.worker_host_name == fence)
        .values(created_at=now(), batches=_columns.batches + 1)
    )
    return connection.execute(statement).rowcount == 1


def take_over(connection: sa.Connection, fence: str, *, seen: str, older_than_seconds: float) -> bool:
    """Take a stale lock.

    :returns: ``False`` when it is not stale after all, or another scheduler was faster.
    """
    # One conditional statement: the holder may have touched it, or another may have taken it over, since it was
    # looked at. A lock from the future is stale too: its clock was set back, and nobody may wait for it to catch up.
    stale = sa.or_(_columns.created_at < now(-older_than_seconds), _columns.created_at > now(older_than_seconds))
    statement = (
        entity_locks.update()
        .where(_is_lock, _columns.worker_host_name == seen, stale)
        .values(worker_host_name=fence, created_at=now(), batches=0)
    )
    return connection.execute(statement).rowcount == 1


def clear(connection: sa.Connection, fence: str) -> bool:
    """:returns: ``False`` when the lock is not ours (any more); it is left alone then (redbeat #127)."""
    statement = entity_locks.delete().where(_is_lock, _columns.worker_host_name == fence)
    return connection.execute(statement).rowcount == 1


def break_seen(connection: sa.Connection, seen: str, *, batches: int) -> bool:
    """Break the lock as an operator saw it.

    :returns: ``False`` when it was touched, cleared or taken over since then.
    """
    # The operator decided on what was shown: a holder that has shown a sign of life since then keeps its lock.
    statement = entity_locks.delete().where(_is_lock, _columns.worker_host_name == seen, _columns.batches == batches)
    return connection.execute(statement).rowcount == 1
