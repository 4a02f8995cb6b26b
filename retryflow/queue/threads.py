"""The threads that run tasks."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class TaskThreads(Generic[T]):
    """A fixed number of threads, named ``task-1`` and so on, and what waits for them.

    They are daemon threads: one that never ends does not keep the process.

    :param count: how many items may run at the same time.
    :param run: called with each item; what it raises is logged and ends nothing.
    :param spare: how many threads more there are for items that have made room, see :meth:`make_room`.
    :param prepare: called with items that could be begun at once, where there are several, before ``run`` is called
        with each of them; what it raises is logged. One call at a time: what comes meanwhile is for the next one.
    """

    def __init__(
        self,
        count: int,
        run: Callable[[T], None],
        *,
        spare: int = 0,
        prepare: Callable[[Sequence[T]], None] | None = None,
    ) -> None:
        self._count = count
        self._spare = spare
        self._run = run
        self._prepare = prepare
        self._preparing = False
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._waiting: deque[T] = deque()
        self._prepared: deque[T] = deque()
        self._running = 0
        self._room = count
        self._busy = 0
        self._own = threading.local()
        self._sleeping = 0
        self._waking = False
        self._stopped = False

    def start(self) -> None:
        for number in range(1, self._count + self._spare + 1):
            threading.Thread(target=self._work, name=f"task-{number}", daemon=True).start()

    def submit(self, item: T) -> None:
        """Let the next free thread run it."""
        with self._arrived:
            self._waiting.append(item)
            self._wake_one()

    def make_room(self) -> None:
        """Called by what runs: its work is done but for a last wait, and the next item may begin beside it."""
        with self._arrived:
            self._leave()
            if self._waiting:
                self._wake_one()

    def take_back(self, count: int | None = None) -> list[T]:
        """Take what no thread has begun, the newest first; each is either returned here or run, never both."""
        with self._idle:
            taken = len(self._waiting) if count is None else min(count, len(self._waiting))
            back = [self._waiting.pop() for _ in range(taken)]
            self._tell_if_idle()
            return back

    def wait(self, deadline: float | None) -> bool:
        """Wait until nothing runs or waits.

        :param deadline: an instant of ``time.monotonic()``; ``None`` waits without limit.
        :returns: ``False`` if the deadline came first.
        """
        with self._idle:
            while self._running or self._waiting:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._idle.wait(left)
            return True

    def stop(self) -> None:
        """End each thread when it is done with what it runs; does not wait."""
        with self._arrived:
            self._stopped = True
            self._arrived.notify_all()

    def _work(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._run(item)
            except BaseException:
                LOG.exception("Unexpected error in a task thread")
            finally:
                with self._idle:
                    self._running -= 1
                    self._busy -= 1
                    self._leave()
                    self._tell_if_idle()

    def _next(self) -> T | None:
        """What this thread is to run; ``None`` when it is to end."""
        bundle: list[T] = []
        with self._arrived:
            while not self._prepared:
                bundle = self._bundle()
                if bundle:
                    break
                if self._stopped and not self._waiting:
                    self._arrived.notify()
                    return None
                self._sleeping += 1
                self._arrived.wait()
                self._sleeping -= 1
                self._waking = False
            else:
                bundle = [self._prepared.popleft()]
            self._own.takes_room = True
            self._busy += 1
            if len(bundle) == 1 and (self._prepared or (self._waiting and self._room)):
                self._wake_one()
        if len(bundle) > 1 and self._prepare is not None:
            self._prepare_bundle(bundle)
        return bundle[0]

    def _wake_one(self) -> None:
        # One at a time, and each wakes the next if there is still something to do: until it has got the interpreter,
        # a thread that comes back may have done it all.
        if self._sleeping and not self._waking:
            self._waking = True
            self._arrived.notify()

    def _bundle(self) -> list[T]:
        """Take what may begin now: all of it where it is to be prepared."""
        if self._preparing:
            return []
        # No more than there are threads for: what is prepared must not wait for those that store outcomes.
        most = 1 if self._prepare is None else self._count + self._spare - self._busy
        count = min(len(self._waiting), self._room, most)
        self._running += count
        self._room -= count
        self._preparing = count > 1
        return [self._waiting.popleft() for _ in range(count)]

    def _prepare_bundle(self, bundle: list[T]) -> None:
        assert self._prepare is not None
        try:
            self._prepare(bundle)
        except BaseException:
            LOG.exception("Messages could not be prepared; each is served by itself")
        finally:
            with self._arrived:
                self._preparing = False
                self._prepared.extend(bundle[1:])
                self._wake_one()

    def _leave(self) -> None:
        if getattr(self._own, "takes_room", False):
            self._own.takes_room = False
            self._room += 1

    def _tell_if_idle(self) -> None:
        if not self._running and not self._waiting:
            self._idle.notify_all()
