"""Claims that may have been made, and that nobody uses: the database's answer was lost, or came too late.

Such a lease is ours, and nobody runs its task or renews it. Left alone it would end as the crash of a worker that
lives.
"""

from __future__ import annotations

import sqlalchemy as sa
from oslo_log import log as logging

from retryflow.errors import LeaseLost
from retryflow.model import events, leases
from retryflow.model.leases import Claimable
from retryflow.model.transaction import read
from retryflow.retry.claim import NotClaimed
from retryflow.retry.finish import commit_plan
from retryflow.retry.log_context import about
from retryflow.retry.plan import FollowOn
from retryflow.retry.sending import SchedulerWaker
from retryflow.service.at_hand import AtHand

LOG = logging.getLogger(__name__)


class UnclearClaims:
    """Gives such leases back, once the database answers again.

    :param engine: the lease keeper's, on whose thread that is done.
    :param at_hand: what is worked on here; a ticket that has come back meanwhile is run under the lease that stands.
    """

    def __init__(
        self, engine: sa.Engine, *, holder: str, at_hand: AtHand[Claimable | NotClaimed], waker: SchedulerWaker
    ) -> None:
        self._engine = engine
        self._holder = holder
        self._at_hand = at_hand
        self._waker = waker
        self._task_ids: dict[str, None] = {}

    def remember(self, task_id: str) -> None:
        """Its claim has failed in a way that leaves open whether it was made."""
        self._task_ids[task_id] = None

    def settle(self) -> None:
        """Put the tasks whose claims were made back on the retry list, due now and with no crash counted.

        :raises oslo_db.exception.DBError: the database failed; what is left is for the next time.
        """
        for task_id in list(self._task_ids):
            # Forgotten first: a claim that fails meanwhile remembers it anew.
            self._task_ids.pop(task_id, None)
            try:
                settled = self._settle(task_id)
            except Exception:
                self.remember(task_id)
                raise
            if not settled:
                self.remember(task_id)

    def _settle(self, task_id: str) -> bool:
        """:returns: ``False`` when its ticket is at work here, which may yet end with a claim that nobody uses."""
        found = read(self._engine, lambda connection: leases.read_with_order(connection, task_id))
        if found is None or found.holder != self._holder:
            return True
        # Only now: while it is kept, its ticket is dropped, which is right for a lease that goes, and for no other.
        held = self._at_hand.reserve(task_id)
        if held is None:
            return False
        with held:
            if self._give_back(found):
                self._waker.wake()
        return True

    def _give_back(self, found: Claimable) -> bool:
        state = found.state
        plan = FollowOn(events.INTERRUPTED, state, 0.0, detail="its claim was answered too late; it has not run")
        try:
            # Renewals wait meanwhile, so not for long; it is looked at again after the next one.
            commit_plan(self._engine, found, plan, plugin_state={}, holder=self._holder, run_seconds=0.0, patient=False)
        except LeaseLost:
            return False
        LOG.info(
            "order %s: task %s was claimed without an answer in time; it is back on the retry list",
            state.order_id,
            found.task_id,
            extra=about(state.order_id, state.request_id),
        )
        return True
