"""Signals as bytes in a pipe. A handler does nothing; whatever must be done is done by a thread that waits.

(Logging or taking a lock inside a handler deadlocks: the handler may interrupt the very holder of the lock.)

Imports the standard library only, so that a command can call :func:`install_early` before it imports anything slow.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
NOTHING_TAKEN_YET = 0
_LONGEST_POLL_SECONDS = 3600.0


def install_early() -> None:
    """Until :class:`Inbox` takes over, let SIGTERM and SIGINT end the process at once, status 0; ignore the others.

    Nothing has been taken in yet, so there is nothing to finish or to hand back, and the default action would look like
    a failure to whatever supervises the daemon. Call it first thing, in the main thread.
    """
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _leave(_signum: int, _frame: FrameType | None) -> None:
    os._exit(NOTHING_TAKEN_YET)


def _only_wake(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter's wakeup descriptor has been written to already."""


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Hold back the handled signals, so that none arrives between a fork and the child's own :class:`Inbox`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*HANDLED, signal.SIGCHLD))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Inbox:
    """Where signals, and words from other threads, wait for the main thread. One per process, made in the main thread.

    It stays to the end of the process: whoever took the signals over from it could undo the exit status of the stop.

    :param signals: what is collected; a master adds ``SIGCHLD``.
    """

    def __init__(self, signals: Sequence[signal.Signals] = HANDLED) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._signals = tuple(signals)
        # First the descriptor, then the handlers: a signal between the two still does what it did before.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, _only_wake)

    def wait(self, timeout_seconds: float | None, *descriptors: int) -> tuple[list[int], list[int]]:
        """Wait for a signal, for :meth:`wake`, or for one of ``descriptors`` to become readable.

        :param timeout_seconds: ``None`` waits without limit. It may return earlier, with nothing.
        :returns: the signals in the order of arrival, each as often as it came, and the readable descriptors.
        """
        poll = select.poll()
        for descriptor in (self._reader, *descriptors):
            poll.register(descriptor, select.POLLIN)
        if timeout_seconds is None:
            milliseconds = None
        else:
            # Rounded up, so that a deadline has passed when this returns because of it; poll's own number is an int.
            milliseconds = int(min(max(0.0, timeout_seconds), _LONGEST_POLL_SECONDS) * 1000) + 1
        ready = [descriptor for descriptor, _event in poll.poll(milliseconds)]
        return self._take(), [descriptor for descriptor in ready if descriptor != self._reader]

    def wake(self) -> None:
        """Make :meth:`wait` return; any thread may call it."""
        # A full pipe wakes as well; a closed one has nobody left to wake.
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._writer, b"\0")

    def _take(self) -> list[int]:
        numbers: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reader, 4096):
                numbers.extend(byte for byte in chunk if byte)
        return numbers

    def forget(self) -> None:
        """Drop an inbox inherited over a fork, without touching what the parent still uses."""
        signal.set_wakeup_fd(-1)
        for number in self._signals:
            signal.signal(number, _only_wake if number in HANDLED else signal.SIG_DFL)
        os.close(self._reader)
        os.close(self._writer)


def seconds_until(moment: float, *, now: float | None = None) -> float | None:
    """Seconds from now until ``moment`` on the monotonic clock, at least 0; ``None`` if that is never (infinite)."""
    if moment == float("inf"):
        return None
    left = moment - (time.monotonic() if now is None else now)
    return min(max(0.0, left), threading.TIMEOUT_MAX)
