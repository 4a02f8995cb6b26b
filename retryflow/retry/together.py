"""Claims and finishes of several tasks in one transaction: the quick way for what ends without any complication.

Whatever is not plain (a fence that fails, an order that has ended, a ``Continue``) rolls the batch back, and each task
goes its own way through ``claim`` and ``finish``, which decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from oslo_log import log as logging

from retryflow import faults
from retryflow.errors import RetryflowError
from retryflow.model import batches, events, leases
from retryflow.model.leases import Claimable
from retryflow.model.orders import PENDING
from retryflow.model.several import Several
from retryflow.model.transaction import ATTEMPTS, is_lock_timeout, transact
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.finish import Finished, Kept, commit_plan
from retryflow.retry.group import Group
from retryflow.retry.log_context import about
from retryflow.retry.outcome import Outcome
from retryflow.retry.plan import End, FollowOn, Plan, plan_outcome
from retryflow.retry.policy import RandomSource
from retryflow.retry.settings import Settings

LOG = logging.getLogger(__name__)
_LOCKED_SECONDS = 60.0


class NotTogether(RetryflowError):
    """Something in the batch is not plain; nothing was written."""


@dataclass(frozen=True, slots=True)
class Ending:
    """One task's end, ready to be written."""

    claimed: Claimable
    plan: Plan
    plugin_state: Mapping[str, str]
    run_seconds: float

    @property
    def is_plain(self) -> bool:
        """Whether it can be written without looking at anything first."""
        if isinstance(self.plan, End):
            return True
        # A further poll may only be counted in the line of the one before.
        return isinstance(self.plan, FollowOn) and (
            self.plan.event != events.POLLING or self.plan.state.poll_count == 1
        )


class TaskGroups:
    """A worker's way into ``claim`` and ``finish``: alone when alone, together when several threads come at once.

    :param holder: the identity of this process.
    :param threads: how many tasks it runs at once; as many outcomes may wait to be committed with others.
    """

    def __init__(
        self, engine: sa.Engine, *, holder: str, settings: Settings, random: RandomSource, threads: int = 8
    ) -> None:
        self._engine = engine
        self._holder = holder
        self._settings = settings
        self._random = random
        self._locked: dict[str, float] = {}
        self._claims: Group[str, Claimable | NotClaimed] = Group(self._claim)
        self._endings: Group[Ending, Finished] = Group(self._finish, backlog=threads)

    def claim(self, task_id: str) -> Claimable | NotClaimed:
        """Take a lease whose task has not crashed before."""
        if self.is_locked(task_id):
            return self._claim([task_id])[0]
        try:
            return self._claims.do(task_id)
        except Exception as error:
            if is_lock_timeout(error):
                self._locked[task_id] = time.monotonic() + _LOCKED_SECONDS
            raise

    def is_locked(self, task_id: str) -> bool:
        """Whether somebody had this lease locked when it was last to be claimed: the claims of others must not wait for
        that again and again.
        """
        if self._locked:
            now = time.monotonic()
            for other in [other for other, until in list(self._locked.items()) if until < now]:
                self._locked.pop(other, None)
        return task_id in self._locked

    def claim_crashed(self, task_id: str) -> Claimable | NotClaimed:
        """Take a lease whose task has crashed before; the caller sees to it that it runs only one such task."""
        lease_seconds = self._settings.lease_seconds
        return claim(self._engine, task_id, holder=self._holder, lease_seconds=lease_seconds, also_crashed=True)

    def claim_ahead(self, task_ids: Sequence[str]) -> Sequence[Claimable | NotClaimed]:
        """Take several leases at once; like :meth:`claim` for each, but without trying again."""
        lease_seconds = self._settings.lease_seconds
        return claim_together(self._engine, task_ids, holder=self._holder, lease_seconds=lease_seconds, attempts=1)

    def finish(self, claimed: Claimable, outcome: Outcome, *, run_seconds: float, alone: bool = False) -> Finished:
        """Commit a task's outcome.

        :param alone: in a transaction of its own, so that whatever fails is its own fault.
        :raises LeaseLost: the lease is not ours any more; nothing was written.
        """
        ending = self._ending(claimed, outcome, run_seconds)
        return self._finish_alone(ending) if alone or not ending.is_plain else self._endings.do(ending)

    def finish_later(
        self,
        claimed: Claimable,
        outcome: Outcome,
        *,
        run_seconds: float,
        done: Callable[[Finished | None, BaseException | None], None],
    ) -> None:
        """Commit a task's outcome together with others, without waiting for it.

        :param done: called with the result, or with what :meth:`finish` would have raised.
        """
        finished = None
        try:
            ending = self._ending(claimed, outcome, run_seconds)
            if ending.is_plain:
                self._endings.later(ending, done)
                return
            # One that is not would send a whole batch the long way, one commit after the other.
            finished = self._finish_alone(ending)
        except Exception as error:  # noqa: BLE001 (it is told)
            done(None, error)
        else:
            done(finished, None)

    def _ending(self, claimed: Claimable, outcome: Outcome, run_seconds: float) -> Ending:
        plan = plan_outcome(
            outcome,
            claimed.state,
            limits=self._settings.limits,
            random=self._random,
            retrying_seconds=claimed.retrying_seconds + run_seconds,
            polling_seconds=claimed.polling_seconds + run_seconds,
        )
        return Ending(claimed, plan, outcome.state, run_seconds)

    def _claim(self, task_ids: Sequence[str]) -> Sequence[Claimable | NotClaimed]:
        return claim_together(
            self._engine, task_ids, holder=self._holder, lease_seconds=self._settings.lease_seconds, patient=False
        )

    def _finish(self, endings: Sequence[Ending]) -> Sequence[Finished]:
        try:
            return finish_together(self._engine, endings, holder=self._holder)
        except Exception as error:
            # Others wait: one that is locked is for whoever has time for it.
            if len(endings) > 1 or is_lock_timeout(error):
                raise
            state = endings[0].claimed.state
            extra = about(state.order_id, state.request_id)
            LOG.debug("order %s is finished by itself: %s", state.order_id, error, extra=extra)
        return [self._finish_alone(endings[0])]

    def _finish_alone(self, ending: Ending) -> Finished:
        return commit_plan(
            self._engine,
            ending.claimed,
            ending.plan,
            plugin_state=ending.plugin_state,
            holder=self._holder,
            run_seconds=ending.run_seconds,
        )


def claim_together(
    engine: sa.Engine,
    task_ids: Sequence[str],
    *,
    holder: str,
    lease_seconds: float,
    attempts: int = ATTEMPTS,
    patient: bool = True,
) -> list[Claimable | NotClaimed]:
    """Take leases that have not crashed before; see :func:`retryflow.retry.claim.claim`.

    :returns: for each id, in their order, what to run or the reason why not.
    """

    def work(connection: sa.Connection) -> list[Claimable | NotClaimed]:
        several = Several(connection)
        batches.claim(several, task_ids, holder=holder, lease_seconds=lease_seconds)
        read = leases.read_many_with_order(several, task_ids)
        found = read(several.run())
        results = [_judge(found.get(task_id), holder) for task_id in task_ids]
        for task_id, result in zip(task_ids, results, strict=True):
            if result is NotClaimed.ORDER_ENDED:
                leases.delete_held(connection, task_id, holder=holder)
        faults.point("claim.before_commit")
        return results

    # Where others wait for it, a lease that somebody has locked is not waited for twice.
    results = transact(engine, work, attempts=attempts, patient=patient)
    faults.point("claim.after_commit")
    return results


def _judge(found: Claimable | None, holder: str) -> Claimable | NotClaimed:
    if found is None:
        return NotClaimed.GONE
    if found.holder is None:
        return NotClaimed.CRASHED_BEFORE
    if found.holder != holder:
        return NotClaimed.HELD
    return found if found.order_status == PENDING else NotClaimed.ORDER_ENDED


def finish_together(engine: sa.Engine, endings: Sequence[Ending], *, holder: str) -> list[Finished]:
    """Write plain endings in one transaction, each fenced by its own lease.

    :returns: what became of each, in their order.
    :raises NotTogether: not all of them are plain, or ours; nothing was written.
    """
    if not all(ending.is_plain for ending in endings):
        raise NotTogether("an ending needs a look first")
    due_in = transact(engine, lambda connection: _write(connection, endings, holder), attempts=1)
    faults.point("finish.after_commit")
    return [Finished(Kept.COMMITTED, due_in.get(ending.claimed.state.order_id)) for ending in endings]


def _write(connection: sa.Connection, endings: Sequence[Ending], holder: str) -> dict[str, float]:
    """:returns: by order id, in how many seconds its next task is due."""
    several = Several(connection)
    ended = [ending.claimed.state.order_id for ending in endings if isinstance(ending.plan, End)]
    batches.delete_retry_rows(several, ended)
    ours = batches.delete_held(several, [ending.claimed.task_id for ending in endings], holder=holder)
    values = {ending.claimed.state.order_id: ending.plan.order_values for ending in endings}
    changed = batches.update_pending(several, values)
    waiting = batches.waiting_rows(several, list(values))
    batches.save_states(several, {ending.claimed.state.order_id: ending.plugin_state for ending in endings})
    follow_ons = [ending.plan for ending in endings if isinstance(ending.plan, FollowOn)]
    batches.put_retry_rows(
        several,
        [(plan.state, plan.after_seconds, plan.starts_retry_clock, plan.starts_poll_clock) for plan in follow_ons],
    )
    batches.add_events(several, [_line(ending, holder) for ending in endings])
    answers = several.run()
    faults.point("finish.after_fence")
    if answers[ours].rowcount != len(endings):
        raise NotTogether("a lease is not ours any more")
    if sum(answers[place].rowcount for place in changed) != len(endings):
        raise NotTogether("an order has ended")
    due_in = {plan.state.order_id: plan.after_seconds for plan in follow_ons}
    for order_id, seconds in answers[waiting].rows:
        if order_id not in due_in:
            raise NotTogether("an update waits to be looked at")
        due_in[order_id] = min(due_in[order_id], float(seconds))
    faults.point("finish.before_commit")
    return due_in


def _line(ending: Ending, holder: str) -> dict[str, object]:
    plan = ending.plan
    assert isinstance(plan, End | FollowOn)
    return {
        "order_id": ending.claimed.state.order_id,
        "event": plan.event,
        "task": ending.claimed.state.task,
        "task_id": ending.claimed.task_id,
        "holder": holder,
        "seconds": ending.run_seconds,
        "detail": events.cut(plan.detail),
    }
