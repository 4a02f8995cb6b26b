"""The section of a Guru Meditation report that every service has: its tasks in progress."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from retryflow.tracking import TaskRecord


def tasks(records: Iterable[TaskRecord]) -> dict[str, Any]:
    """:returns: the tasks in progress by a number; not their arguments, which may be secret."""
    now = time.monotonic()
    return {
        f"task {record.key}": {
            "name": record.name,
            "kind": record.kind,
            "entity": record.entity_id,
            "request_id": record.request_id,
            "seconds": round(now - record.started, 1),
        }
        for record in records
    } or {"tasks in progress": "none"}
