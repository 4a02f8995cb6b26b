"""Sections of a Guru Meditation report: leases held, and the lock on the retry list."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from retryflow.model import locks
from retryflow.model.transaction import read
from retryflow.retry.running import Running
from retryflow.service.bounded import BoundedCall

_DATABASE_SECONDS = 2.0


def held(running: Iterable[Running], *, holder: str, renewed_seconds_ago: float, suspects: bool) -> dict[str, Any]:
    """:param renewed_seconds_ago: since the last renewal.
    :param suspects: whether the process takes nothing in, since it may have lost its leases.
    :returns: the leases of this process.
    """
    now = time.monotonic()
    return {
        "holder": holder,
        "last renewal, seconds ago": round(renewed_seconds_ago, 1),
        "may be fenced": suspects,
        "leases": {
            one.claimed.task_id: {
                "order": one.claimed.state.order_id,
                "task": one.claimed.state.task,
                "request_id": one.claimed.state.request_id,
                "seconds": round(now - one.started, 1),
                "step, retries, polls, crashes": ", ".join(
                    str(count)
                    for count in (
                        one.claimed.state.step,
                        one.claimed.state.retry_count,
                        one.claimed.state.poll_count,
                        one.claimed.state.crash_count,
                    )
                ),
                "overdue": one.overdue,
                "given up": one.given_up.is_set(),
            }
            for one in running
        }
        or "none",
    }


def lock(engine: sa.Engine) -> dict[str, Any]:
    """:returns: who has the lock on the retry list, as the database says."""
    call = BoundedCall("look at the lock on the retry list", lambda: read(engine, locks.look, attempts=1))
    if not call.wait(_DATABASE_SECONDS) or call.failed:
        return {"holder": "unknown: the database does not answer"}
    seen = call.result
    if seen is None:
        return {"holder": "nobody"}
    return {
        "holder": seen.worker_host_name,
        "touched, seconds ago": round(float(seen.age_seconds), 1),
        "batches": seen.batches,
    }
