"""The URL of the database, read and checked before anything is made of it."""

import os

import sqlalchemy as sa

from retryflow.errors import ConfigurationError

BACKENDS = ("sqlite", "postgresql", "mysql", "mariadb")
_LAST_PORT = 65535
_EXAMPLE = "write it like postgresql+psycopg://user:password@host/name"
# What else can name the database of a server: arguments in the URL's query, and libpq's environment.
_NAMING_ARGUMENTS = frozenset({"dbname", "service", "db", "database", "read_default_file"})
_NAMING_VARIABLES = ("PGDATABASE", "PGSERVICE")


def parse_url(url: str) -> sa.URL:
    """Read ``[database] connection``.

    :raises ConfigurationError: one line that says what is wrong with it; never with a part of a password.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigurationError(f"[database] connection is not a database URL; {_EXAMPLE}") from None
    except ValueError:
        # Not repeated: after an @ in a password, what is taken for the port is the password's end.
        raise ConfigurationError(
            "[database] connection has a port that is not a number; write it like "
            "postgresql+psycopg://user:password@host:5432/name, and an @ in user or password as %40"
        ) from None
    if (parsed.port or 0) > _LAST_PORT:
        raise ConfigurationError(
            f"[database] connection has the port {parsed.port}, and the last one there is is {_LAST_PORT}; mend it"
        )
    backend = parsed.get_backend_name()
    if backend not in BACKENDS:
        raise ConfigurationError(
            f"[database] connection names the database {parsed.drivername!r}; "
            "use sqlite, postgresql+psycopg or mysql+pymysql"
        )
    if "@" in (parsed.host or ""):
        # The driver's complaint about such a host would show the end of the password.
        raise ConfigurationError("[database] connection has an @ in its user or password; write it as %40")
    if backend == "sqlite":
        if parsed.host or parsed.username or parsed.port:
            raise ConfigurationError(
                "[database] connection names a host for SQLite, which has none; write it with one slash more, like "
                "sqlite:////var/lib/retryflow/retryflow.sqlite"
            )
    elif not parsed.database and not _is_named_elsewhere(parsed):
        raise ConfigurationError(
            "[database] connection names no database on the server; write its name after the host, like "
            f"{parsed.drivername}://user:password@host/name"
        )
    return parsed


def _is_named_elsewhere(parsed: sa.URL) -> bool:
    if not _NAMING_ARGUMENTS.isdisjoint(parsed.query):
        return True
    return parsed.get_backend_name() == "postgresql" and any(os.environ.get(name) for name in _NAMING_VARIABLES)
