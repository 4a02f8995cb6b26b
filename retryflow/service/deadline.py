"""All moments of a stop, computed once when it is asked for: grace periods of several parts must not add up."""

import math
from dataclasses import dataclass, replace

from oslo_config import cfg

RESERVE_SECONDS = 3.0
RESERVE_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class StopTimes:
    """Moments on the monotonic clock; infinite where there is no limit.

    :param asked: when the stop was asked for.
    :param drain_until: until then tasks may finish.
    :param interrupt_until: until then what is left is being given back.
    :param end: at this moment the process ends whatever happens.
    """

    asked: float
    drain_until: float
    interrupt_until: float
    end: float

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, asked: float) -> "StopTimes":
        """Read ``manager_shutdown_timeout`` and ``graceful_shutdown_timeout``, as they are at this moment."""
        manager, graceful = float(conf.manager_shutdown_timeout), float(conf.graceful_shutdown_timeout)
        return cls.after(asked, manager_seconds=manager or math.inf, graceful_seconds=graceful or math.inf)

    @classmethod
    def after(cls, asked: float, *, manager_seconds: float, graceful_seconds: float) -> "StopTimes":
        """The moments that follow from the two time-outs; a reserve of the first is kept for giving tasks back."""
        # Options can change at run time without being checked against each other: giving back must fit in all the same.
        whole = min(manager_seconds, graceful_seconds)
        reserve = min(RESERVE_SECONDS, whole * RESERVE_SHARE)
        return cls(
            asked=asked,
            drain_until=asked + whole - reserve,
            interrupt_until=asked + whole,
            end=asked + graceful_seconds,
        )

    def hurried(self, now: float) -> "StopTimes":
        """The same stop after somebody has lost patience: the drain is over now."""
        return replace(
            self,
            drain_until=min(self.drain_until, now),
            interrupt_until=min(self.interrupt_until, now + RESERVE_SECONDS),
        )
