"""The database: its schema, its clock, and the settings that decide whether a committed transaction is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from retryflow.cli.checks.finding import BROKEN, WARNING, Finding
from retryflow.cli.differences import remedy_of, tell
from retryflow.errors import SchemaError

if TYPE_CHECKING:
    import sqlalchemy as sa

    from retryflow.cli.store import Store

_CLOCK_SECONDS = 5.0


def check_schema(store: Store) -> Iterator[Finding]:
    """Tables, columns and indexes are those of this version."""
    from retryflow.model import schema

    try:
        schema.check(store.engine)
    except SchemaError as error:
        what, _, remedy = str(error).rpartition("; ")
        yield Finding(check="schema", what=what, remedy=remedy)
        return
    found = schema.differences(store.engine)
    if found:
        # An index more, made for a site's own reports, breaks nothing.
        only_more = all(difference[0] == "remove_index" for difference in found if isinstance(difference, tuple))
        only_more = only_more and all(isinstance(difference, tuple) for difference in found)
        yield Finding(
            check="schema",
            severity=WARNING if only_more else BROKEN,
            what=f"the schema differs from this version's in {len(found)} places: "
            + "; ".join(tell(difference) for difference in found[:5]),
            remedy=remedy_of(found),
        )


def check_clock(store: Store, *, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """The clock of this host is near the database's; retryflow trusts the database's alone, certificates do not."""
    import sqlalchemy as sa

    from retryflow.model.clock import now

    before = clock()
    moment = store.read(lambda connection: connection.execute(sa.select(now())).scalar_one())
    offset = moment.timestamp() - (before + clock()) / 2
    if abs(offset) > _CLOCK_SECONDS:
        direction = "behind" if offset > 0 else "ahead of"
        yield Finding(
            check="clock",
            severity=WARNING,
            what=f"the clock of this host is {abs(offset):.1f} seconds {direction} the database's",
            remedy="set both by NTP; due times are safe, but logs and the validity of certificates are not",
        )


def check_durability(store: Store) -> Iterator[Finding]:
    """The server keeps what it has said to have committed, also when it loses its power."""
    for name, wanted, actual in store.read(_settings):
        if actual.lower() not in wanted:
            yield Finding(
                check="durability",
                severity=WARNING,
                what=f"the database has {name} = {actual}: it may lose committed transactions, and orders with them",
                remedy=f"set it to {wanted[0]}",
            )


def _settings(connection: sa.Connection) -> list[tuple[str, tuple[str, ...], str]]:
    wanted: dict[str, tuple[str, ...]] = {}
    query = ""
    match connection.dialect.name:
        case "postgresql":
            query = "SHOW {}"
            wanted = {
                "fsync": ("on",),
                "synchronous_commit": ("on", "remote_apply", "remote_write", "local"),
                "full_page_writes": ("on",),
            }
        case "mysql" | "mariadb":
            query = "SELECT @@GLOBAL.{}"
            wanted = {"innodb_flush_log_at_trx_commit": ("1",), "innodb_doublewrite": ("1", "on")}
    return [
        (name, values, str(connection.exec_driver_sql(query.format(name)).scalar_one()))
        for name, values in wanted.items()
    ]
