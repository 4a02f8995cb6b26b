"""Storing the outcomes of tasks, however long the database is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

from retryflow.errors import LeaseLost
from retryflow.model.transaction import failed_statement, is_trouble
from retryflow.retry.finish import Finished
from retryflow.retry.keeper import LeaseKeeper
from retryflow.retry.log_context import about
from retryflow.retry.outcome import Fail, Outcome
from retryflow.retry.running import Running, RunningTasks
from retryflow.retry.together import TaskGroups
from retryflow.service.words import short

LOG = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.5
_QUIET_SECONDS = 10.0
# So often the database may refuse an outcome while it serves the lease keeper; each time is five attempts.
_REFUSALS = 4
_UNUSABLE_ANSWER = "The answer of the task could not be stored. The details are in the worker's log."


class Outcomes:
    """Commits what tasks have come to.

    :param groups: in which the commits of several tasks meet.
    :param tasks: that run here.
    :param keeper: renews the lease while its outcome waits for the database.
    """

    def __init__(self, groups: TaskGroups, tasks: RunningTasks, keeper: LeaseKeeper) -> None:
        self._groups = groups
        self._tasks = tasks
        self._keeper = keeper

    def commit(self, running: Running, outcome: Outcome) -> Finished | None:
        """Commit an outcome.

        :returns: ``None`` when nobody wants it any more.
        """
        return self._insist(running, outcome, None)

    def commit_later(self, running: Running, outcome: Outcome, done: Callable[[Finished | None], None]) -> None:
        """Commit an outcome together with others, and do not wait for it.

        :param done: called, on whatever thread, with what :meth:`commit` would have returned.
        """

        def told(finished: Finished | None, error: BaseException | None) -> None:
            if error is None:
                done(finished)
            else:
                # Perhaps the database is away; the others are not to wait for this one.
                try:
                    threading.Thread(target=insist, args=(error,), name="outcome", daemon=True).start()
                except RuntimeError:
                    insist(error)

        def insist(error: BaseException) -> None:
            finished = None
            try:
                finished = self._insist(running, outcome, error)
            finally:
                done(finished)

        self._groups.finish_later(running.claimed, outcome, run_seconds=self._tasks.seconds(running), done=told)

    def _insist(self, running: Running, outcome: Outcome, first: BaseException | None) -> Finished | None:
        """:param first: error of an attempt that was made already."""
        claimed = running.claimed
        prefix = f"order {claimed.state.order_id}: task {claimed.task_id} ({claimed.state.task})"
        # This may be the thread of another task.
        extra = about(claimed.state.order_id, claimed.state.request_id)
        said = float("-inf")
        refused = 0
        alone = False
        while True:
            began = time.monotonic()
            try:
                if (error := first) is not None:
                    first = None
                    raise error
                seconds = self._tasks.seconds(running)
                return self._groups.finish(claimed, outcome, run_seconds=seconds, alone=alone)
            except LeaseLost as lost:
                LOG.warning("%s", lost, extra=extra)
                running.lose()
                return None
            except Exception as trouble:
                if is_trouble(trouble) and refused < _REFUSALS:
                    if began - said >= _QUIET_SECONDS:
                        said = began
                        LOG.warning(
                            "%s has ended; its outcome waits for the database: %s", prefix, short(trouble), extra=extra
                        )
                    self._keeper.report_trouble()
                    if running.given_up.wait(_PAUSE_SECONDS):
                        return None
                    # Where the keeper is served and this outcome is refused by itself, the reason must be in it.
                    refused += alone and failed_statement(trouble) and self._keeper.last_renewal > began
                    alone = True
                elif isinstance(outcome, Fail) and outcome.reason == _UNUSABLE_ANSWER:
                    LOG.exception("%s cannot be finished; its lease is left to end", prefix, extra=extra)
                    return None
                else:
                    LOG.exception("%s: its outcome cannot be stored; the order goes to ERROR", prefix, extra=extra)
                    outcome, refused = Fail(code="500", reason=_UNUSABLE_ANSWER), 0
