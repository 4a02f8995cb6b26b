"""INSERT that meets an existing row, in the words of each database."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy.dialects import mysql, postgresql, sqlite


def insert_or_ignore(
    connection: sa.Connection, table: sa.Table, values: Mapping[str, Any], *, key: Sequence[str]
) -> bool:
    """Insert unless a row with the same key exists (an error in a statement would end the transaction on PostgreSQL).

    :returns: whether the row was inserted.
    """
    if connection.dialect.name in ("mysql", "mariadb"):
        # INSERT IGNORE would also swallow bad values. A duplicate key ends the statement here, not the transaction.
        try:
            connection.execute(table.insert().values(values))
        except db_exc.DBDuplicateEntry:
            return False
        return True
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    inserted = dialect.insert(table).values(values).on_conflict_do_nothing(index_elements=list(key))
    return connection.execute(inserted, execution_options={"preserve_rowcount": True}).rowcount == 1


def upsert(
    dialect: sa.Dialect,
    table: sa.Table,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str],
    update: Mapping[str, Any],
) -> Any:
    """A statement: insert, or apply ``update`` to the row that has the same key.

    :param update: column name -> value or expression; :func:`excluded` refers to what would have been inserted.
    """
    if dialect.name in ("mysql", "mariadb"):
        return mysql.insert(table).values(values).on_duplicate_key_update(dict(update))
    insert: Any = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
    return insert(table).values(values).on_conflict_do_update(index_elements=list(key), set_=dict(update))


def excluded(dialect: sa.Dialect, table: sa.Table, column: str) -> Any:
    """:returns: the value that the insert would have given this column."""
    if dialect.name in ("mysql", "mariadb"):
        return sa.func.values(table.c[column])
    return sa.literal_column(f"excluded.{column}", table.c[column].type)
