"""What migrations are made of: steps that an upgrade which was interrupted can begin again with.

PostgreSQL and SQLite undo an interrupted migration as a whole. MariaDB and MySQL undo nothing: the next run meets what
the last one has made, and goes on after it.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from retryflow.errors import SchemaError


def create_table(name: str, *items: sa.Column[Any] | sa.Constraint, **options: Any) -> None:
    """Make a table, unless an interrupted run has done so.

    :raises SchemaError: there is a table of this name with other columns, so it is not ours.
    """
    look = _left_behind()
    if look is None or not look.has_table(name):
        op.create_table(name, *items, **options)
        return
    wanted = {item.name for item in items if isinstance(item, sa.Column)}
    if {column["name"] for column in look.get_columns(name)} != wanted:
        raise SchemaError(f"there is a table {name} that is not retryflow's; give retryflow a database of its own")


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Make an index, unless an interrupted run has done so."""
    look = _left_behind()
    if look is None or all(index["name"] != name for index in look.get_indexes(table)):
        op.create_index(name, table, columns)


def _left_behind() -> sa.Inspector | None:
    """:returns: for a look at what is there; ``None`` where an interrupted run leaves nothing behind."""
    connection = op.get_bind()
    return sa.inspect(connection) if connection.dialect.name in ("mysql", "mariadb") else None
