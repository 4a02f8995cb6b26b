"""Statements on ``daemon_processes``."""

import sqlalchemy as sa

from retryflow.model.clock import now, seconds_between
from retryflow.model.identity import ProcessIdentity
from retryflow.model.tables import daemon_processes, order_task_leases
from retryflow.model.types import AnyRow
from retryflow.model.upsert import upsert

_columns = daemon_processes.c


def see(connection: sa.Connection, identity: ProcessIdentity, *, kind: str, version: str, topic: str | None) -> None:
    """Insert the process's row, or renew it: also one that a purge has removed comes back."""
    connection.execute(
        upsert(
            connection.dialect,
            daemon_processes,
            {
                "holder": identity.holder,
                "kind": kind,
                "host": identity.host,
                "pid": identity.pid,
                "boot_id": identity.boot_id,
                "pid_namespace": identity.pid_namespace,
                "start_ticks": identity.start_ticks,
                "version": version,
                "topic": topic,
                "started_at": now(),
                "seen_at": now(),
            },
            key=("holder",),
            update={"seen_at": now()},
        )
    )


def remove(connection: sa.Connection, holder: str) -> bool:
    """Remove a process's row; harmless when it is gone.

    :returns: whether it was there.
    """
    return bool(connection.execute(daemon_processes.delete().where(_columns.holder == holder)).rowcount)


def neighbours(connection: sa.Connection, identity: ProcessIdentity) -> list[ProcessIdentity]:
    """:returns: the other processes of the same boot and pid namespace, whose death could be proven from here."""
    rows = connection.execute(
        sa.select(
            _columns.holder, _columns.host, _columns.pid, _columns.boot_id, _columns.pid_namespace, _columns.start_ticks
        ).where(
            _columns.boot_id == identity.boot_id,
            _columns.pid_namespace == identity.pid_namespace,
            _columns.holder != identity.holder,
        )
    )
    return [ProcessIdentity(**row._mapping) for row in rows]


def purge(connection: sa.Connection, *, unseen_for_seconds: float) -> int:
    """Remove the rows of processes long gone, except those that still hold a lease.

    :returns: how many.
    """
    statement = daemon_processes.delete().where(
        _columns.seen_at < now(-unseen_for_seconds),
        ~sa.exists().where(order_task_leases.c.holder == _columns.holder),
    )
    return connection.execute(statement).rowcount


def all_rows(connection: sa.Connection) -> list[AnyRow]:
    """:returns: every process's row plus ``unseen_seconds``."""
    return list(
        connection.execute(
            sa.select(daemon_processes, seconds_between(_columns.seen_at, now()).label("unseen_seconds")).order_by(
                _columns.kind, _columns.started_at
            )
        )
    )
