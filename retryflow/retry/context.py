"""What a running task can ask and tell: ``TaskContext``."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retryflow.model.task_state import UPDATE_TASK


@dataclass(frozen=True, slots=True)
class OrderView:
    """A copy of the order as it was when the task was claimed; changing it changes nothing.

    :param state: what the plugin kept between its calls (``order_plugin_metadata``).
    """

    id: str
    project_id: str | None
    type: str
    meta: Mapping[str, Any]
    plugin_name: str | None = None
    state: Mapping[str, str] = field(default_factory=dict)


class TaskContext:
    """Given to each run of a task.

    :param step: how many outcomes of this order have been committed; unchanged by retry, crash and hand-back.
    :param checkpoint: writes plugin state in the middle of the work; see :meth:`checkpoint`.
    """

    def __init__(
        self,
        *,
        task_id: str,
        order_id: str,
        task: str,
        step: int = 0,
        retry_count: int = 0,
        poll_count: int = 0,
        crash_count: int = 0,
        request_id: str | None = None,
        checkpoint: Callable[[Mapping[str, str]], None] | None = None,
    ) -> None:
        self.task_id = task_id
        self.order_id = order_id
        self.task = task
        self.step = step
        self.retry_count = retry_count
        self.poll_count = poll_count
        self.crash_count = crash_count
        self.request_id = request_id
        self._checkpoint = checkpoint
        self._condition = threading.Condition()
        self._stopping = False
        self._lease_lost = False

    @property
    def idempotency_key(self) -> str:
        """Give it to the backend with each request: the same key means the same piece of work (order id and step).

        To tell of an update is a piece of work beside the others, whatever step it meets.
        """
        return f"{self.order_id}:{self.step}" + (f":{UPDATE_TASK}" if self.task == UPDATE_TASK else "")

    @property
    def stopping(self) -> bool:
        """Whether the process is draining: a long task may hand over early by returning ``Poll`` or ``Retry``."""
        return self._stopping

    @property
    def lease_lost(self) -> bool:
        """Whether the task now belongs to somebody else: whatever this run returns will be dropped."""
        return self._lease_lost

    def tell_stopping(self) -> None:
        """Called by the worker when its drain begins."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def tell_lease_lost(self) -> None:
        """Called by the worker when a renewal or the run limit proves that the lease is gone."""
        with self._condition:
            self._lease_lost = True
            self._condition.notify_all()

    def wait(self, seconds: float) -> bool:
        """Sleep in a way that a stop interrupts; use it in place of ``time.sleep``.

        :returns: ``True`` as soon as the process is stopping or the lease is lost, else ``False`` after ``seconds``.
        """
        with self._condition:
            return self._condition.wait_for(lambda: self._stopping or self._lease_lost, seconds)

    def checkpoint(self, state: Mapping[str, str]) -> None:
        """Keep plugin state now, so that a crash from here on finds it (a CA is not asked twice for one certificate).

        :param state: text values by key, added to what is kept already.
        :raises retryflow.errors.LeaseLost: the lease is gone; stop working.
        """
        if self._checkpoint is not None:
            self._checkpoint(state)
