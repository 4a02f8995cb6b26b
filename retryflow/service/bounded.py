"""Calls that may hang (broker or database away), given a limited time of their own thread."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_LOG_SECONDS = 1.0


class BoundedCall(Generic[T]):
    """Run ``function`` on a thread of its own from now on; whoever waits decides how long.

    :param what: for the log: what is being done, as in "could not <what>".
    """

    def __init__(self, what: str, function: Callable[[], T]) -> None:
        self._what = what
        self._function = function
        self._result: T | None = None
        self.failed = False
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except Exception:
            self.failed = True
            LOG.exception("Could not %s", self._what)

    def wait(self, timeout_seconds: float | None) -> bool:
        """Whether it has ended, well or not, within ``timeout_seconds`` (``None``: no limit)."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def result(self) -> T | None:
        """What it returned; ``None`` while it runs and after a failure."""
        return self._result


def log_bounded(log: Callable[..., None], *arguments: object) -> None:
    """Log a line from a thread that must not hang; a log that nobody takes (a full pipe) gets a second.

    :param log: a logger's method.
    """
    BoundedCall("log", partial(log, *arguments)).wait(_LOG_SECONDS)


def each_within(
    what: str, function: Callable[[T], R], items: Sequence[T], *, timeout_seconds: float, threads: int = 8
) -> list[R | None]:
    """Do something for each item, several at once, on threads of their own.

    :param what: for the log, see :class:`BoundedCall`.
    :param timeout_seconds: for all of them together.
    :returns: the results in order; ``None`` for what was not done in time, or failed.
    """
    results: list[R | None] = [None] * len(items)
    waiting = iter(range(len(items)))
    # Taking the next index is one step of the interpreter, so the threads need no lock.
    lanes = [
        BoundedCall(what, lambda: [results.__setitem__(index, function(items[index])) for index in waiting])
        for _ in range(min(threads, len(items)))
    ]
    until = time.monotonic() + timeout_seconds
    for lane in lanes:
        lane.wait(max(0.0, until - time.monotonic()))
    return list(results)
