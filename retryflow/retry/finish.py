"""Finish: what a task's end writes, in one transaction that is fenced by its lease."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from retryflow import faults
from retryflow.errors import LeaseLost
from retryflow.model import events, leases, orders, retry_rows
from retryflow.model.leases import Claimable
from retryflow.model.orders import ACTIVE
from retryflow.model.task_state import UPDATE_TASK
from retryflow.model.transaction import transact
from retryflow.retry.outcome import Outcome
from retryflow.retry.plan import End, FollowOn, GoOn, Plan, plan_outcome
from retryflow.retry.policy import Limits, RandomSource


class Kept(enum.Enum):
    """What became of an outcome."""

    COMMITTED = "committed"
    DROPPED = "dropped: the order had ended"


@dataclass(frozen=True, slots=True)
class Finished:
    """:param due_in_seconds: when the order's next task is due, also one that had to wait for the end of this one;
    ``None`` without any."""

    kept: Kept
    due_in_seconds: float | None = None


class _DoneBefore(Exception):
    """Rolls back an attempt whose outcome has been committed already."""

    def __init__(self, finished: Finished) -> None:
        self.finished = finished


def finish(
    engine: sa.Engine,
    claimed: Claimable,
    outcome: Outcome,
    *,
    holder: str,
    run_seconds: float,
    limits: Limits,
    random: RandomSource,
) -> Finished:
    """Commit a task's outcome, exactly once.

    :param run_seconds: how long the run took; it also moves the give-up clocks on.
    :returns: what became of it.
    :raises LeaseLost: the lease is not ours any more; nothing was written.
    """
    plan = plan_outcome(
        outcome,
        claimed.state,
        limits=limits,
        random=random,
        retrying_seconds=claimed.retrying_seconds + run_seconds,
        polling_seconds=claimed.polling_seconds + run_seconds,
    )
    return commit_plan(engine, claimed, plan, plugin_state=outcome.state, holder=holder, run_seconds=run_seconds)


def commit_plan(
    engine: sa.Engine,
    claimed: Claimable,
    plan: Plan,
    *,
    plugin_state: Mapping[str, str],
    holder: str,
    run_seconds: float,
    patient: bool = True,
) -> Finished:
    """Write a plan and end the lease.

    :param patient: whether to go on after a wait in vain for a row that somebody has locked.
    :raises LeaseLost: the lease is not ours any more; nothing was written.
    """
    order_id = claimed.state.order_id

    def work(connection: sa.Connection) -> Finished:
        return _write(connection, claimed, plan, plugin_state=plugin_state, holder=holder, run_seconds=run_seconds)

    def read_back(connection: sa.Connection) -> Finished | None:
        if leases.held_by(connection, [claimed.task_id], holder=holder):
            return None
        finished = _done_before(connection, claimed, plan)
        if finished is None:
            raise LeaseLost(
                f"order {order_id}: task {claimed.task_id} is over: the connection was lost at its commit, which has "
                "either been done, or another has taken the task since"
            )
        return finished

    try:
        result = transact(engine, work, read_back=read_back, patient=patient)
    except _DoneBefore as before:
        result = before.finished
    faults.point("finish.after_commit")
    return result


def _done_before(connection: sa.Connection, claimed: Claimable, plan: Plan) -> Finished | None:
    """:returns: what an earlier attempt of this very finish has committed, ``None`` if none has."""
    order_id = claimed.state.order_id
    ends = events.ends_of(connection, order_id, claimed.task_id)
    if events.DROPPED in ends:
        return Finished(Kept.DROPPED)
    possible: list[Plan] = [plan, plan.otherwise, _ended_before(plan)] if isinstance(plan, GoOn) else [plan]
    put_off = isinstance(plan, End) and plan.event == events.DONE and events.CONTINUED in ends
    if put_off or any(kept.event in ends for kept in possible):
        return Finished(Kept.COMMITTED, retry_rows.next_of_order(connection, order_id))
    return None


def _write(
    connection: sa.Connection,
    claimed: Claimable,
    plan: Plan,
    *,
    plugin_state: Mapping[str, str],
    holder: str,
    run_seconds: float,
) -> Finished:
    order_id = claimed.state.order_id
    if isinstance(plan, End):
        # An update is looked at before the order ends well; it may also come while we are here.
        retry_rows.delete_of_order(connection, order_id, but=UPDATE_TASK if plan.event == events.DONE else None)
    if not leases.delete_held(connection, claimed.task_id, holder=holder):
        finished = _done_before(connection, claimed, plan)
        if finished is not None:
            raise _DoneBefore(finished)
        raise LeaseLost(f"order {order_id}: task {claimed.task_id} is held by another or over: outcome dropped")
    faults.point("finish.after_fence")
    detail = None
    if isinstance(plan, GoOn):
        detail = plan.order_values.get("sub_status_message")
        if not retry_rows.count_of_order(connection, order_id):
            plan = _ended_before(plan) if orders.has_result(connection, order_id) else plan.otherwise
    if not isinstance(plan, GoOn):
        detail = plan.detail
    event, kept = plan.event, Kept.COMMITTED
    due_in = None
    if not orders.update_pending(connection, order_id, **plan.order_values):
        retry_rows.delete_of_order(connection, order_id)
        event, detail, kept = events.DROPPED, f"was: {plan.event}", Kept.DROPPED
    else:
        # Whoever updates an order locks it first: from here on no update can come.
        put_off = plan.event == events.DONE and retry_rows.exists_for(connection, order_id, UPDATE_TASK)
        if put_off:
            orders.put_off_end(connection, order_id)
            event, detail = events.CONTINUED, "done, once the update that came meanwhile has been looked at"
        orders.save_state(connection, order_id, plugin_state)
        if isinstance(plan, FollowOn):
            write_follow_on(connection, plan)
        if put_off or not isinstance(plan, End):
            due_in = retry_rows.next_of_order(connection, order_id)
    events.add(
        connection,
        order_id,
        event,
        task=claimed.state.task,
        task_id=claimed.task_id,
        holder=holder,
        seconds=run_seconds,
        detail=detail,
    )
    faults.point("finish.before_commit")
    return Finished(kept, due_in)


def _ended_before(plan: GoOn) -> End:
    """The end of an order whose result was there before its last update was looked at."""
    return End(events.DONE, {**plan.order_values, "status": ACTIVE})


def write_follow_on(connection: sa.Connection, follow_on: FollowOn) -> None:
    """Put the task of a plan on the retry list."""
    retry_rows.put(
        connection,
        follow_on.state,
        after_seconds=follow_on.after_seconds,
        starts_retry_clock=follow_on.starts_retry_clock,
        starts_poll_clock=follow_on.starts_poll_clock,
    )


def hand_back(engine: sa.Engine, claimed: Claimable, *, holder: str, run_seconds: float) -> Finished:
    """Give a running task back to the retry list at the end of a drain: due now, no attempt counted, its zombie fenced.

    :raises LeaseLost: the lease is not ours any more.
    """
    plan = FollowOn(events.INTERRUPTED, claimed.state, 0.0, detail="the worker was stopped before the task ended")
    return commit_plan(engine, claimed, plan, plugin_state={}, holder=holder, run_seconds=run_seconds)


def checkpoint(engine: sa.Engine, claimed: Claimable, state: Mapping[str, str], *, holder: str) -> None:
    """Keep plugin state in the middle of a run.

    :raises LeaseLost: the lease is not ours any more; nothing was written.
    """

    def work(connection: sa.Connection) -> None:
        # Fenced like a finish: a zombie must not overwrite what the task's new holder keeps.
        if not leases.touch(connection, claimed.task_id, holder=holder):
            raise LeaseLost(f"order {claimed.state.order_id}: task {claimed.task_id} is held by another or over")
        orders.save_state(connection, claimed.state.order_id, state)

    transact(engine, work)
