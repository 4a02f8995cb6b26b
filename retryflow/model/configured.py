"""The engine of the database that the configuration names."""

import sqlalchemy as sa
from oslo_config import cfg

from retryflow.conf import database_url
from retryflow.model.engine import ANSWER_SECONDS, create_engine


def make_engine(conf: cfg.ConfigOpts, *, connections: int, answer_seconds: float | None = ANSWER_SECONDS) -> sa.Engine:
    """Make an engine from ``[database]``.

    :param connections: how many are used at once; more than that are not kept open.
    :param answer_seconds: a server that has not answered after this long counts as lost.
    """
    options = conf.database
    return create_engine(
        database_url(conf),
        pool_size=max(connections, options.max_pool_size or 1),
        max_overflow=options.max_overflow if options.max_overflow is not None else 50,
        recycle_seconds=options.connection_recycle_time,
        answer_seconds=answer_seconds,
    )
