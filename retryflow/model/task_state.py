"""What a task carries from lease to retry row and back."""

import datetime
import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from retryflow.model.tables import order_retry_tasks, order_task_leases
from retryflow.model.types import AnyRow

UPDATE_TASK = "update_order"
#: Columns that both tables call the same.
SHARED = (
    "retry_count",
    "poll_count",
    "crash_count",
    "retry_since",
    "poll_since",
    "step",
    "last_error",
    "request_id",
)
#: Column of the lease -> column of the retry row (which keeps the specification's names).
RENAMED = {"task": "retry_task", "args": "retry_args", "kwargs": "retry_kwargs"}
#: The fields of a task, in the order of :class:`TaskState`.
_OF_LEASE = ("order_id", *RENAMED, *SHARED)


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task with its arguments (JSON texts, passed on unread) and its counters.

    :param retry_since: when the present run of failures began; one of the two give-up clocks.
    :param poll_since: when the waiting began; the other one.
    :param step: how many outcomes of the order were committed as polls or changes of task.
    """

    order_id: str
    task: str
    args: str = "[]"
    kwargs: str = "{}"
    retry_count: int = 0
    poll_count: int = 0
    crash_count: int = 0
    retry_since: datetime.datetime | None = None
    poll_since: datetime.datetime | None = None
    step: int = 0
    last_error: str | None = None
    request_id: str | None = None

    @classmethod
    def first(
        cls, order_id: str, task: str, *, project_id: str | None, request_id: str | None, step: int = 0
    ) -> "TaskState":
        """:returns: the state of a task that was never run."""
        kwargs: dict[str, Any] = {"order_id": order_id, "project_id": project_id}
        return cls(order_id=order_id, task=task, kwargs=json.dumps(kwargs), request_id=request_id, step=step)

    @classmethod
    def of_lease(cls, row: AnyRow) -> "TaskState":
        """:param row: a row with the columns of :func:`lease_columns`."""
        return cls(*[getattr(row, name) for name in _OF_LEASE])

    def lease_values(self) -> dict[str, Any]:
        """:returns: column values for ``order_task_leases``."""
        return {name: getattr(self, name) for name in _OF_LEASE}

    def retry_values(self) -> dict[str, Any]:
        """:returns: column values for ``order_retry_tasks``."""
        values = {name: getattr(self, name) for name in ("order_id", *SHARED)}
        return values | {column: getattr(self, name) for name, column in RENAMED.items()}


def lease_columns() -> list["sa.Column[Any]"]:
    """:returns: the columns that :meth:`TaskState.of_lease` reads."""
    return [order_task_leases.c[name] for name in _OF_LEASE]


def copied_to_lease() -> tuple[list[str], list["sa.Column[Any]"]]:
    """:returns: names of lease columns, and the retry row's columns that fill them (for INSERT from SELECT)."""
    pairs = [(name, order_retry_tasks.c[RENAMED.get(name, name)]) for name in _OF_LEASE]
    return [name for name, _ in pairs], [column for _, column in pairs]
