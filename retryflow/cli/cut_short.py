"""SIGTERM to a command that has something to say before it ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class _Terminated(BaseException):
    """SIGTERM has come; as Ctrl-C's, no handler of errors is to catch it."""


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """While in the block, SIGTERM raises an exception; behind it, the process ends by the signal as it would have."""

    def stop(*_: Any) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
