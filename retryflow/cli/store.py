"""The database of one command: opened when it is first asked for, never made, and given up soon if it is away."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oslo_config import cfg

from retryflow.conf import database_url
from retryflow.errors import SchemaError

if TYPE_CHECKING:
    import sqlalchemy as sa

T = TypeVar("T")
_ATTEMPTS = 2


class Store:
    """The database that the configuration names.

    :param conf: a parsed configuration.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self.url = database_url(conf)

    @cached_property
    def engine(self) -> sa.Engine:
        """An engine with a single connection kept open.

        :raises retryflow.errors.SchemaError: it is an SQLite database that does not exist (looking would make it).
        :raises retryflow.errors.ConfigurationError: the URL cannot be used.
        """
        self.require_file()
        return self.open()

    def open(self, *, patient: bool = False) -> sa.Engine:
        """:param patient: however long the database takes for an answer, as for a migration.
        :returns: the engine, also where looking makes an SQLite file.
        """
        from retryflow.model.engine import ANSWER_SECONDS, create_engine

        return create_engine(self.url, pool_size=1, answer_seconds=None if patient else ANSWER_SECONDS)

    @property
    def shown(self) -> str:
        """The URL without a password; nor its query, in which drivers take one as well."""
        import sqlalchemy as sa

        return sa.make_url(self.url).set(query={}).render_as_string(hide_password=True)

    def require_file(self) -> None:
        """:raises retryflow.errors.SchemaError: the database is an SQLite file, and it is not there."""
        _, prefix, path = self.url.partition(":///")
        if self.url.startswith("sqlite") and prefix and path and not path.startswith((":memory:", "file:")):
            path = path.partition("?")[0]
            if not Path(path).exists():
                missing = f"there is no database {path}; run: retryflow db upgrade"
                standalone = "" if self._conf.database.connection else ", or start retryflow-standalone, which makes it"
                raise SchemaError(f"{missing}{standalone}, or name another with --config-file")

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run ``work``, which only reads, on one snapshot of the database.

        Orders, leases and retry rows are read by statements of their own, and an order that moves on between two of
        them would seem to have no next step, or two.
        """
        from retryflow.model.transaction import read

        engine = self.engine
        if engine.dialect.name != "sqlite":
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        return read(engine, work, attempts=_ATTEMPTS)

    def require_schema(self) -> None:
        """Before anything is written.

        :raises retryflow.errors.SchemaError: the schema is not the one that this version writes.
        """
        from retryflow.model import schema

        schema.check(self.engine)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if "engine" in self.__dict__:
            self.engine.dispose()
