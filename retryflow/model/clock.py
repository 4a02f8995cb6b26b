"""Time as the database server sees it (promise P6): expressions for "now", "in n seconds" and "seconds between".

All of them are UTC whatever the session's time zone is. On PostgreSQL ``now()`` would be the start of the
transaction, so
``clock_timestamp()`` is used; as a volatile function it would keep an index from being used in a comparison, so
:func:`now` comes as a sub-select there, which is evaluated once per statement.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import expression

from retryflow.model.types import UtcDateTime

_SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f000"


class _Now(expression.FunctionElement[Any]):
    inherit_cache = True
    name = "retryflow_now"
    type = UtcDateTime()


class _SecondsBetween(expression.FunctionElement[Any]):
    inherit_cache = True
    name = "retryflow_seconds_between"
    type = sa.Float()


def now(after_seconds: Any = None) -> _Now:
    """The database's time, UTC.

    :param after_seconds: a number or an SQL expression to add, in seconds; negative looks back.
    """
    if after_seconds is None:
        return _Now()
    if not isinstance(after_seconds, expression.ColumnElement):
        after_seconds = sa.bindparam(None, float(after_seconds), type_=sa.Float())
    return _Now(after_seconds)


def seconds_between(earlier: Any, later: Any) -> _SecondsBetween:
    """``later - earlier`` in seconds; negative when ``later`` is the earlier one."""
    return _SecondsBetween(earlier, later)


@compiles(_Now)
def _now_default(element: _Now, compiler: Any, **kw: Any) -> str:
    raise NotImplementedError(f"no database clock for {compiler.dialect.name}")


@compiles(_Now, "postgresql")
def _now_postgresql(element: _Now, compiler: Any, **kw: Any) -> str:
    current = "clock_timestamp() AT TIME ZONE 'UTC'"
    offset = compiler.process(element.clauses, **kw)
    if offset:
        current = f"({current}) + make_interval(secs => {offset})"
    # Without the sub-select the volatile function is evaluated for each row, and no index on the other side is used.
    return f"(SELECT {current})"


@compiles(_Now, "mysql", "mariadb")
def _now_mysql(element: _Now, compiler: Any, **kw: Any) -> str:
    offset = compiler.process(element.clauses, **kw)
    if not offset:
        return "UTC_TIMESTAMP(6)"
    return f"(UTC_TIMESTAMP(6) + INTERVAL CAST(({offset}) * 1000000 AS SIGNED) MICROSECOND)"


@compiles(_Now, "sqlite")
def _now_sqlite(element: _Now, compiler: Any, **kw: Any) -> str:
    offset = compiler.process(element.clauses, **kw)
    if not offset:
        return f"strftime('{_SQLITE_FORMAT}', 'now')"
    return f"strftime('{_SQLITE_FORMAT}', 'now', ({offset}) || ' seconds')"


@compiles(_SecondsBetween, "postgresql")
def _between_postgresql(element: _SecondsBetween, compiler: Any, **kw: Any) -> str:
    earlier, later = (compiler.process(clause, **kw) for clause in element.clauses)
    # One by one: 'infinity', which people write to park a row, has no difference before PostgreSQL 17.
    return f"CAST(EXTRACT(EPOCH FROM {later}) - EXTRACT(EPOCH FROM {earlier}) AS double precision)"


@compiles(_SecondsBetween, "mysql", "mariadb")
def _between_mysql(element: _SecondsBetween, compiler: Any, **kw: Any) -> str:
    earlier, later = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"(TIMESTAMPDIFF(MICROSECOND, {earlier}, {later}) / 1e6)"


@compiles(_SecondsBetween, "sqlite")
def _between_sqlite(element: _SecondsBetween, compiler: Any, **kw: Any) -> str:
    earlier, later = (compiler.process(clause, **kw) for clause in element.clauses)
    # Its times are exact to the millisecond, days as floating point numbers are not.
    return f"ROUND((julianday({later}) - julianday({earlier})) * 86400.0, 3)"
