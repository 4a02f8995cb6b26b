"""The table of tasks in progress, and the wait until it is empty."""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from retryflow.tracking.record import Kind, TaskEnd, TaskRecord, TrackedMethod

Call = tuple[TrackedMethod, float, tuple[Any, ...], dict[str, Any]]
Entry = Call | TaskRecord


class TaskTracker:
    """Which tasks are running in this process. Any number of endpoints, executors and timers may report to one tracker.

    Recording takes no lock: making a key, setting and deleting an item of a dictionary are each one atomic step of the
    interpreter. Nothing can slip between the end of a task and the drain, since a task that ends reads the draining
    flag *after* it has left the table, while the drain sets the flag *before* it looks at the table: one of the two
    sees the other. Only during a drain is the condition's lock taken, and nothing is ever logged while it is held.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.draining = False
        # The endpoint wrapper works on these two directly: a method call less in each RPC.
        self.table: dict[int, Entry] = {}
        self.next_key: Callable[[], int] = itertools.count(1).__next__
        self.completed_count = 0
        self.failed_count = 0
        self._condition = threading.Condition()
        self._ends: list[TaskEnd] = []
        self._awaited: set[int] = set()
        self._woken = False

    def record_start(
        self, name: str, *, request_id: str | None = None, entity_id: str | None = None, kind: Kind = "sync"
    ) -> int:
        """Record that a task begins.

        :returns: the key for :meth:`record_end`.
        """
        key = self.next_key()
        self.table[key] = TaskRecord(
            key=key, name=name, request_id=request_id, entity_id=entity_id, kind=kind, started=self.clock()
        )
        return key

    def record_end(self, key: int, future: Future[Any] | None = None, *, failed: bool = False) -> None:
        """Record that a task has ended; call it in a ``finally``, or give it to ``Future.add_done_callback``.

        :param key: from :meth:`record_start`. A key that is not known, or has ended already, does nothing.
        :param future: the completed future, if there is one; it tells whether the task failed.
        :param failed: whether the task ended with an exception.
        """
        if future is not None:
            failed = future.cancelled() or future.exception() is not None
        self.end(key, failed)

    def end(self, key: int, failed: bool) -> None:
        """:meth:`record_end` in the form that costs least."""
        begun = self.draining
        if begun:
            with self._condition:
                entry = self.table.pop(key, None)
                if entry is not None:
                    self._ended(key, entry, failed)
        else:
            entry = self.table.pop(key, None)
            if self.draining and entry is not None:
                with self._condition:
                    self._ended(key, entry, failed)

    def discard(self, key: int) -> None:
        """Take a record away without an end: what it stood for goes on under another record."""
        with self._condition:
            self.table.pop(key, None)
            self._awaited.discard(key)
            self._condition.notify_all()

    def _ended(self, key: int, entry: Entry, failed: bool) -> None:
        record = _record(key, entry)
        self._ends.append(TaskEnd(record, self.clock() - record.started, failed))
        self._awaited.discard(key)
        if failed:
            self.failed_count += 1
        else:
            self.completed_count += 1
        self._condition.notify_all()

    def in_progress(self) -> list[TaskRecord]:
        """The tasks in progress, oldest first."""
        # list() of a dictionary view is one atomic step; a generator would meet the table while it changes.
        return [_record(key, entry) for key, entry in list(self.table.items())]

    def begin_drain(self) -> list[TaskRecord]:
        """From now on ends are collected for :meth:`take_ends`; calling it again is harmless.

        :returns: the tasks in progress.
        """
        with self._condition:
            self.draining = True
            records = self.in_progress()
            self._awaited.update(record.key for record in records)
            return records

    def take_ends(self, timeout_seconds: float | None = None) -> list[TaskEnd]:
        """Wait until a task ends, and return what has ended since the last call.

        Returns at once, with what there is, when nothing is in progress; with nothing at the time-out or after
        :meth:`wake`.

        :param timeout_seconds: ``None`` waits without limit, 0 does not wait.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._ends or self._empty() or self._woken, timeout_seconds)
            self._woken = False
            ends, self._ends = self._ends, []
            return ends

    def wake(self) -> None:
        """Make a waiting :meth:`take_ends` return."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Begin the drain and wait until nothing is in progress.

        :param timeout_seconds: ``None`` waits without limit.
        :returns: whether nothing is in progress; ``False`` at the time-out.
        """
        self.begin_drain()
        with self._condition:
            return self._condition.wait_for(self._empty, timeout_seconds)

    def _empty(self) -> bool:
        # A task of the first snapshot may have left the table and not yet have been collected.
        return not self.table and not self._awaited

    def __reduce__(self) -> tuple[type["TaskTracker"], tuple[()]]:
        # What runs here does not run wherever a copy goes.
        return type(self), ()

    @property
    def idle(self) -> bool:
        """Whether nothing is in progress."""
        with self._condition:
            return self._empty()


def _record(key: int, entry: Entry) -> TaskRecord:
    if isinstance(entry, TaskRecord):
        return entry
    method, started, args, kwargs = entry
    return method.record(key, started, args, kwargs)
