"""How long to wait before the next attempt, and when to stop trying."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

# Beyond this many doublings any sensible interval has long been reached; the clamp keeps the power from overflowing.
_LARGEST_EXPONENT = 64


class RandomSource(Protocol):
    """What the jitter is drawn from; ``random.Random`` is one."""

    def uniform(self, a: float, b: float, /) -> float: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff; immutable, so that no task can change it for the others (Celery #10456).

    :param initial_interval_seconds: before the second attempt.
    :param backoff_coefficient: each interval is so many times the one before; 1 keeps it constant.
    :param maximum_interval_seconds: no interval is longer.
    :param maximum_attempts: attempts in all, the first one included; 0 sets no limit.
    :param jitter: each interval is drawn from ``interval * (1 - jitter)`` to ``interval * (1 + jitter)``; 0 to 1.
    """

    initial_interval_seconds: float = 15.0
    backoff_coefficient: float = 2.0
    maximum_interval_seconds: float = 3600.0
    maximum_attempts: int = 0
    jitter: float = 0.2

    def delay_seconds(self, attempt: int, random: RandomSource) -> float:
        """The wait after the ``attempt``-th failure: a pure function of policy, attempt and random source.

        :param attempt: 1 after the first failure; any size is fine (Procrastinate #1462).
        """
        exponent = min(max(attempt - 1, 0), _LARGEST_EXPONENT)
        interval = min(
            self.initial_interval_seconds * self.backoff_coefficient**exponent, self.maximum_interval_seconds
        )
        return max(0.0, interval * random.uniform(1 - self.jitter, 1 + self.jitter))

    def is_exhausted(self, attempts: int) -> bool:
        """Whether ``attempts`` (the first one included) were all that the policy allows."""
        return 0 < self.maximum_attempts <= attempts


@dataclass(frozen=True, slots=True)
class Limits:
    """The policy and the three limits of one service.

    :param give_up_after_seconds: how long a task may fail in a row, by the clock.
    :param poll_give_up_after_seconds: how long an order may wait for its backend.
    :param max_crashes: how many times in a row a task may end with its worker's death.
    :param default_poll_seconds: between two polls where the plugin names no delay.
    """

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    give_up_after_seconds: float = 259_200.0
    poll_give_up_after_seconds: float = 2_592_000.0
    max_crashes: int = 3
    default_poll_seconds: float = 300.0
