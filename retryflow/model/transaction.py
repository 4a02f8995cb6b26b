"""Transactions that survive what databases do to them: deadlock, serialization failure, Galera certification, lost
connections.

A transaction is a function of a connection. It is run again as a whole, five times at most, when the database says
that it lost a
race; the retry stands outside the transaction (Solid Queue #164, LP 1527003).
"""

import random
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_log import log as logging

from retryflow.errors import ConfigurationError, RetryflowError
from retryflow.model.engine import READ_ONLY

LOG = logging.getLogger(__name__)
T = TypeVar("T")

ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.02
# Serialization failure, deadlock, lock not available, idle-in-transaction time-out.
_RETRYABLE_SQLSTATES = frozenset({"40001", "40P01", "55P03"})
_DISCONNECTED_SQLSTATES = frozenset({"25P03", "57P01", "57P02", "57P03"})
_LOCK_WAIT_MYSQL = 1205
_RETRYABLE_MYSQL = frozenset({1020, _LOCK_WAIT_MYSQL, 1213})
# Insufficient resources, system error; and a transaction that may only read.
_OUT_OF_ORDER_CLASSES = frozenset({"53", "58"})
_READ_ONLY_SQLSTATE = "25006"
# Disk full, out of memory, too many connections, table full, --read-only, and the same of a file or tablespace.
_OUT_OF_ORDER_MYSQL = frozenset({1021, 1037, 1038, 1040, 1041, 1114, 1290, 1792, 1836})
_OUT_OF_ORDER_SQLITE = frozenset(
    {"database or disk is full", "attempt to write a readonly database", "disk I/O error", "out of memory"}
)


class UnclearCommitError(RetryflowError):
    """The connection was lost while COMMIT was under way: the transaction may or may not have been committed."""


def is_lost_race(error: BaseException) -> bool:
    """Whether the database refused the transaction only because of others; running it again is right."""
    if isinstance(error, db_exc.DBDeadlock):
        return True
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    original = error.orig
    if getattr(original, "sqlstate", None) in _RETRYABLE_SQLSTATES:
        return True
    if original is not None and original.args and original.args[0] in _RETRYABLE_MYSQL:
        return True
    return "database is locked" in str(original) or "database table is locked" in str(original)


def is_lock_timeout(error: BaseException) -> bool:
    """Whether it is the lost race that takes long: somebody had a row locked for all the time that is waited for it."""
    original = driver_error(error)
    if getattr(original, "sqlstate", None) == "55P03" or "database is locked" in str(original):
        return True
    return bool(original.args) and original.args[0] == _LOCK_WAIT_MYSQL


def is_disconnect(error: BaseException) -> bool:
    """Whether the database is out of reach, or the connection to it was cut."""
    # Whoever starts refuses a configuration that cannot be used; where it could be before (a certificate is being
    # replaced), it is waited for.
    if isinstance(error, db_exc.DBConnectionError | ConfigurationError):
        return True
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    original = error.orig
    if error.connection_invalidated or getattr(original, "sqlstate", None) in _DISCONNECTED_SQLSTATES:
        return True
    # A connection that could not even be made: the driver knows no SQLSTATE for it.
    return (
        isinstance(error, sa.exc.OperationalError)
        and type(original).__name__
        in (
            "OperationalError",
            "ConnectionTimeout",
        )
        and getattr(original, "sqlstate", "none") is None
    )


def refuses_all(error: BaseException) -> bool:
    """Whether the database writes nothing at all for now: it is full, read-only, or out of something."""
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    original = getattr(inner, "orig", None)
    if original is None:
        return False
    sqlstate = getattr(original, "sqlstate", None) or ""
    if sqlstate[:2] in _OUT_OF_ORDER_CLASSES or sqlstate == _READ_ONLY_SQLSTATE:
        return True
    if type(original).__module__.startswith("pymysql"):
        return bool(original.args) and original.args[0] in _OUT_OF_ORDER_MYSQL
    return str(original) in _OUT_OF_ORDER_SQLITE


def passes(error: BaseException) -> bool:
    """Whether the database is the reason, whatever it was given: out of reach, a lost race, full, read-only. To try
    again is right, and what failed is no error of ours."""
    return is_disconnect(error) or is_lost_race(error) or refuses_all(error)


def is_trouble(error: BaseException) -> bool:
    """Whether the reason lies in the database (out of reach, overloaded, full, read-only) and not in what it was
    given.
    """
    if is_lost_race(error) or is_disconnect(error) or isinstance(error, sa.exc.TimeoutError):
        return True
    # oslo.db wraps what it does not know.
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    return isinstance(inner, sa.exc.OperationalError | sa.exc.InternalError)


def failed_statement(error: BaseException) -> bool:
    """Whether it failed while a statement was executed, so that the statement's values may be the reason; not while
    connecting or in COMMIT.
    """
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    return isinstance(inner, sa.exc.DBAPIError) and inner.statement is not None


def driver_error(error: BaseException) -> BaseException:
    """:returns: what the driver raised, without the statement and the link that SQLAlchemy adds."""
    original = getattr(error, "inner_exception", None) or error
    return getattr(original, "orig", None) or original


def transact(
    engine: sa.Engine,
    work: Callable[[sa.Connection], T],
    *,
    read_back: Callable[[sa.Connection], T | None] | None = None,
    attempts: int = ATTEMPTS,
    patient: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Run ``work`` in one transaction and commit it.

    :param work: called once an attempt, with a connection in a new transaction; an exception of its own rolls back
        and comes out.
    :param read_back: called in a transaction of its own after an unclear commit; returns what ``work`` had returned
        if its
        transaction was committed, else ``None``, and then ``work`` is run again. Without it the work must be harmless
        to repeat.
    :param attempts: how often in all.
    :param patient: whether also after it has waited in vain for a row that somebody has locked.
    :returns: what ``work`` returned in the attempt that was committed.
    :raises oslo_db.exception.DBError: the last attempt's error.
    """
    unclear = False
    for attempt in range(1, attempts + 1):
        try:
            if unclear and read_back is not None:
                with engine.connect() as connection, connection.begin():
                    result = read_back(connection)
                if result is not None:
                    return result
                unclear = False
            return _once(engine, work)
        except UnclearCommitError as error:
            unclear = True
            if attempt == attempts:
                raise error.__cause__ or error from None
        except Exception as error:
            if attempt == attempts or not (is_lost_race(error) or is_disconnect(error)):
                raise
            if not patient and is_lock_timeout(error):
                raise
            LOG.debug("transaction runs again (attempt %s of %s): %s", attempt + 1, attempts, error)
        sleep(_FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable")


def _once(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    with engine.connect() as connection:
        transaction = connection.begin()
        try:
            result = work(connection)
        except BaseException:
            try:
                if not connection.invalidated:
                    transaction.rollback()
            except Exception as error:  # noqa: BLE001
                # What failed first is what counts; MariaDB ends the connection over a packet that is too large.
                LOG.debug("rollback failed: %s", error)
                connection.invalidate()
            raise
        try:
            transaction.commit()
        except Exception as error:
            if is_disconnect(error):
                raise UnclearCommitError("connection lost in COMMIT") from error
            raise
        return result


def read(engine: sa.Engine, work: Callable[[sa.Connection], T], *, attempts: int = ATTEMPTS) -> T:
    """Like :func:`transact` for work that only reads: takes no write lock on SQLite and is always safe to repeat."""
    return transact(engine.execution_options(**{READ_ONLY: True}), work, attempts=attempts)
