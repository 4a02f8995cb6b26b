"""What a daemon does about a database that cannot be used: it waits, and says so now and then; or it refuses to
start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

from retryflow.errors import ConfigurationError, RetryflowError
from retryflow.model.refusal import lacks_rights
from retryflow.model.transaction import is_disconnect, passes
from retryflow.service.words import short

LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
_QUIET_SECONDS = 10.0


class Complaints:
    """Says what is wrong with the database, once in ten seconds."""

    def __init__(self) -> None:
        self._last_words = float("-inf")

    def tell(self, error: Exception) -> None:
        """Log a warning, unless the last one was just now."""
        if time.monotonic() - self._last_words >= _QUIET_SECONDS:
            self._last_words = time.monotonic()
            what = "is out of reach; waiting for it" if is_disconnect(error) else "refused a transaction; trying on"
            LOG.warning("The database %s: %s", what, short(error))


def wait_for_database(probe: Callable[[], None], *, stopping: threading.Event, complaints: Complaints) -> None:
    """Call ``probe`` until the database has taken it, or the process is stopping.

    :param probe: a transaction that writes, so that a database which only reads is not taken for a good one.
    :raises RetryflowError: raised by the probe, such as for the wrong schema.
    :raises retryflow.errors.ConfigurationError: the database's user may not do what a daemon has to.
    """
    while not stopping.is_set():
        try:
            probe()
        except RetryflowError:
            raise
        except Exception as error:
            if lacks_rights(error):
                raise ConfigurationError(
                    f"the database lets the user of [database] connection in, but not read and write ({short(error)}); "
                    "grant it SELECT, INSERT, UPDATE and DELETE on the tables of retryflow, and on PostgreSQL USAGE on "
                    "their sequences"
                ) from error
            if not passes(error):
                raise
            complaints.tell(error)
            stopping.wait(_PAUSE_SECONDS)
        else:
            return
