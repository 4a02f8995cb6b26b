"""Claim: a worker takes the lease that a ticket names. Only a committed claim counts."""

from __future__ import annotations

import enum

import sqlalchemy as sa

from retryflow import faults
from retryflow.model import leases, retry_rows
from retryflow.model.leases import Claimable
from retryflow.model.orders import PENDING
from retryflow.model.transaction import transact


class NotClaimed(enum.Enum):
    """Why a ticket is to be dropped, or looked at once more."""

    GONE = "its lease is over"
    HELD = "another worker holds it"
    ORDER_ENDED = "its order has ended"
    CRASHED_BEFORE = "its worker died while running it"


def claim(
    engine: sa.Engine, task_id: str, *, holder: str, lease_seconds: float, also_crashed: bool
) -> Claimable | NotClaimed:
    """Take the lease, if it is free.

    Safe to run again after an unclear commit: a lease that this process holds already counts as claimed.

    :param also_crashed: whether a task with crashes may be taken (one at a time in a worker: such a task may kill it).
    :returns: what to run, or the reason why not.
    """

    def work(connection: sa.Connection) -> Claimable | NotClaimed:
        taken = leases.claim(connection, task_id, holder=holder, lease_seconds=lease_seconds, also_crashed=also_crashed)
        found = leases.read_with_order(connection, task_id)
        if found is None:
            return NotClaimed.GONE
        if not taken and found.holder is None:
            return NotClaimed.CRASHED_BEFORE
        if found.holder != holder:
            return NotClaimed.HELD
        if found.order_status != PENDING:
            # A row that slipped through while the order ended: garbage, gone when somebody meets it.
            leases.delete_held(connection, task_id, holder=holder)
            return NotClaimed.ORDER_ENDED
        faults.point("claim.before_commit")
        return found

    result = transact(engine, work)
    faults.point("claim.after_commit")
    return result


def defer(engine: sa.Engine, task_id: str, *, after_seconds: float) -> bool:
    """Put a task that nobody runs back on the retry list, unchanged: it cannot be taken here for now.

    :param after_seconds: when another ticket of it is sent.
    :returns: ``False`` when it has been claimed meanwhile, or is over.
    """

    def work(connection: sa.Connection) -> bool:
        found = leases.read_with_order(connection, task_id)
        if found is None or not leases.delete_waiting(connection, task_id):
            return False
        if found.order_status == PENDING:
            retry_rows.put(connection, found.state, after_seconds=after_seconds)
        return True

    return transact(engine, work)
