"""Values that look different to people (table) and to programs (json, yaml, csv, value)."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from cliff.columns import FormattableColumn

from retryflow.cli import words
from retryflow.cli.legible import legible

Column = FormattableColumn[Any]


class Moment(Column):
    """A time: in the reader's zone with its distance from now for people, ISO 8601 in UTC for programs.

    :param seconds_ago: by the database's clock, since the reader's may be wrong; negative for what is to come.
    """

    def __init__(self, value: datetime.datetime | None, seconds_ago: float | None = None) -> None:
        super().__init__(value)
        self._seconds_ago = seconds_ago

    def human_readable(self) -> str:
        """:returns: like ``2026-03-01 14:05:59 (3m 20s ago)``."""
        if self._value is None:
            return ""
        shown = self._value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        return shown if self._seconds_ago is None else f"{shown} ({words.distance(float(self._seconds_ago))})"

    def machine_readable(self) -> str | None:
        """:returns: like ``2026-03-01T13:05:59.123456Z``."""
        return iso(self._value)


class Length(Column):
    """A length of time in seconds."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(None if seconds is None else round(float(seconds), 3))

    def human_readable(self) -> str:
        """:returns: like ``3m 20s``."""
        return "" if self._value is None else words.length(self._value)


class Maybe(Column):
    """A value that may be missing: nothing for people, null for programs."""

    def human_readable(self) -> str:
        """:returns: the value as text on one line."""
        return "" if self._value is None else legible(str(self._value))


class Told(Column):
    """Anything, with a function that tells it to people.

    :param tell: called only for people; the ends of lines in what it returns are meant.
    """

    def __init__(self, value: Any, tell: Callable[[Any], str]) -> None:
        super().__init__(value)
        self._tell = tell

    def human_readable(self) -> str:
        """:returns: what ``tell`` makes of it."""
        return "" if self._value is None else legible(self._tell(self._value), lines=True)


def document(value: Any) -> Told:
    """JSON: indented for people, with long texts cut; the structure itself for programs."""
    return Told(value, lambda whole: json.dumps(_shortened(whole), indent=2, ensure_ascii=False))


def iso(value: datetime.datetime | None) -> str | None:
    """:returns: ISO 8601 in UTC with microseconds."""
    if value is None:
        return None
    return value.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _shortened(value: Any, *, characters: int = 60) -> Any:
    match value:
        case dict():
            return {key: _shortened(member) for key, member in value.items()}
        case list():
            return [_shortened(member) for member in value]
        case str() if len(value) > characters:
            return f"{value[:characters]}... ({len(value)} characters)"
    return value
