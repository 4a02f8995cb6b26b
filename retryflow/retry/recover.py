"""Recover: a task whose worker died goes back to the retry list, or, at the cap, its order goes to ERROR."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from oslo_log import log as logging

from retryflow import faults
from retryflow.errors import RetryflowError
from retryflow.model import events, leases, orders, retry_rows
from retryflow.model.task_state import TaskState
from retryflow.model.transaction import is_lost_race, is_trouble, transact
from retryflow.model.types import AnyRow
from retryflow.retry.finish import write_follow_on
from retryflow.retry.log_context import about
from retryflow.retry.plan import End, plan_crash
from retryflow.retry.policy import Limits, RandomSource

LOG = logging.getLogger(__name__)
# Others wait meanwhile: what loses a race twice is looked at again in the next round.
_ATTEMPTS = 2


class RowLocked(RetryflowError):
    """Somebody else has locked the lease or its order: it is for later, and nothing was written."""


def recover_expired(connection: sa.Connection, row: AnyRow, *, limits: Limits, random: RandomSource) -> bool:
    """Recover a held lease that has run out, in the scheduler's transaction.

    :param row: of :func:`retryflow.model.leases.expired`, held by somebody.
    :returns: ``False`` when it was renewed, finished or recovered meanwhile.
    :raises RowLocked: it has to be tried again later.
    """
    whole = leases.with_task(connection, row.id)
    return whole is not None and _recover(
        connection,
        whole,
        lambda: leases.delete_expired(connection, row.id, holder=row.holder),
        limits=limits,
        random=random,
    )


def recover_dead(engine: sa.Engine, holder: str, *, limits: Limits, random: RandomSource) -> tuple[int, int]:
    """Recover all leases of a process that is provably dead; one transaction each.

    :returns: how many were recovered, and how many cannot be, now or at all (their leases end by themselves).
    :raises oslo_db.exception.DBError: the database does not answer.
    """
    rows = transact(engine, lambda connection: leases.of_holder(connection, holder))
    recovered = failed = 0
    for row in rows:

        def work(connection: sa.Connection, row: AnyRow = row) -> bool:
            # Nobody renews for the dead, so the holder alone is the guard; a second observer's delete finds no row.
            return _recover(
                connection,
                row,
                lambda: leases.delete_held(connection, row.id, holder=holder),
                limits=limits,
                random=random,
            )

        try:
            recovered += transact(engine, work, attempts=_ATTEMPTS)
        except Exception as error:
            if isinstance(error, RowLocked) or is_lost_race(error):
                failed += 1
                LOG.debug("order %s: task %s is recovered later: %s", row.order_id, row.id, error)
                continue
            if is_trouble(error):
                raise
            failed += 1
            LOG.exception(
                "order %s: task %s cannot be recovered",
                row.order_id,
                row.id,
                extra=about(row.order_id, row.request_id),
            )
    return recovered, failed


def _recover(
    connection: sa.Connection, row: AnyRow, fence: Callable[[], bool], *, limits: Limits, random: RandomSource
) -> bool:
    state = TaskState.of_lease(row)
    plan = plan_crash(state, limits=limits, random=random)
    # Not one of these is waited for: behind a single order that some session has locked stand all the others.
    if not leases.lock(connection, row.id):
        if leases.with_task(connection, row.id) is None:
            return False
        raise RowLocked(f"the lease {row.id} is locked by another session")
    if not orders.lock(connection, state.order_id):
        raise RowLocked(f"the order {state.order_id} is locked by another session")
    if not fence():
        return False
    faults.point("recover.after_fence")
    if not orders.update_pending(connection, state.order_id, **plan.order_values):
        retry_rows.delete_of_order(connection, state.order_id)
        return True
    if isinstance(plan, End):
        retry_rows.delete_of_order(connection, state.order_id)
    else:
        write_follow_on(connection, plan)
    events.add(
        connection, state.order_id, plan.event, task=state.task, task_id=row.id, holder=row.holder, detail=plan.detail
    )
    faults.point("recover.before_commit")
    return True
