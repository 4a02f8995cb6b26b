"""Whether a server that answered refused this user, as a whole or a statement of his: waiting does not help there, as
it does where nobody answers."""

import re

import sqlalchemy as sa
from oslo_db import exception as db_exc

from retryflow.model.transaction import driver_error

# Access denied to the database, to the server, to the server with this way of proving who one is.
_MYSQL = frozenset({1044, 1045, 1698})
# A command, a column of the table denied to the user.
_MYSQL_RIGHTS = frozenset({1142, 1143})
_POSTGRESQL_RIGHTS = "42501"
# libpq passes the SQLSTATE of a refused connection on to nobody, so the words of the server and of PgBouncer have to
# do. Where a server speaks another language than English, its refusal is not known from an outage.
_POSTGRESQL = re.compile(
    r"role \".*\" does not exist"
    r"|role \".*\" is not permitted to log in"
    r"|authentication failed"
    r"|no pg_hba\.conf entry for host"
    r"|pg_hba\.conf rejects connection"
    r"|permission denied for database"
    r"|no password supplied"
    r"|no such user"
)


def is_refusal(error: BaseException) -> bool:
    """Whether the server answered and let this user not in: unknown, wrong password, or not from here."""
    inner = error.inner_exception if isinstance(error, db_exc.DBError) else error
    if not isinstance(inner, sa.exc.OperationalError) or inner.statement is not None:
        return False
    original = inner.orig
    if original is not None and original.args and original.args[0] in _MYSQL:
        return True
    # A connection that was made has a SQLSTATE for each of its errors; MySQL's drivers know none at all.
    return getattr(original, "sqlstate", "none") is None and _POSTGRESQL.search(str(original)) is not None


def lacks_rights(error: BaseException) -> bool:
    """Whether the server let this user in, but not do what was asked for."""
    original = driver_error(error)
    if type(original).__module__.startswith("pymysql"):
        return bool(original.args) and original.args[0] in _MYSQL_RIGHTS
    return getattr(original, "sqlstate", None) == _POSTGRESQL_RIGHTS
