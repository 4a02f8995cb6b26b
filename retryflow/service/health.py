"""What a daemon says of itself: alive, ready, really working. Facts are numbers in memory; to look never waits.

"Alive" has to stay true while broker or database are away, since its "no" makes whoever asks restart the process, and a
fleet that restarts because of an outage does not end it. So only what a restart would mend decides it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

ALIVE = "alive"
READY = "ready"
WORKING = "working"
QUESTIONS = (ALIVE, READY, WORKING)

EVERYTHING = frozenset(QUESTIONS)
USABLE = frozenset((READY, WORKING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    :param good: whether it is as it should be.
    :param says: in words, also when it is good.
    :param decides: the questions whose answer is no when it is not good.
    :param seconds: the age that was measured, if it is one.
    """

    name: str
    good: bool
    says: str
    decides: frozenset[str] = USABLE
    seconds: float | None = None


def age(name: str, *, seconds: float, limit_seconds: float, what: str, decides: frozenset[str] = USABLE) -> Check:
    """A check that something happened not too long ago.

    :param seconds: how long ago; infinite for never.
    :param limit_seconds: how long ago is still good.
    :param what: that happened, such as "the last tick".
    """
    never = seconds == float("inf")
    says = f"{what} has not been yet" if never else f"{what} was {seconds:.1f} s ago (limit {limit_seconds:g} s)"
    return Check(
        name=name,
        good=seconds <= limit_seconds,
        says=says,
        decides=decides,
        seconds=None if never else round(seconds, 3),
    )


@dataclass(frozen=True, slots=True)
class Health:
    """All checks of one process at one moment."""

    checks: Sequence[Check]

    def answer(self, question: str) -> bool:
        """:param question: one of ``QUESTIONS``."""
        return not self.faults(question)

    def faults(self, question: str) -> list[Check]:
        """:returns: what makes the answer no; empty when it is yes."""
        return [check for check in self.checks if not check.good and question in check.decides]

    def as_dict(self) -> dict[str, Any]:
        """The answers, and every check behind them, for JSON."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **{question: self.answer(question) for question in QUESTIONS},
            "checks": [
                {
                    "name": check.name,
                    "good": check.good,
                    "says": check.says,
                    "seconds": check.seconds,
                    "decides": [question for question in QUESTIONS if question in check.decides],
                }
                for check in self.checks
            ],
        }


@runtime_checkable
class Asking(Protocol):
    """A connection to the broker that can be asked for a sign of life."""

    answered_at: float
    """When the broker last answered, on the monotonic clock."""

    def ask(self) -> None:
        """Ask; returns at once."""
        ...


def prefixed(prefix: str, checks: Iterable[Check]) -> list[Check]:
    """The checks of one of several services in a process."""
    return [
        Check(
            name=f"{prefix}.{check.name}",
            good=check.good,
            says=check.says,
            decides=check.decides,
            seconds=check.seconds,
        )
        for check in checks
    ]
