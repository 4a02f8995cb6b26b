"""What decides whether a scheduler really works."""

from __future__ import annotations

import time

from retryflow.retry.settings import Settings
from retryflow.retry.tick import TickReport
from retryflow.service.health import EVERYTHING, WORKING, Check, age

_LONGEST_DITHER = 1.2


def tick_checks(
    settings: Settings, *, thread_lives: bool, last_progress: float, last_report: TickReport, now: float | None = None
) -> list[Check]:
    """The checks of a scheduler that has started.

    :param thread_lives: whether the thread that ticks does.
    :param last_progress: when a tick last ended well or got a batch further, on the monotonic clock.
    :param last_report: what the last tick did.
    """
    period = settings.schedule_period_seconds
    # A tick can be as late as the dither and one batch make it, and no batch may take longer than its time-out.
    limit = max(2 * period, _LONGEST_DITHER * period + settings.batch_timeout_seconds)
    tick = age(
        "tick",
        seconds=(time.monotonic() if now is None else now) - last_progress,
        limit_seconds=limit,
        what="the last tick",
    )
    sent = last_report.dispatched + last_report.resent
    refused = last_report.unsent > 0 and sent == 0
    return [
        Check(
            name="thread",
            good=thread_lives,
            says="the thread that ticks is alive" if thread_lives else "the thread that ticks has died",
            decides=EVERYTHING,
        ),
        tick,
        Check(
            name="tickets",
            good=not refused,
            says=f"the broker took none of {last_report.unsent} tickets"
            if refused
            else "the broker takes tickets, as far as there were any",
            decides=frozenset((WORKING,)),
        ),
    ]
