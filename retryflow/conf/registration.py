"""Registration of every option, before anything is parsed."""

from types import ModuleType

from oslo_config import cfg
from oslo_db import options as database
from oslo_log import log

from retryflow.conf import certificate, health, lease, library, queue, retry, scheduler, service, simple_certificate

MODULES: tuple[ModuleType, ...] = (
    service,
    queue,
    scheduler,
    lease,
    retry,
    health,
    certificate,
    simple_certificate,
)

CONF = cfg.CONF


def register_own(conf: cfg.ConfigOpts = CONF) -> None:
    """Register retryflow's options, those of logging and those of the database: enough for whoever only looks at it.

    The others belong to libraries that take longer to load than such a look takes; :func:`register_all` may follow.
    """
    conf.register_opts(database.database_opts, "database")
    for module in MODULES:
        conf.register_opts(module.OPTIONS, module.GROUP)
    if "log_file" not in conf:
        log.register_options(conf)


def register_all(conf: cfg.ConfigOpts = CONF) -> None:
    """Register retryflow's options and those of the libraries beneath it; calling it again does nothing.

    :param conf: the global ``oslo_config.cfg.CONF`` unless a test wants its own (oslo.messaging reads some options
        from the global one only, so a daemon cannot have its own).
    """
    library.register_library_options(conf)
    register_own(conf)
