"""Whether this user may write to the database at all: reading alone tells nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from retryflow.cli.checks.finding import WARNING, Finding
from retryflow.conf.reading import one_line

if TYPE_CHECKING:
    import sqlalchemy as sa

    from retryflow.cli.store import Store

CHECK = "database"


def check(store: Store) -> Iterator[Finding]:
    """Try each kind of change on each table, with a condition that no row fulfils; nothing of it is kept.

    :raises oslo_db.exception.DBError: the database has gone meanwhile.
    """
    import sqlalchemy as sa
    from oslo_db.exception import DBError

    from retryflow.model.transaction import driver_error, is_disconnect, is_lost_race, refuses_all

    try:
        refused = _refused(store.engine)
    except (DBError, sa.exc.SQLAlchemyError) as error:
        reason = one_line(driver_error(error))
        if refuses_all(error):
            yield Finding(
                check=CHECK,
                what=f"the database writes nothing at all, it is read-only or full: {reason}",
                remedy="let it write, or set [database] connection to the server that does: a standby and a replica "
                "only read, and so does whoever has default_transaction_read_only or read_only set",
            )
        elif is_lost_race(error) and not is_disconnect(error):
            # An index that is being made, a backup: it passes, and daemons wait for as long.
            yield Finding(
                check=CHECK,
                severity=WARNING,
                what=f"somebody keeps all others from writing to the database: {reason}",
                remedy="look again in a moment; if it stays, see on the server who has a table locked, and end it",
            )
        else:
            raise
        return
    if refused:
        changes, reasons = list(refused), list(refused.values())
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        yield Finding(
            check=CHECK,
            what=f"the database user may not {', '.join(changes[:3])}{more}: {reasons[0]}",
            remedy="grant it SELECT, INSERT, UPDATE and DELETE on all tables of retryflow, and on PostgreSQL USAGE on "
            "their sequences; or let it own the tables",
        )


def _refused(engine: sa.Engine) -> dict[str, str]:
    """:returns: what the server says, by the change that it has refused.
    :raises oslo_db.exception.DBError: it refuses all changes, or for a reason that may pass.
    """
    import sqlalchemy as sa
    from oslo_db.exception import DBError

    from retryflow.model.engine import LOCK_WAIT_SECONDS
    from retryflow.model.refusal import lacks_rights
    from retryflow.model.tables import metadata
    from retryflow.model.transaction import driver_error, passes

    refused = {}
    # Without a commit at its end, what is left of the transaction is rolled back.
    with engine.connect() as connection:
        if connection.dialect.name in ("mysql", "mariadb"):
            # For a table that somebody is altering it would wait for a day.
            connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_SECONDS}")
        for table in metadata.sorted_tables:
            nothing = sa.select(table).where(sa.false())
            column = next(iter(table.columns))
            changes = {
                "INSERT INTO": table.insert().from_select([each.name for each in table.columns], nothing),
                "UPDATE": table.update().where(sa.false()).values({column: column}),
                "DELETE FROM": table.delete().where(sa.false()),
            }
            for verb, statement in changes.items():
                try:
                    # The transaction survives a refusal only behind a savepoint.
                    with connection.begin_nested():
                        connection.execute(statement)
                except (DBError, sa.exc.SQLAlchemyError) as error:
                    if passes(error):
                        raise
                    # Anything else is a schema that differs, which is told by itself.
                    if lacks_rights(error):
                        refused[f"{verb} {table.name}"] = one_line(driver_error(error))
        refused |= _sequences(connection)
    return refused


def _sequences(connection: sa.Connection) -> dict[str, str]:
    """PostgreSQL asks for a right of its own where a row gets the next number."""
    import sqlalchemy as sa

    from retryflow.model.tables import order_events

    if connection.dialect.name != "postgresql":
        return {}
    sequence = sa.func.pg_get_serial_sequence(order_events.name, "id")
    may = sa.func.has_sequence_privilege(sequence, "USAGE, UPDATE")
    name, allowed = connection.execute(sa.select(sequence, may)).one()
    return {} if allowed in (True, None) else {f"use {name}": f"permission denied for sequence {name}"}
