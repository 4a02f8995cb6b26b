"""The history of an order, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retryflow.cli import words
from retryflow.cli.columns import Told, iso
from retryflow.cli.legible import legible
from retryflow.cli.next_step import host_of

if TYPE_CHECKING:
    from retryflow.model.types import AnyRow


def column(history: Sequence[AnyRow]) -> Told:
    """:returns: the history as one column."""
    return Told(
        [entry(line) for line in history], lambda _: "\n".join(f"{clock(line)}  {tell(line)}" for line in history)
    )


def entry(line: AnyRow) -> dict[str, Any]:
    """:returns: one event for programs."""
    # Not line.count, which is a method of the row.
    values = line._mapping
    return {
        "at": iso(line.at),
        "last_at": iso(line.last_at),
        "count": values["count"],
        "event": line.event,
        "task": line.task,
        "task_id": line.task_id,
        "worker": host_of(line.holder),
        "seconds": None if line.seconds is None else round(line.seconds, 3),
        "detail": line.detail,
    }


def clock(line: AnyRow) -> str:
    """:returns: when it was, in the reader's zone."""
    return str(line.at.astimezone().strftime("%Y-%m-%d %H:%M:%S"))


def tell(line: AnyRow) -> str:
    """:returns: one event for people, without its time."""
    parts = [line.event]
    count = line._mapping["count"]
    if count > 1:
        parts.append(f"{count} times, last {line.last_at.astimezone().strftime('%Y-%m-%d %H:%M:%S')}")
    if line.task:
        parts.append(line.task)
    if line.holder:
        took = "" if line.seconds is None else f", {seconds(line.seconds)}"
        parts.append(f"on {host_of(line.holder)}{took}")
    told = ", ".join(parts)
    # On one line, or it could pass for a line of the history.
    return legible(f"{told}: {line.detail}" if line.detail else told)


def seconds(value: float) -> str:
    """:returns: how long a run took."""
    return f"{value:.2f} s" if value < 60 else words.length(value)
