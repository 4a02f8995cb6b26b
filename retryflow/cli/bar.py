"""How far a long command has come: a bar in a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_WIDTH = 30
TELL_SECONDS = 30.0


class Bar:
    """A progress bar; leaving the ``with`` block ends its line.

    :param stream: where it is drawn if it is a terminal.
    :param total: what makes it full.
    :param tell: called every half minute where there is no terminal.
    """

    def __init__(
        self,
        stream: TextIO,
        total: int,
        *,
        tell: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._total = total
        self._done = 0
        self._is_shown = total > 0 and stream.isatty()
        self._tell = tell
        self._clock = clock
        self._told_at = clock()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            self._stream.write("\n")

    def add(self, number: int) -> None:
        """So many more are done."""
        self._done += number
        if self._is_shown:
            part = min(1.0, self._done / self._total)
            filled = int(part * _WIDTH)
            bar = "#" * filled + "-" * (_WIDTH - filled)
            self._stream.write(f"\r[{bar}] {self._done} of {self._total} ({part:4.0%})")
            self._stream.flush()
        elif self._clock() - self._told_at >= TELL_SECONDS:
            self._told_at = self._clock()
            self._tell()
