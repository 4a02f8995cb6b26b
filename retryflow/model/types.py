"""Column types that mean the same on SQLite, PostgreSQL and MariaDB."""

import datetime
import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql


class UtcDateTime(sa.TypeDecorator[datetime.datetime]):
    """A moment in UTC with microseconds; comes back with its time zone set."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: datetime.datetime | None, dialect: sa.Dialect) -> datetime.datetime | None:
        if value is not None and value.tzinfo is not None:
            return value.astimezone(datetime.UTC).replace(tzinfo=None)
        return value

    def process_result_value(self, value: datetime.datetime | None, dialect: sa.Dialect) -> datetime.datetime | None:
        return None if value is None else value.replace(tzinfo=datetime.UTC)


def long_text() -> sa.types.TypeEngine[str]:
    """Text without the 64 KiB limit that MariaDB's TEXT has."""
    return sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


class JsonText(sa.TypeDecorator[Any]):
    """JSON kept as text, the same on each database.

    A value that is no JSON (written by hand, or cut) comes back as :class:`BrokenJson` in place of an exception, so
    that
    one bad row cannot stop a query over many (promise P8).
    """

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.LONGTEXT())
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else parse_json(value)


class BrokenJson(str):
    """Stands for a stored text that is no JSON; the text itself is its value."""


def parse_json(text: str) -> Any:
    """:returns: the value, or :class:`BrokenJson`; never raises."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return BrokenJson(text)


#: A result row of whatever columns.
AnyRow = sa.Row[*tuple[Any, ...]]
