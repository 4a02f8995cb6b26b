"""What ``oslo-config-generator``, the validator and the configuration reference ask for."""

import copy

from oslo_config import cfg

from retryflow.conf import library
from retryflow.conf.registration import MODULES


def list_opts() -> list[tuple[cfg.OptGroup | None, list[cfg.Opt]]]:
    """Entry point ``oslo.config.opts``: each group with its options.

    ``graceful_shutdown_timeout`` is oslo.service's, but its namespace also brings options that mean nothing here, so it
    is listed as ours, with a help text that says how it relates to the other time-outs.
    """
    listed = [(module.GROUP, list(module.OPTIONS)) for module in MODULES]
    conf = cfg.ConfigOpts()
    library.register_library_options(conf)
    graceful = copy.copy(conf._opts["graceful_shutdown_timeout"]["opt"])
    graceful.help = library.GRACEFUL_SHUTDOWN_HELP
    group, options = listed[0]
    listed[0] = (group, [*options, graceful])
    return listed


def set_library_defaults() -> None:
    """Entry point ``oslo.config.opts.defaults``."""
    library.set_library_defaults()
