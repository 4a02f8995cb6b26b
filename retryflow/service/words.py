"""Errors in the words of a log line."""

from retryflow.conf.reading import one_line
from retryflow.model.transaction import driver_error


def short(error: BaseException) -> str:
    """What the driver says, as far as it fits."""
    return one_line(driver_error(error))[:200]
