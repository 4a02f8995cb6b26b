"""Waiting for the tasks in progress, and the log lines of a stop, which keep Nova's words for existing log rules."""

import time
from collections.abc import Callable

from oslo_log import log as logging

from retryflow.service.deadline import StopTimes
from retryflow.service.signals import seconds_until
from retryflow.tracking import TaskEnd, TaskRecord, TaskTracker

LOG = logging.getLogger(__name__)

SUMMARY_SECONDS = 10.0


class Drain:
    """One wait of one process for the tasks of its tracker.

    :param times: the moments of the stop.
    :param clock: monotonic seconds, the tracker's.
    """

    def __init__(self, tracker: TaskTracker, times: StopTimes, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracker = tracker
        self._times = times
        self._clock = clock
        self._next_summary = clock() + SUMMARY_SECONDS
        self._at_first: list[TaskRecord] = []
        self.ends: list[TaskEnd] = []

    @property
    def until(self) -> float:
        """When the wait ends at the latest, on the monotonic clock."""
        return self._times.drain_until

    @property
    def times(self) -> StopTimes:
        """The moments of the stop, as they are now."""
        return self._times

    def hurry(self) -> None:
        """End the wait now; any thread may call it."""
        self._times = self._times.hurried(self._clock())
        self._tracker.wake()

    def begin(self) -> None:
        """From now on no end of a task is missed; logs nothing yet."""
        self._at_first = self._tracker.begin_drain()

    def log_beginning(self) -> None:
        """Log what was in progress at the beginning."""
        records = self._at_first
        if not records:
            LOG.info("Graceful shutdown: no tasks in progress")
            return
        limit = seconds_until(self.until, now=self._clock())
        LOG.info(
            "Graceful shutdown initiated with %d in-progress tasks; waiting %s for them",
            len(records),
            "without limit" if limit is None else f"at most {limit:.1f} s",
        )
        for record in records:
            LOG.info("Graceful shutdown: in progress: %s", self._describe(record))

    def wait(self, until: float | None = None) -> bool:
        """Wait until nothing is in progress, logging each end, and a summary every 10 seconds.

        :param until: wait at most to this moment, if it comes before the deadline.
        :returns: whether nothing is in progress.
        """
        while True:
            self.log_ends()
            # Looked at before the time, so that a wait of no length still answers truly.
            if self._tracker.idle:
                self.log_ends()
                return True
            now = self._clock()
            stop_at = min(self.until, until if until is not None else self.until)
            if now >= stop_at:
                return False
            if now >= self._next_summary:
                self._log_summary()
                self._next_summary = now + SUMMARY_SECONDS
            ends = self._tracker.take_ends(seconds_until(min(stop_at, self._next_summary), now=now))
            self._log(ends)

    def log_ends(self) -> None:
        """Log what has ended since the last look, without waiting."""
        self._log(self._tracker.take_ends(0))

    def _log(self, ends: list[TaskEnd]) -> None:
        self.ends.extend(ends)
        # Counted down here, since several ends may be collected at once.
        remaining = len(self._tracker.in_progress()) + len(ends)
        for end in ends:
            remaining -= 1
            LOG.info(
                "Graceful shutdown: task %s: %s, remaining in-progress tasks: %d",
                "failed" if end.failed else "completed",
                describe(end.record, end.seconds),
                remaining,
            )

    def _log_summary(self) -> None:
        records = self._tracker.in_progress()
        LOG.info(
            "Graceful shutdown still waiting for %d in progress tasks: %s",
            len(records),
            "; ".join(self._describe(record) for record in records),
        )

    def left(self) -> list[TaskRecord]:
        """The tasks still in progress; each task of this drain is either here or in :attr:`ends`, never in both."""
        records = self._tracker.in_progress()
        self.log_ends()
        ended = {end.record.key for end in self.ends}
        return [record for record in records if record.key not in ended]

    def log_left(self, records: list[TaskRecord]) -> None:
        """Log each task that is left at the deadline."""
        for record in records:
            LOG.warning("Graceful shutdown timed out with a task still in progress: %s", self._describe(record))

    def _describe(self, record: TaskRecord) -> str:
        return describe(record, self.seconds(record))

    def seconds(self, record: TaskRecord) -> float:
        """How long a task has been running."""
        return self._clock() - record.started


def describe(record: TaskRecord, seconds: float) -> str:
    """One task for the log; nothing of its arguments."""
    return f"{record.name} (request_id: {record.request_id}, entity: {record.entity_id}, elapsed: {seconds:.1f} s)"
