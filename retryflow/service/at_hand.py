"""The tickets that this worker has at hand, each only once, and the claims of several of them in one transaction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from oslo_log import log as logging

from retryflow.tracking import TaskTracker

LOG = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Entered(Generic[Result]):
    """The right to work on a ticket.

    :param held: to be closed when the work is over; takes along what else is to be done then.
    :param claimed: what its claim has answered, if it was claimed ahead.
    """

    held: contextlib.ExitStack
    claimed: Result | None


class AtHand(Generic[Result]):
    """Which tickets are worked on. A lease that this process holds counts as claimed (it may be from an unclear
    commit), so of copies of a ticket that meet here only one may get as far as the claim.

    Takes no lock: each look at the dictionaries is one step of the interpreter.

    :param tracker: records the tickets that are claimed ahead until they are entered, so that a stop waits for them.
    :param fresh_seconds: a claim that was made so long ago is worth nothing any more, since nobody has renewed it.
    """

    def __init__(
        self, tracker: TaskTracker, *, fresh_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tracker = tracker
        self._fresh_seconds = fresh_seconds
        self._clock = clock
        self._held: dict[str, contextlib.ExitStack] = {}
        self._claimed: dict[str, tuple[Entered[Result], float]] = {}
        self._announced: dict[str, int] = {}

    def enter(self, task_id: str) -> Entered[Result] | None:
        """Begin to work on a ticket.

        :returns: ``None`` when a copy of it is worked on already.
        """
        if (key := self._announced.pop(task_id, None)) is not None:
            self._tracker.discard(key)
        if (ahead := self._claimed.pop(task_id, None)) is not None:
            entered, since = ahead
            return entered if self._clock() < since + self._fresh_seconds else Entered(entered.held, None)
        held = self.reserve(task_id)
        return None if held is None else Entered(held, None)

    def claim_ahead(
        self, tickets: Iterable[tuple[str, str]], claim: Callable[[Sequence[str]], Sequence[Result]]
    ) -> None:
        """Claim tickets that will be entered right afterwards; when that fails, each is left to claim for itself.

        :param tickets: order id and task id of each.
        """
        reserved: dict[str, contextlib.ExitStack] = {}
        for order_id, task_id in tickets:
            if (held := self.reserve(task_id)) is not None:
                reserved[task_id] = held
                self._announced[task_id] = self._tracker.record_start("claim", entity_id=order_id)
        if not reserved:
            return
        since = self._clock()
        try:
            results = claim(list(reserved))
        except Exception as error:  # noqa: BLE001 - whose fault it is, and what to do, is found out one by one
            LOG.debug("%d tickets are claimed one by one: %s", len(reserved), error)
            for held in reserved.values():
                held.close()
            return
        for (task_id, held), result in zip(reserved.items(), results, strict=True):
            self._claimed[task_id] = Entered(held, result), since

    def reserve(self, task_id: str) -> contextlib.ExitStack | None:
        """Keep a ticket from being worked on.

        :returns: to be closed when it may be again; ``None`` when it is worked on already.
        """
        held = contextlib.ExitStack()
        if self._held.setdefault(task_id, held) is not held:
            return None
        held.callback(self._held.pop, task_id)
        return held
