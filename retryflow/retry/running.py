"""The tasks that this process runs right now under a lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from retryflow.model.leases import Claimable
from retryflow.retry.context import TaskContext


@dataclass(slots=True, eq=False)
class Running:
    """One task between its claim and its finish.

    :param started: on the monotonic clock.
    :param overdue: it has run longer than ``[lease] max_run_seconds``; its lease is no longer renewed and its thread
        counts as lost.
    :param given_up: nobody wants its outcome any more: it was handed back, or its lease was taken away.
    """

    claimed: Claimable
    context: TaskContext
    started: float
    overdue: bool = False
    given_up: threading.Event = field(default_factory=threading.Event)

    def lose(self) -> None:
        """Tell the task that its lease is gone, and stop trying to finish it."""
        self.given_up.set()
        self.context.tell_lease_lost()


class RunningTasks:
    """What the lease keeper renews: by id, never "all of mine", for a lease that nobody runs must expire."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_id: dict[str, Running] = {}

    def add(self, claimed: Claimable, context: TaskContext) -> Running:
        """Record a claimed task; :meth:`remove` belongs into a ``finally``."""
        running = Running(claimed, context, self._clock())
        self._by_id[claimed.task_id] = running
        return running

    def remove(self, task_id: str) -> None:
        """Forget a task; harmless when it is not there."""
        self._by_id.pop(task_id, None)

    def get(self, task_id: str) -> Running | None:
        """:returns: the task with this lease, if it runs here."""
        return self._by_id.get(task_id)

    def snapshot(self) -> list[Running]:
        """:returns: what runs now; one step of the interpreter, so no lock is needed."""
        return list(self._by_id.values())

    def seconds(self, running: Running) -> float:
        """:returns: how long a task has been running."""
        return self._clock() - running.started
