"""Async tasks: work given to an executor, in progress until its future is done."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from retryflow.tracking.tracker import TaskTracker


class Executor(Protocol):
    """What is needed of an executor; those of ``concurrent.futures`` and ``futurist`` have it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Schedule ``fn`` and return its future."""
        ...


def submit_tracked(
    executor: Executor,
    tracker: TaskTracker,
    function: Callable[..., Any],
    /,
    *args: Any,
    task_name: str | None = None,
    request_id: str | None = None,
    entity_id: str | None = None,
    **kwargs: Any,
) -> Future[Any]:
    """Submit ``function`` and record it as an async task until its future is done, cancelled included.

    An RPC method that hands its work to an executor returns long before the work ends; this is what a stop waits for
    (task tracking specification, async tasks).

    :param task_name: for the log; ``None`` takes the function's name.
    :param request_id: of the request that caused it.
    :param entity_id: what it works on.
    :returns: the future.
    :raises Exception: whatever ``executor.submit`` raises; nothing stays recorded then.
    """
    name = task_name or getattr(function, "__name__", None) or repr(function)
    key = tracker.record_start(name, request_id=request_id, entity_id=entity_id, kind="async")
    try:
        future: Future[Any] = executor.submit(function, *args, **kwargs)
    except BaseException:
        tracker.record_end(key, failed=True)
        raise
    future.add_done_callback(partial(tracker.record_end, key))
    return future
