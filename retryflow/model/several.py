"""Several statements in one round trip, where the driver can.

A round trip costs a worker more than the statement: on each, its threads pass the interpreter around. psycopg can put
the parameters in by itself and send all statements as one query. (Its pipeline mode, which needs no quoting, looks at
the socket for each statement, and each look passes the interpreter around.) With other drivers the statements are sent
one by one, with the same answers.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

Processor = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """:param rowcount: rows found, changed or inserted.
    :param rows: of a query."""

    rowcount: int
    rows: Sequence[Any] = ()


def among(column: sa.Column[Any], dialect: sa.Dialect, name: str = "ids") -> sa.ColumnElement[bool]:
    """A condition: the column is one of the values of the parameter ``name``.

    On PostgreSQL the statement's text is then the same for any number of them, so that it is compiled once.
    """
    if dialect.name == "postgresql":
        return column == sa.any_(sa.bindparam(name, type_=ARRAY(sa.String)))
    return column.in_(sa.bindparam(name, expanding=True))


def one_of(column: sa.Column[Any], values: Sequence[str], connection: sa.Connection) -> sa.ColumnElement[bool]:
    """A condition: the column is one of these values, which may be many.

    On PostgreSQL they are one parameter: with one for each, SQLAlchemy and psycopg write a new text each time and take
    it apart again, which costs more than the database's own work.
    """
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(values), ARRAY(sa.String)))
    return column.in_(values)


class Several:
    """Statements of one transaction whose answers are needed only when all have been sent.

    :param connection: in a transaction.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self._calls: list[tuple[sa.Executable, Sequence[Mapping[str, Any]]]] = []

    def add(self, statement: sa.Executable, *parameters: Mapping[str, Any]) -> int:
        """Add a statement, which must be the same object each time: what it is compiled to is kept.

        :param parameters: one set, or several, once for each.
        :returns: where in the list of answers the answer will be; with several sets their row counts are added up.
        """
        self._calls.append((statement, parameters))
        return len(self._calls) - 1

    def run(self) -> list[Answer]:
        """Send them all, in their order.

        :returns: the answers, in the same order.
        :raises sqlalchemy.exc.DBAPIError: one of them failed; the transaction cannot go on.
        """
        calls, self._calls = self._calls, []
        if can_send_together(self.connection):
            return _together(self.connection, calls)
        return [_alone(self.connection, statement, parameters) for statement, parameters in calls]


def can_send_together(connection: sa.Connection) -> bool:
    """Whether the driver can."""
    return connection.dialect.driver == "psycopg"


def _alone(connection: sa.Connection, statement: sa.Executable, parameters: Sequence[Mapping[str, Any]]) -> Answer:
    result = connection.execute(statement, parameters if len(parameters) > 1 else parameters[0])
    if not result.returns_rows:
        return Answer(result.rowcount)
    rows = result.all()
    return Answer(len(rows), rows)


def _together(
    connection: sa.Connection, calls: Sequence[tuple[sa.Executable, Sequence[Mapping[str, Any]]]]
) -> list[Answer]:
    import psycopg

    driver: Any = connection.connection.driver_connection
    compiled = [(_compiled(statement, connection.dialect), parameters) for statement, parameters in calls]
    try:
        with psycopg.ClientCursor(driver) as cursor:
            texts = [cursor.mogrify(each.text, each.filled(values)) for each, sets in compiled for values in sets]
            cursor.execute(";".join(texts).encode(driver.info.encoding))
            return [each.answer(cursor, len(sets)) for each, sets in compiled]
    except psycopg.Error as error:
        broken = bool(driver.broken or driver.closed)
        # The rest of its text quotes the statement, in which the parameters stand.
        error.args = (error.diag.message_primary or str(error).partition("\n")[0],)
        if broken:
            # As SQLAlchemy does: the others in the pool are as old, and hardly in better health.
            connection.engine.pool._invalidate(connection.connection, error)
            connection.invalidate(error)
        raise sa.exc.DBAPIError.instance(
            "several statements",
            None,
            error,
            psycopg.Error,
            hide_parameters=True,
            connection_invalidated=broken,
            dialect=connection.dialect,
        ) from error


class _Compiled:
    """A statement as the driver wants it, and what SQLAlchemy does to parameters and rows on the way."""

    def __init__(self, statement: sa.Executable, dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self.text = str(compiled)
        self._constants: dict[str, Any] = {}
        self._binders: dict[str, Processor] = {}
        for parameter, name in compiled.bind_names.items():
            binder = _type(parameter.type, dialect).bind_processor(dialect)
            if binder is not None:
                self._binders[name] = binder
            if not parameter.required:
                self._constants[name] = binder(parameter.value) if binder else parameter.value
        self._dialect = dialect
        self._types = [column.type for column in statement.selected_columns] if isinstance(statement, sa.Select) else []
        self._make_row: Callable[[Sequence[Any]], Any] | None = None

    def filled(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that the driver is given."""
        values: dict[str, Any] = {**self._constants, **parameters}
        for name, binder in self._binders.items():
            if name in parameters:
                values[name] = binder(values[name])
        return values

    def answer(self, cursor: Any, count: int) -> Answer:
        """What the server has answered to the next ``count`` statements."""
        changed = 0
        rows: list[Any] = []
        for _ in range(count):
            changed += cursor.rowcount
            if self._types:
                if self._make_row is None:
                    self._make_row = _row_maker(self._types, self._dialect, cursor.description)
                rows += map(self._make_row, cursor.fetchall())
            cursor.nextset()
        return Answer(changed, rows)


def _row_maker(
    types: Sequence[sa.types.TypeEngine[Any]], dialect: sa.Dialect, description: Sequence[Any]
) -> Callable[[Sequence[Any]], Any]:
    row_type: Any = namedtuple("Row", [column.name for column in description])  # type: ignore[misc]
    readers = [
        (place, reader)
        for place, (type_, column) in enumerate(zip(types, description, strict=True))
        if (reader := _type(type_, dialect).result_processor(dialect, column.type_code)) is not None
    ]

    def make(row: Sequence[Any]) -> Any:
        values = list(row)
        for place, reader in readers:
            values[place] = reader(values[place])
        return row_type._make(values)

    return make


@functools.cache
def _compiled(statement: sa.Executable, dialect: sa.Dialect) -> _Compiled:
    return _Compiled(statement, dialect)


def _type(type_: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
    return type_ if isinstance(type_, sa.TypeDecorator) else type_.dialect_impl(dialect)
