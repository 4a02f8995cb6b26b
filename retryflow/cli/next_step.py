"""What happens next with an order, and when: the answer to "why is it still PENDING?"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retryflow.cli import words
from retryflow.cli.columns import Told, iso
from retryflow.cli.legible import legible

if TYPE_CHECKING:
    import sqlalchemy as sa

    from retryflow.model.types import AnyRow

WAITS, RUNS, LOST, RETRY, NONE = "waits for a worker", "runs", "lost with its worker", "retry", "none"


class Liveness:
    """Tells which processes live, as far as can be told from here.

    :param lease_seconds: one that was not seen for so long counts as gone.
    """

    ALIVE, GONE = "alive", "gone"

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds

    @cached_property
    def _observer(self) -> Any:
        from retryflow.model.identity import own_identity

        return own_identity()

    def of(self, row: AnyRow) -> str:
        """:param row: with the columns that ``retryflow.model.listing.process_columns`` names."""
        from retryflow.model.identity import ProcessIdentity, provably_dead

        if row.unseen_seconds is None or row.unseen_seconds > self._lease_seconds:
            return self.GONE
        identity = ProcessIdentity(row.holder, row.host, row.pid, row.boot_id, row.pid_namespace, row.start_ticks)
        return self.GONE if provably_dead(identity, observer=self._observer) else self.ALIVE


def host_of(holder: str | None) -> str | None:
    """:returns: host and pid out of ``host:pid:token``."""
    return None if holder is None else holder.rpartition(":")[0]


def of_orders(
    connection: sa.Connection, order_ids: Sequence[str], *, liveness: Liveness
) -> dict[str, list[dict[str, Any]]]:
    """:returns: the next steps of each order, the first one first; those of ended orders are leftovers."""
    from retryflow.model import listing

    steps: dict[str, list[dict[str, Any]]] = {order_id: [] for order_id in order_ids}
    if not order_ids:
        return steps
    for lease in listing.lease_page(connection, order_ids=order_ids):
        steps[lease.order_id].append(of_lease(lease, liveness))
    for row in listing.retry_page(connection, order_ids=order_ids):
        steps[row.order_id].append(of_retry_row(row))
    return steps


def of_lease(lease: AnyRow, liveness: Liveness) -> dict[str, Any]:
    """:returns: what a lease says about its order's next step."""
    step: dict[str, Any] = {"step": WAITS, "task": lease.task, "task_id": lease.id, **_kept(lease)}
    if lease.holder is None:
        return step | {"since": iso(lease.created_at), "seconds": _rounded(lease.waiting_seconds), **_sent(lease)}
    alive = liveness.of(lease)
    is_lost = alive == Liveness.GONE or lease.expires_in_seconds < 0
    return step | {
        "step": LOST if is_lost else RUNS,
        "since": iso(lease.started_at),
        "seconds": _rounded(lease.running_seconds),
        "expires_in_seconds": _rounded(lease.expires_in_seconds),
        "worker": host_of(lease.holder),
        "worker_is": alive,
    }


def of_retry_row(row: AnyRow) -> dict[str, Any]:
    """:returns: what a retry row says about its order's next step."""
    return {
        "step": RETRY,
        "task": row.retry_task,
        "at": iso(row.retry_at),
        "due_in_seconds": _rounded(row.due_in_seconds),
        "stands_behind": row.lease_id,
        **_kept(row),
    }


def column(status: str, steps: list[dict[str, Any]]) -> Told:
    """:returns: the steps as one column; a PENDING order without any is told as what it is, stuck."""
    if not steps and status == "PENDING":
        return Told([], lambda _: "none: it is stuck (see retryflow doctor)")
    return Told(steps, lambda several: "\n".join(legible(sentence(step)) for step in several))


def sentence(step: dict[str, Any]) -> str:
    """:returns: one step in words."""
    task = step["task"]
    match step["step"]:
        case "waits for a worker":
            sent = words.count(step["sent_count"], "time") if step["sent_count"] else "not yet"
            return f"{task} waits for a worker since {words.length(step['seconds'])} (ticket sent: {sent})"
        case "runs":
            return f"{task} runs on {step['worker']} since {words.length(step['seconds'])}"
        case "lost with its worker":
            when = step["expires_in_seconds"]
            ends = "now" if when < 0 else f"in {words.length(when)} at the latest"
            return f"{task} was lost with {step['worker']} ({step['worker_is']}); a scheduler takes it up {ends}"
    if step["stands_behind"]:
        return f"{task} as soon as the task before it has ended"
    when = step["due_in_seconds"]
    return f"{task} is due" + (f" in {words.length(when)}" if when > 0 else f" since {words.length(-when)}")


def _rounded(seconds: float | None) -> float:
    return round(float(seconds or 0.0), 3)


def _kept(row: AnyRow) -> dict[str, Any]:
    from retryflow.retry.log_context import request_of

    counts = {name: row._mapping[name] for name in ("retry_count", "poll_count", "crash_count", "last_error")}
    return counts | {"request_id": request_of(row.order_id, row.request_id)}


def _sent(lease: AnyRow) -> dict[str, Any]:
    return {"sent_count": lease.sent_count, "sent_again_in_seconds": _rounded(lease.expires_in_seconds)}
