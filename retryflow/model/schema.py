"""The schema's version: look, check, upgrade. Daemons only check; ``retryflow db upgrade`` and the standalone daemon
upgrade.

Alembic is imported where something is changed: to look, it would cost a daemon a fifth of its start.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from retryflow.errors import SchemaError
from retryflow.model.tables import metadata

if TYPE_CHECKING:
    from alembic import config

VERSION_TABLE = "retryflow_alembic_version"
_UPGRADE_LOCK = "retryflow_schema_upgrade"
_UPGRADE_LOCK_NUMBER = 0x72657472
_LOCK_WAIT_SECONDS = 60
_UPGRADE_COMMAND = "retryflow db upgrade"
_MIGRATIONS = pathlib.Path(__file__).parent / "migrations"


@dataclass(frozen=True)
class Revision:
    """One migration, as ``retryflow db history`` lists it."""

    id: str
    message: str
    applied: bool


def _config(connection: sa.Connection | None = None) -> config.Config:
    from alembic import config

    settings = config.Config()
    settings.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def head() -> str:
    """:returns: the revision that this version of the code works with."""
    return max(_known())


def _known() -> set[str]:
    """Each migration's file is named after its revision, and the revisions are numbers in a row (a test compares)."""
    return {path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py")}


def current(engine: sa.Engine) -> str | None:
    """:returns: the revision of the database; ``None`` for a database without our tables."""
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            return None
        found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608
        revision: str | None = found.scalars().first()
        return revision


def history(engine: sa.Engine) -> list[Revision]:
    """:returns: all migrations, the oldest first."""
    from alembic import script

    directory = script.ScriptDirectory.from_config(_config())
    at = current(engine)
    if at not in (None, *_known()):
        check(engine)
    applied = {entry.revision for entry in directory.iterate_revisions(at, "base")} if at else set()
    return [
        Revision(id=entry.revision, message=entry.doc, applied=entry.revision in applied)
        for entry in reversed(list(directory.walk_revisions()))
    ]


def check(engine: sa.Engine) -> None:
    """Refuse a database that this version cannot work with.

    :raises SchemaError: the schema is missing, too old, or newer than this version, or a table of it is missing; the
        message names the command to run.
    """
    at, wanted = current(engine), head()
    if at == wanted:
        with engine.connect() as connection:
            lost = _lost_tables(connection)
        if lost:
            of = "its table" if len(lost) == 1 else "its tables"
            raise SchemaError(
                f"the database has lost {of} {', '.join(table.name for table in lost)}; restore a backup, or make what "
                f"is missing again, empty, by: {_UPGRADE_COMMAND}"
            )
        return
    if at is None:
        raise SchemaError(f"the database has no retryflow tables; run: {_UPGRADE_COMMAND}")
    if at in _known():
        raise SchemaError(f"the database schema is at {at}, this version needs {wanted}; run: {_UPGRADE_COMMAND}")
    raise SchemaError(
        f"the database schema is at {at}, which this version does not know; install the retryflow version that made it"
    )


def upgrade(engine: sa.Engine) -> str:
    """Bring the schema up to date; harmless when it is, and when several do it at once.

    :returns: the revision it is at now.
    :raises SchemaError: the database is newer than this version, or another upgrade has not ended within a minute.
    """
    from alembic import command

    if current(engine) not in (None, *_known()):
        check(engine)
    with engine.connect() as connection, _only_one(connection), connection.begin():
        command.upgrade(_config(connection), "head")
    return head()


def make_lost_tables(engine: sa.Engine) -> list[str]:
    """Make again what is missing in a schema that is up to date: somebody dropped it, or left it out of a backup.

    No daemon does: that its rows are gone must not pass unseen.

    :returns: the names of the tables; they are empty.
    """
    with engine.connect() as connection, _only_one(connection), connection.begin():
        lost = _lost_tables(connection)
        metadata.create_all(connection, tables=lost, checkfirst=False)
    return [table.name for table in lost]


def _lost_tables(connection: sa.Connection) -> list[sa.Table]:
    look = sa.inspect(connection)
    # By its name each, since they need not be in the schema that the search path names first.
    return [table for table in metadata.sorted_tables if not look.has_table(table.name)]


def differences(engine: sa.Engine) -> list[object]:
    """:returns: what alembic finds different between the database and the models; empty when they agree."""
    from alembic import migration
    from alembic.autogenerate import compare_metadata

    names = set(metadata.tables)
    with engine.connect() as connection:
        context = migration.MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "include_name": lambda name, kind, parents: kind != "table" or name in names,
            },
        )
        return list(compare_metadata(context, metadata))


@contextlib.contextmanager
def _only_one(connection: sa.Connection) -> Iterator[None]:
    """Serialise upgrades: two at once would both create the tables. SQLite's BEGIN IMMEDIATE does it by itself."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.exec_driver_sql(f"SET lock_timeout = '{_LOCK_WAIT_SECONDS}s'")
        connection.exec_driver_sql(f"SET idle_in_transaction_session_timeout = '{_LOCK_WAIT_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({_UPGRADE_LOCK_NUMBER})")
        connection.commit()
    elif dialect in ("mysql", "mariadb"):
        # MariaDB's DDL is not transactional; the lock belongs to the session.
        got = connection.execute(sa.text("SELECT GET_LOCK(:name, :wait)"), {"name": _UPGRADE_LOCK, "wait": 25}).scalar()
        connection.rollback()
        if not got:
            raise SchemaError("another upgrade of this database is still running; wait for it and run it again")
    else:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {_LOCK_WAIT_SECONDS * 1000}")
        connection.rollback()
    try:
        yield
    finally:
        if dialect == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_UPGRADE_LOCK_NUMBER})")
            connection.commit()
            connection.invalidate()
        elif dialect in ("mysql", "mariadb"):
            connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), {"name": _UPGRADE_LOCK})
            connection.rollback()
        else:
            # The pool must not hand its long wait on to others.
            connection.invalidate()
