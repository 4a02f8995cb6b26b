"""Group commit: what several threads want from the database at the same moment is done in one transaction.

Nobody waits for company: a thread that finds nobody at work begins at once, and what comes meanwhile is the next batch.
Whoever need not know the result at once leaves it to others (:meth:`Group.later`), and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from oslo_log import log as logging

from retryflow.model.transaction import is_disconnect

LOG = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


Done = Callable[[Result | None, BaseException | None], None]


class _Entry(Generic[Item, Result]):
    """One thread's wish; its event is set when there is a result, or when the thread is to lead the next batch.

    :ivar alone: its thread is to do it by itself.
    :ivar done: called with the result in place of that; nobody waits for the event then.
    """

    __slots__ = ("alone", "done", "error", "event", "item", "leads", "result")

    def __init__(self, item: Item, done: Done[Result] | None = None) -> None:
        self.item = item
        self.done = done
        self.event = None if done else threading.Event()
        self.alone = False
        self.leads = False
        self.result: Result | None = None
        self.error: BaseException | None = None


class Group(Generic[Item, Result]):
    """Gathers items of several threads into batches.

    :param run: does a batch; returns a result for each item, in their order. It may raise: then each item of a batch of
        several is done again by itself, on the thread that waits for it, so that one bad item neither fails the others
        nor keeps them waiting (promise P8).
    :param leaders: how many batches are under way at once: one is computed while another waits for its commit.
    :param most: largest batch.
    :param backlog: how many may have been left to others at the same time; beyond that, :meth:`later` waits.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        leaders: int = 1,
        most: int = 64,
        backlog: int = 64,
    ) -> None:
        self._run = run
        self._most = most
        self._backlog = backlog
        self._lock = threading.Lock()
        self._waiting: list[_Entry[Item, Result]] = []
        self._free_leaders = leaders
        self._helper_wanted = threading.Semaphore(0)
        self._helper_called = False
        self._helper: threading.Thread | None = None

    def do(self, item: Item) -> Result:
        """Do one item, together with those of other threads.

        :raises Exception: what ``run`` raised for this item.
        """
        entry: _Entry[Item, Result] = _Entry(item)
        self._wait(entry)
        if entry.alone:
            self._alone(entry)
        if entry.error is not None:
            raise entry.error
        return entry.result  # type: ignore[return-value]

    def later(self, item: Item, done: Done[Result]) -> None:
        """Leave one item to others and go on; a thread of the group's own does it where nobody else is at work.

        :param done: called with the result or the error, on some thread of those that share this group; what it raises
            is logged.
        """
        entry: _Entry[Item, Result] = _Entry(item, done)
        with self._lock:
            left = len(self._waiting) < self._backlog
            if left:
                self._waiting.append(entry)
                if self._free_leaders and not self._call_helper():
                    self._waiting.remove(entry)
                    left = False
        if left:
            return
        # Too much is left over already: this thread waits like those that want to know.
        try:
            result = self.do(item)
        except BaseException as error:  # noqa: BLE001 (it is told)
            self._tell(done, None, error)
        else:
            self._tell(done, result, None)

    def _call_helper(self) -> bool:
        """:returns: ``False`` where there is none, and no thread can be started."""
        # Not the thread that came: until the helper has got the interpreter, that one may have left more to it.
        if self._helper_called:
            return True
        if self._helper is None:
            helper = threading.Thread(target=self._help, name="group", daemon=True)
            try:
                helper.start()
            except RuntimeError as error:
                LOG.warning("No thread can be started: %s", error)
                return False
            self._helper = helper
        self._helper_called = True
        self._helper_wanted.release()
        return True

    def _help(self) -> None:
        while self._helper_wanted.acquire():
            with self._lock:
                self._helper_called = False
                batch = None
                if self._free_leaders and self._waiting:
                    self._free_leaders -= 1
                    batch = self._take(self._waiting.pop(0))
            self._be_leader(batch)

    def _wait(self, entry: _Entry[Item, Result]) -> None:
        batch: list[_Entry[Item, Result]] | None = None
        assert entry.event is not None
        with self._lock:
            if self._free_leaders:
                self._free_leaders -= 1
                batch = self._take(entry)
            else:
                self._waiting.append(entry)
        if batch is None:
            entry.event.wait()
            if entry.leads:
                with self._lock:
                    batch = self._take(entry)
        if batch is not None:
            self._be_leader(batch)

    def _be_leader(self, batch: list[_Entry[Item, Result]] | None) -> None:
        while batch is not None:
            try:
                self._lead(batch)
            finally:
                batch = self._pass_on()

    def _take(self, entry: _Entry[Item, Result]) -> list[_Entry[Item, Result]]:
        batch = [entry, *self._waiting[: self._most - 1]]
        del self._waiting[: self._most - 1]
        return batch

    def _lead(self, batch: list[_Entry[Item, Result]]) -> None:
        try:
            results = self._run([entry.item for entry in batch])
            for entry, result in zip(batch, results, strict=True):
                entry.result = result
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread it belongs to)
            if len(batch) > 1 and not is_disconnect(error):
                for entry in batch:
                    if entry.event is not None:
                        entry.alone = True
                        self._release(entry)
                for entry in batch:
                    if entry.event is None:
                        self._alone(entry)
                        self._release(entry)
                return
            for entry in batch:
                entry.error = error
        for entry in batch:
            self._release(entry)

    def _alone(self, entry: _Entry[Item, Result]) -> None:
        try:
            [entry.result] = self._run([entry.item])
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread it belongs to)
            entry.error = error

    def _release(self, entry: _Entry[Item, Result]) -> None:
        if entry.done is not None:
            self._tell(entry.done, entry.result, entry.error)
        elif entry.event is not None:
            entry.event.set()

    @staticmethod
    def _tell(done: Done[Result], result: Result | None, error: BaseException | None) -> None:
        try:
            done(result, error)
        except BaseException:
            LOG.exception("Unexpected error after a batch")

    def _pass_on(self) -> list[_Entry[Item, Result]] | None:
        """The next batch is led by one of its own threads: this one's task goes on without delay.

        :returns: it, where none of its threads waits for it.
        """
        with self._lock:
            if not self._waiting:
                self._free_leaders += 1
                return None
            entry = next((entry for entry in self._waiting if entry.event is not None), None)
            if entry is None or entry.event is None:
                if threading.current_thread() is not self._helper and self._call_helper():
                    self._free_leaders += 1
                    return None
                return self._take(self._waiting.pop(0))
            self._waiting.remove(entry)
            entry.leads = True
        entry.event.set()
        return None
