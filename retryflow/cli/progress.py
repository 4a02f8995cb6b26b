"""``--wait``: tells each change of an order as it happens, until the order has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retryflow.cli import story
from retryflow.cli.next_step import host_of

if TYPE_CHECKING:
    import sqlalchemy as sa

    from retryflow.cli.store import Store

LOOK_SECONDS = 0.25


class Progress:
    """Watches one order.

    :param say: takes one line for people.
    """

    def __init__(
        self,
        store: Store,
        order_id: str,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._order_id = order_id
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._told: dict[int, int] = {}
        self._running: str | None = None
        self._is_away = False

    def until_ended(self, timeout_seconds: float | None) -> str:
        """Watch until the order is ACTIVE or ERROR, or time has run out.

        A database that is away meanwhile is waited for.

        :returns: the order's status at the last look.
        :raises retryflow.errors.OrderNotFound: it was deleted.
        """
        deadline = None if timeout_seconds is None else self._clock() + timeout_seconds
        status = "PENDING"
        while True:
            status = self._look() or status
            if status != "PENDING" or (deadline is not None and self._clock() >= deadline):
                return status
            self._sleep(LOOK_SECONDS)

    def _look(self) -> str | None:
        from oslo_db.exception import DBError
        from sqlalchemy.exc import SQLAlchemyError

        from retryflow.model.transaction import is_disconnect

        try:
            status, history, lease = self._store.read(self._read)
        except (DBError, SQLAlchemyError) as error:
            if not is_disconnect(error):
                raise
            if not self._is_away:
                self._say("the database does not answer; waiting for it")
            self._is_away = True
            return None
        self._is_away = False
        self._tell(history, lease)
        return status

    def _read(self, connection: sa.Connection) -> tuple[str, list[Any], Any]:
        from retryflow.model import events, leases, listing

        status = listing.order_in_full(connection, self._order_id).status
        return status, events.of_order(connection, self._order_id), leases.of_order(connection, self._order_id)

    def _tell(self, history: list[Any], lease: Any) -> None:
        for line in history:
            count = line._mapping["count"]
            if self._told.get(line.id) != count:
                self._told[line.id] = count
                self._say(f"{line.last_at.astimezone().strftime('%H:%M:%S')} {story.tell(line)}")
        running = lease.id if lease is not None and lease.holder is not None else None
        if running is not None and running != self._running:
            self._say(
                f"{lease.started_at.astimezone().strftime('%H:%M:%S')} {lease.task} runs on {host_of(lease.holder)}"
            )
        self._running = running
