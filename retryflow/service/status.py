"""The exit statuses of a daemon, and the one way out of its process."""

import logging
import os
import sys
import threading
from collections.abc import Iterable
from enum import IntEnum
from typing import NoReturn

_FLUSH_SECONDS = 1.0


class ExitStatus(IntEnum):
    """What the end of a daemon means; true through a master with several worker processes too."""

    DRAINED = 0
    """Every task in progress has finished, every ticket not started was handed back."""
    REFUSED = 1
    """It did not start: the configuration, the schema or the transport cannot work."""
    USAGE = 2
    """Wrong arguments on the command line."""
    INTERRUPTED = 3
    """It was stopped, and something was interrupted or could not be handed back; the report names it."""
    WORKER_LOST = 4
    """A worker process ended by itself and could not be replaced."""


def worst(statuses: Iterable[int]) -> int:
    """The status of a whole whose parts end with these: what was interrupted counts more than all else."""
    bad = set(statuses) - {ExitStatus.DRAINED}
    return ExitStatus.INTERRUPTED if ExitStatus.INTERRUPTED in bad else min(bad, default=ExitStatus.DRAINED)


def exit_now(status: int) -> NoReturn:
    """Flush logs and standard streams, then end the process whatever its threads do.

    A thread that ignores the stop would keep the interpreter in its shutdown for ever; and one that hangs inside a log
    handler would keep the flush, so that is bounded by a second.
    """
    try:
        flusher = threading.Thread(target=_flush, name="flush", daemon=True)
        flusher.start()
        flusher.join(_FLUSH_SECONDS)
    finally:
        os._exit(status)


def _flush() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
