"""``retryflow retry run-now``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from retryflow.cli import words
from retryflow.cli.each import EachOrder
from retryflow.cli.failures import CommandFailed
from retryflow.cli.sending import wake_schedulers

if TYPE_CHECKING:
    import sqlalchemy as sa


class RetryRunNow(EachOrder):
    """Let what stands on the retry list for an order be due now; counters and give-up clocks stay."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.model import listing, retry_rows
        from retryflow.model.transaction import transact

        self.store.require_schema()

        def make_due(connection: sa.Connection, order_id: str) -> int:
            listing.order_in_full(connection, order_id)
            return retry_rows.make_due(connection, order_id)

        def act(order_id: str) -> str:
            changed = transact(self.store.engine, lambda connection: make_due(connection, order_id))
            if not changed:
                raise CommandFailed(
                    f"order {order_id} has nothing on the retry list; see: retryflow order show {order_id}"
                )
            return f"order {order_id}: {words.count(changed, 'task')} due now"

        self.each(parsed_args.orders, act)
        wake_schedulers(self.app.conf)
