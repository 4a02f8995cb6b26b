"""Whether the broker is there: connected is not enough, since a connection that hangs says nothing for minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from oslo_config import cfg

from retryflow.service.health import Asking, Check

_MISSED = 2.5
_SHORTEST_SECONDS = 5.0


class Consuming(Protocol):
    """What takes messages in."""

    @property
    def consuming(self) -> bool:
        """Whether it takes messages in."""
        ...


class BrokerChecks:
    """Asks for a sign of life each time, and judges by the age of the last answer.

    Where nobody asks (no health is reported) the connection's own word counts.
    """

    def __init__(self, conf: cfg.ConfigOpts, *, clock: Callable[[], float] = time.monotonic) -> None:
        options = getattr(conf, "health", None)
        interval: float = options.interval_seconds if options else _SHORTEST_SECONDS
        self._limit_seconds = max(_SHORTEST_SECONDS, _MISSED * interval)
        self._clock = clock
        self._asked_at: float | None = None

    def ask(self, consumer: object) -> None:
        """Ask, if it is something that can be asked; returns at once."""
        if isinstance(consumer, Asking):
            if self._asked_at is None:
                self._asked_at = self._clock()
            consumer.ask()

    def check(self, consumer: Consuming | None) -> Check:
        """The check of this moment."""
        if consumer is None or not consumer.consuming:
            return Check(
                name="broker", good=False, says="no messages come in: the broker is away, or the intake is paused"
            )
        if self._asked_at is None or not isinstance(consumer, Asking):
            return Check(name="broker", good=True, says="messages come in")
        # What was answered before anybody asked, such as the connecting, counts as well.
        seconds = max(0.0, self._clock() - max(consumer.answered_at, self._asked_at))
        good = seconds <= self._limit_seconds
        says = f"the broker's last answer was {seconds:.1f} s ago (limit {self._limit_seconds:g} s)"
        return Check(name="broker", good=good, says=says, seconds=round(seconds, 3))
