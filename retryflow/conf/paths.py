"""Where things are that the configuration leaves open."""

from pathlib import Path

from oslo_config import cfg

from retryflow.conf.registration import CONF

DATABASE_FILE = "retryflow.sqlite"


def database_url(conf: cfg.ConfigOpts = CONF) -> str:
    """SQLAlchemy URL of the database: ``[database] connection``, or an SQLite file below ``state_path``."""
    configured: str | None = conf.database.connection
    return configured or f"sqlite:///{Path(conf.state_path).expanduser().absolute() / DATABASE_FILE}"


def make_state_directory(conf: cfg.ConfigOpts = CONF) -> Path:
    """Make ``state_path`` if it is missing, readable by its owner only, and return it.

    :raises OSError: it cannot be made.
    """
    directory = Path(conf.state_path).expanduser().absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory
