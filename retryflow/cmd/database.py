"""The database before a daemon starts: looked at, never created or changed except by the standalone daemon."""

import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db.exception import DBError
from oslo_log import log as logging

from retryflow import conf as configuration
from retryflow.conf.reading import one_line
from retryflow.errors import ConfigurationError, SchemaError
from retryflow.model import schema
from retryflow.model.engine import create_engine
from retryflow.model.refusal import is_refusal
from retryflow.model.transaction import is_disconnect
from retryflow.model.url import parse_url

LOG = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
SAY_AGAIN_SECONDS = 10.0
_WAITING = "database: not reachable, waiting for it: %s"


def require_schema(conf: cfg.ConfigOpts) -> None:
    """Refuse a database unless its schema is the one this version needs.

    One that does not answer is left to the service, which looks at the schema as well: it says so, waits, and while it
    does it tells probes that it is alive.

    :raises retryflow.errors.SchemaError: the tables are missing, too old or too new.
    :raises retryflow.errors.ConfigurationError: the database can never be used as it is configured.
    """
    url = parse_url(configuration.database_url(conf))
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        # Looking would create it, and daemons never create anything.
        raise SchemaError(
            f"there is no database {url.database}; run: retryflow db upgrade, or set [database] connection to the one "
            "that is meant"
        )
    engine = create_engine(configuration.database_url(conf), pool_size=1)
    try:
        _obstacle(engine, schema.check)
    finally:
        engine.dispose()


def upgrade_schema(conf: cfg.ConfigOpts) -> None:
    """Wait until the database answers, and bring its schema up to date; where none is configured, make it.

    :raises retryflow.errors.SchemaError: the schema is newer than this version.
    :raises retryflow.errors.ConfigurationError: the database can never be used as it is configured.
    """
    if not conf.database.connection:
        try:
            configuration.make_state_directory(conf)
        except OSError as error:
            raise ConfigurationError(
                f"[DEFAULT] state_path {conf.state_path} cannot be made ({error.strerror}); set it to a directory that "
                "this user may write to"
            ) from error
    engine = create_engine(configuration.database_url(conf), pool_size=1, answer_seconds=None)
    said = float("-inf")
    try:
        while (obstacle := _obstacle(engine, schema.upgrade)) is not None:
            if time.monotonic() - said >= SAY_AGAIN_SECONDS:
                said = time.monotonic()
                LOG.warning(_WAITING, obstacle)
            time.sleep(PAUSE_SECONDS)
    finally:
        engine.dispose()


def _obstacle(engine: sa.Engine, work: Callable[[sa.Engine], object]) -> str | None:
    """Do the work; if the database is out of reach, say what its driver says.

    A refusal is told at the start only: in a daemon at work it is a password that is being changed, and passes.
    """
    try:
        work(engine)
    except (DBError, sa.exc.SQLAlchemyError) as error:
        if is_refusal(error):
            raise ConfigurationError(
                f"the database refuses the user of [database] connection ({_short(error)}); mend its user or password, "
                "or let it in on the server"
            ) from error
        if not is_disconnect(error):
            raise ConfigurationError(f"[database] connection cannot be used: {_short(error)}") from error
        return _short(error)
    return None


def _short(error: BaseException) -> str:
    """What the driver says, without the statement and the link that SQLAlchemy adds."""
    original = getattr(error, "inner_exception", None) or error
    return one_line(getattr(original, "orig", None) or original)
