"""Other libraries' options: the defaults that suit retryflow, and registration before parsing.

They are changed on the libraries' own option objects, as every Oslo service does it, so that parsing, the sample file
and the configuration reference all show the same.
"""

from typing import Any

from oslo_config import cfg
from oslo_db import options as database
from oslo_log import log
from oslo_reports import opts as reports

from retryflow.conf.backend import prefer_threading

LOG_LEVELS = [
    "alembic=WARN",
    "cotyledon=WARN",
    "futurist=WARN",
    "oslo_db=WARN",
    # It tells each error that it has no name for with a traceback, before anybody has looked at what it is.
    "oslo_db.sqlalchemy.exc_filters=ERROR",
    "oslo_service=WARN",
]
LOG_FORMAT = "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(request_id)s] %(instance)s%(message)s"

RABBIT_GROUP = "oslo_messaging_rabbit"
MESSAGING_DEFAULTS: dict[str | None, dict[str, Any]] = {
    None: {
        # Another service may have declared the common exchange with other properties; quorum queues then fail.
        "control_exchange": "retryflow",
        # A running task may need a database connection of its own: 64 of them in each process are too many.
        "executor_thread_pool_size": 16,
    },
    RABBIT_GROUP: {
        # RabbitMQ 4.3 refuses queues that are neither durable nor exclusive, as the library's defaults declare them;
        # older brokers lose what waits in such queues when they restart.
        "rabbit_quorum_queue": True,
        "rabbit_transient_quorum_queue": True,
    },
}
GRACEFUL_SHUTDOWN_HELP = (
    "Seconds after SIGTERM at which a daemon process ends whatever happens: the last resort behind "
    "manager_shutdown_timeout, which must be at least 10 seconds shorter so that there is time left to give "
    "interrupted tasks back and to say so. 0 means: no limit."
)


def messaging_options() -> list[tuple[str | None, list[cfg.Opt]]]:
    """The option objects of oslo.messaging that retryflow uses, by group; not copies, since those could differ."""
    # Imported late because it settles oslo.service's backend.
    prefer_threading()
    from oslo_messaging import opts

    return [(group, options) for group, options in opts._opts if group in MESSAGING_DEFAULTS]


def set_library_defaults() -> None:
    """Change the defaults; ``oslo-config-generator`` calls it as well. Doing it twice changes nothing."""
    from oslo_service import opts as service

    for group, options in messaging_options():
        cfg.set_defaults(options, **MESSAGING_DEFAULTS[group])
    service.set_service_opts_defaults(cfg.ConfigOpts(), graceful_shutdown_timeout=180)
    log.set_defaults(LOG_FORMAT, sorted({*log.get_default_log_levels(), *LOG_LEVELS}))


def register_library_options(conf: cfg.ConfigOpts) -> None:
    """Register what the libraries would register later, so that a bad value is found when the daemon starts."""
    from oslo_service import opts as service

    set_library_defaults()
    service.register_service_opts(conf)
    conf.register_opts(database.database_opts, "database")
    reports.set_defaults(conf)
    for group, options in messaging_options():
        conf.register_opts(options, group)
