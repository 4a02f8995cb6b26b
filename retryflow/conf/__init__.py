"""Every option, one module per group; registered before parsing, checked against each other before use."""

from retryflow.conf.paths import database_url, make_state_directory
from retryflow.conf.reading import parse
from retryflow.conf.registration import CONF, register_all, register_own
from retryflow.conf.reloading import reload
from retryflow.conf.unknown import unknown_names
from retryflow.conf.validation import validate

__all__ = [
    "CONF",
    "database_url",
    "make_state_directory",
    "parse",
    "register_all",
    "register_own",
    "reload",
    "unknown_names",
    "validate",
]
