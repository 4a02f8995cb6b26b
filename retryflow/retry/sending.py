"""What retry needs of the queue; the queue room implements it, so that neither imports the other's inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ticket:
    """The message that tells some worker to run a task. Only a wake-up: losing it loses nothing.

    :param task_id: the lease's primary key.
    :param task: the RPC method.
    :param ttl_seconds: how long the broker keeps it; after that the scheduler has sent it again.
    """

    task_id: str
    order_id: str
    task: str
    project_id: str | None
    request_id: str | None
    ttl_seconds: float


class TicketSender(Protocol):
    """Sends tickets."""

    def send(self, tickets: Sequence[Ticket], *, timeout_seconds: float) -> set[str]:
        """Send them all within ``timeout_seconds``.

        :returns: the ``task_id`` of each ticket that was *not* confirmed by the broker (not routed, refused, or time
            ran out); empty when all went well. Never raises for an unreachable broker.
        """
        ...


class SchedulerWaker(Protocol):
    """Tells the schedulers that something is due before their next tick."""

    def wake(self) -> None:
        """Best effort and rate-limited: losing it only means the next tick. Never raises, never blocks for long."""
        ...
