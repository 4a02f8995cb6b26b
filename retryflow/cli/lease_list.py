"""``retryflow lease list``."""

from __future__ import annotations

import argparse
from typing import Any

from retryflow.cli.base import Lister
from retryflow.cli.columns import Length, Maybe, Moment
from retryflow.cli.next_step import Liveness, host_of
from retryflow.cli.paging import add_paging, tell_more
from retryflow.cli.words import storable

COLUMNS = (
    "id",
    "order_id",
    "task",
    "state",
    "worker",
    "worker_is",
    "created_at",
    "started_at",
    "expires_in",
    "sent_count",
    "renewals",
    "retry_count",
    "poll_count",
    "crash_count",
    "request_id",
)


class LeaseList(Lister):
    """List leases: the tasks that are out, who runs them and since when."""

    nothing = "no task is out"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--running", action="store_true", help="only tasks that a worker has taken")
        which.add_argument("--waiting", action="store_true", help="only tasks that wait for a worker")
        parser.add_argument("--order", type=storable, metavar="ORDER", help="only the task of this order")
        add_paging(parser, "lease")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from retryflow.model import listing

        held = True if parsed_args.running else False if parsed_args.waiting else None
        order_ids = [parsed_args.order] if parsed_args.order else None
        page = self.store.read(
            lambda connection: listing.lease_page(
                connection,
                limit=parsed_args.limit + 1,
                marker=parsed_args.marker,
                order_ids=order_ids,
                held=held,
            )
        )
        liveness = Liveness(self.app.conf.lease.lease_seconds)
        return COLUMNS, [_columns(row, liveness) for row in tell_more(self, page, parsed_args)]


def _columns(row: Any, liveness: Liveness) -> tuple[Any, ...]:
    from retryflow.retry.log_context import request_of

    alive = None if row.holder is None else liveness.of(row)
    state = "running" if row.holder else "waiting"
    return (
        row.id,
        row.order_id,
        row.task,
        state if row.expires_in_seconds >= 0 else f"{state}, expired",
        Maybe(host_of(row.holder)),
        Maybe(alive),
        Moment(row.created_at, row.waiting_seconds),
        Moment(row.started_at, row.running_seconds),
        Length(row.expires_in_seconds),
        row.sent_count,
        row.renewals,
        row.retry_count,
        row.poll_count,
        row.crash_count,
        request_of(row.order_id, row.request_id),
    )
