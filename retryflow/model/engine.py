"""The engine of each database, with the rules of concurrency set on every session.

Options come from oslo.db's ``[database]`` group, and its filters translate the errors; the engine itself is plain
SQLAlchemy, because
oslo.db's factory pings before each transaction and begins SQLite transactions in the deferred way.
"""

import functools
import logging
import ssl
from typing import Any

import sqlalchemy as sa
from oslo_db.sqlalchemy import exc_filters

from retryflow.conf.reading import one_line
from retryflow.errors import ConfigurationError
from retryflow.model.url import parse_url

LOCK_WAIT_SECONDS = 2
IDLE_IN_TRANSACTION_SECONDS = 10
CONNECT_TIMEOUT_SECONDS = 5
ANSWER_SECONDS = 30

#: Execution option of connections that only read: SQLite then takes no write lock.
READ_ONLY = "retryflow_read_only"


def create_engine(
    url: str,
    *,
    pool_size: int = 5,
    max_overflow: int = 50,
    recycle_seconds: float = 3600,
    answer_seconds: float | None = ANSWER_SECONDS,
) -> sa.Engine:
    """Make an engine; nothing is connected yet.

    :param pool_size: connections kept open.
    :param max_overflow: connections beyond these, closed after use.
    :param recycle_seconds: a connection older than this is replaced when it is next taken.
    :param answer_seconds: a server that has not answered after this long counts as lost; ``None``: never (a migration
        may take long).
    :raises ConfigurationError: the URL is malformed, or its database or driver is not supported or not installed.
    """
    parsed = parse_url(url)
    backend = parsed.get_backend_name()
    # An error's text would show what stands in an order.
    options: dict[str, Any] = {"pool_recycle": recycle_seconds, "hide_parameters": True, **_ARGUMENTS[backend]}
    if backend in ("mysql", "mariadb"):
        limits = dict.fromkeys(("read_timeout", "write_timeout"), answer_seconds)
        options["connect_args"] = options["connect_args"] | limits
    if parsed.database not in (None, "", ":memory:") or backend != "sqlite":
        options |= {"pool_size": pool_size, "max_overflow": max_overflow}
    try:
        engine = sa.create_engine(parsed, **options)
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise ConfigurationError(
            f"the driver of [database] connection {parsed.drivername!r} cannot be loaded ({error}); "
            "install retryflow with its extra postgresql or mysql"
        ) from None
    except (sa.exc.ArgumentError, TypeError, ValueError) as error:
        raise _not_taken(error) from None
    exc_filters.register_engine(engine)
    logging.getLogger(f"{type(engine.pool).__module__}.{type(engine.pool).__name__}").addFilter(_in_one_line)
    # One listener for all: of several, the first that connects keeps the others from being asked.
    sa.event.listen(engine, "do_connect", functools.partial(_connect, answer_seconds))
    sa.event.listen(engine, "connect", _SESSION[backend])
    if backend == "sqlite":
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def is_galera(engine: sa.Engine) -> bool:
    """Whether this is a node of a Galera cluster, where a row committed on another node may be missing for a moment."""
    if engine.dialect.name not in ("mysql", "mariadb"):
        return False
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SHOW VARIABLES LIKE 'wsrep_on'").one_or_none()
    return row is not None and row[1] == "ON"


def _connect(
    answer_seconds: float | None, dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]
) -> Any:
    """Connect; what a driver says of an argument that it cannot use is about the URL, not about the database."""
    try:
        if dialect.driver == "psycopg" and answer_seconds is not None:
            return _connect_impatiently(answer_seconds, arguments, options)
        return dialect.connect(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise _not_taken(error) from error
    except (FileNotFoundError, IsADirectoryError, PermissionError, ssl.SSLError) as error:
        # The network's trouble is raised by drivers as errors of their own.
        raise ConfigurationError(
            f"[database] connection names a file, as of a certificate, that cannot be used ({one_line(error)}); mend "
            "what stands after the ? in it"
        ) from error
    except dialect.loaded_dbapi.Error as error:
        # libpq looks at the arguments before it looks for the server; psycopg has no class for that.
        if dialect.name == "postgresql" and (
            isinstance(error, dialect.loaded_dbapi.ProgrammingError) or "connection is bad: invalid " in str(error)
        ):
            raise _not_taken(error) from error
        raise


def _connect_impatiently(answer_seconds: float, arguments: list[Any], options: dict[str, Any]) -> Any:
    from retryflow.model.impatient import ImpatientConnection

    connection = ImpatientConnection.connect(*arguments, **options)
    connection.answer_seconds = answer_seconds
    return connection


def _not_taken(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"[database] connection has an argument that its driver does not take ({one_line(error)}); mend what stands "
        "after the ? in it"
    )


def _in_one_line(record: logging.LogRecord) -> bool:
    """Shorten what the pool says of a connection that broke: whoever used it hears of it, or no longer needs to."""
    if record.exc_info:
        record.msg, record.args = "%s: %s", (record.getMessage().rstrip(), record.exc_info[1])
        record.exc_info = record.exc_text = None
    return True


def _connected_postgresql(connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION lock_timeout = '{LOCK_WAIT_SECONDS}s'")
        cursor.execute(f"SET SESSION idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_SECONDS}s'")
        # All statements have their index, and the statistics of a queue are never fresh: a plan made while the tables
        # were empty would read or sort all of them once a storm has come.
        cursor.execute("SET SESSION enable_seqscan = off")
        cursor.execute("SET SESSION enable_bitmapscan = off")
    connection.commit()


def _connected_mysql(connection: Any, record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'TRADITIONAL', time_zone = '+00:00'")
        cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}")
        cursor.execute("SELECT VERSION()")
        if "MariaDB" in cursor.fetchone()[0]:
            # MySQL has no such limit; there a paused client holds its locks until wait_timeout.
            cursor.execute(f"SET SESSION idle_transaction_timeout = {IDLE_IN_TRANSACTION_SECONDS}")


def _connected_sqlite(connection: Any, record: Any) -> None:
    # The driver must not begin transactions on its own: BEGIN IMMEDIATE is sent below.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_SECONDS * 1000}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A deferred transaction that reads first and then writes fails at once when another has written in between.
    mode = "DEFERRED" if connection.get_execution_options().get(READ_ONLY) else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


_SESSION = {
    "postgresql": _connected_postgresql,
    "mysql": _connected_mysql,
    "mariadb": _connected_mysql,
    "sqlite": _connected_sqlite,
}
_MYSQL_ARGUMENTS: dict[str, Any] = {
    "isolation_level": "READ COMMITTED",
    "connect_args": {
        "charset": "utf8mb4",
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    },
}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "postgresql": {
        "isolation_level": "READ COMMITTED",
        # A server that went away without a word (failover, cut cable) must not hold a thread for the kernel's two
        # hours.
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        },
    },
    "mysql": _MYSQL_ARGUMENTS,
    "mariadb": _MYSQL_ARGUMENTS,
    "sqlite": {"connect_args": {"timeout": LOCK_WAIT_SECONDS}},
}
