"""``retryflow worker list``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from retryflow.cli.base import Lister
from retryflow.cli.columns import Maybe, Moment
from retryflow.cli.next_step import Liveness

if TYPE_CHECKING:
    import sqlalchemy as sa

COLUMNS = ("holder", "kind", "host", "pid", "is", "started_at", "seen_at", "running_tasks", "version", "topic")


class WorkerList(Lister):
    """List the daemon processes, workers and schedulers: alive or gone, and what they run."""

    nothing = "no daemon has ever run on this database, or all have stopped in order"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from retryflow.model import listing, processes

        def work(connection: sa.Connection) -> tuple[list[Any], dict[str, int]]:
            return processes.all_rows(connection), listing.running_counts(connection)

        rows, running = self.store.read(work)
        liveness = Liveness(self.app.conf.lease.lease_seconds)
        return COLUMNS, [
            (
                row.holder,
                row.kind,
                row.host,
                row.pid,
                liveness.of(row),
                Moment(row.started_at),
                Moment(row.seen_at, row.unseen_seconds),
                running.get(row.holder, 0),
                Maybe(row.version),
                Maybe(row.topic),
            )
            for row in rows
        ]
