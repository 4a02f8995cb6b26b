"""From an exception to the one line that an operator reads."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from oslo_config import cfg

from retryflow.cli.store import Store
from retryflow.conf.reading import bad_value, one_line
from retryflow.errors import ConfigurationError, RetryflowError, SchemaError

STANDARD_OUTPUT = "standard output"


class CommandFailed(RetryflowError):
    """The command could not do what it was asked for; the message says why and what to do."""


@contextlib.contextmanager
def writing_to(name: str) -> Iterator[None]:
    """While a file is written: the error of a full disk does not say which file it was.

    :param name: the file, as the operator calls it.
    :raises CommandFailed: it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandFailed(f"{name}: {error.strerror}") from error


def told(error: Exception, store: Store | None = None) -> RetryflowError:
    """What to tell the operator.

    :param store: the database that the command used, if it came so far.
    :returns: an error whose message is one line, without passwords and statements.
    """
    match error:
        case RetryflowError():
            return type(error)(one_line(error))
        case cfg.Error():
            return ConfigurationError(f"{bad_value(error)}; mend the configuration")
        case OSError(filename=str(name), strerror=str(reason)):
            return CommandFailed(f"{name}: {reason}")
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO, strerror=str(reason)):
            # Where we write a file, it is named.
            return CommandFailed(f"{STANDARD_OUTPUT}: {reason}")
        case ValueError():
            # Cliff's own, for a column that there is not.
            return CommandFailed(one_line(error))
    return _of_database(error, store) or CommandFailed(
        f"{type(error).__name__}: {one_line(error)}; this should not happen: run it again with --debug and report it"
    )


def _of_database(error: Exception, store: Store | None) -> RetryflowError | None:
    import sqlalchemy as sa
    from oslo_db.exception import DBError

    if store is None or not isinstance(error, DBError | sa.exc.SQLAlchemyError):
        return None
    from retryflow.model import schema
    from retryflow.model.refusal import is_refusal
    from retryflow.model.transaction import driver_error, is_disconnect

    reason = one_line(driver_error(error))
    if is_refusal(error):
        return CommandFailed(
            f"the database {store.shown} refuses this user ({reason}); mend user or password in [database] connection, "
            "or let the user in on the server"
        )
    if is_disconnect(error):
        return CommandFailed(
            f"the database {store.shown} does not answer ({reason}); start it, or set [database] connection to the "
            "one that is meant"
        )
    with contextlib.suppress(DBError, sa.exc.SQLAlchemyError):
        try:
            # Most often a table or a column is missing.
            schema.check(store.engine)
        except SchemaError as missing:
            return missing
    return CommandFailed(f"the database {store.shown} refused it: {reason}")
