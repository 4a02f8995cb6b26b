"""Every error that retryflow raises on purpose.

Each message says what happened and what to do about it, so that a command can print it as its only line.
"""


class RetryflowError(Exception):
    """Base class: catch this to catch whatever retryflow raises on purpose."""


class ConfigurationError(RetryflowError):
    """The configuration cannot work; the message names the options and the remedy."""


class SchemaError(RetryflowError):
    """The database schema is missing, too old or too new; the message names the command to run."""


class InvalidOrder(RetryflowError):
    """What was submitted can never be run: wrong type of an argument, or not JSON."""


class OrderNotFound(RetryflowError):
    """No order has this id."""


class WrongOrderState(RetryflowError):
    """The order's status does not allow what was asked for."""


class PluginUnavailable(RetryflowError):
    """A plugin's backend is out of reach for now; the task is retried with backoff."""


class LeaseLost(RetryflowError):
    """This process no longer holds the task's lease: stop working, nothing of it will be kept."""


class LockLost(RetryflowError):
    """Another scheduler has taken the EntityLock over: this one must stop its tick."""
