"""``retryflow order list``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from retryflow.cli import next_step
from retryflow.cli.base import Lister
from retryflow.cli.columns import Maybe, Moment
from retryflow.cli.paging import add_paging, tell_more
from retryflow.cli.words import seconds_of, storable

if TYPE_CHECKING:
    import sqlalchemy as sa

COLUMNS = ("id", "status", "type", "project_id", "sub_status", "created_at", "updated_at", "next_step")


class OrderList(Lister):
    """List orders, the newest first."""

    nothing = "no such orders"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--status",
            action="append",
            type=str.upper,
            choices=("PENDING", "ACTIVE", "ERROR"),
            help="only orders of this status; may be repeated",
        )
        parser.add_argument("--type", type=storable, help="only orders of this type")
        parser.add_argument("--project", type=storable, help="only orders of this project")
        parser.add_argument(
            "--older-than", type=seconds_of, metavar="TIME", help="only orders made so long ago, or before (2h, 3d)"
        )
        parser.add_argument("--newer-than", type=seconds_of, metavar="TIME", help="only orders made since (2h, 3d)")
        parser.add_argument(
            "--stuck",
            action="store_true",
            help="only PENDING orders that have no next step, or whose next step is long overdue",
        )
        parser.add_argument("--oldest-first", action="store_true", help="turn the list round")
        add_paging(parser, "order")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from retryflow.model import listing

        conf = self.app.conf
        which = listing.OrderFilter(
            statuses=parsed_args.status or (),
            order_type=parsed_args.type,
            project_id=parsed_args.project,
            older_than_seconds=parsed_args.older_than,
            newer_than_seconds=parsed_args.newer_than,
            stuck_for_seconds=overdue_seconds(conf) if parsed_args.stuck else None,
        )
        liveness = next_step.Liveness(conf.lease.lease_seconds)

        def work(connection: sa.Connection) -> tuple[list[Any], dict[str, list[dict[str, Any]]]]:
            page = listing.orders_page(
                connection,
                which,
                limit=parsed_args.limit + 1,
                marker=parsed_args.marker,
                oldest_first=parsed_args.oldest_first,
            )
            pending = [row.id for row in page[: parsed_args.limit] if row.status == "PENDING"]
            return page, next_step.of_orders(connection, pending, liveness=liveness)

        page, steps = self.store.read(work)
        return COLUMNS, [
            (
                row.id,
                row.status,
                row.type,
                Maybe(row.project_id),
                Maybe(row.sub_status),
                Moment(row.created_at, row.created_seconds),
                Moment(row.updated_at, row.updated_seconds),
                next_step.column(row.status, steps.get(row.id, [])),
            )
            for row in tell_more(self, page, parsed_args)
        ]


def overdue_seconds(conf: Any) -> float:
    """:returns: the time within which somebody has taken up what is due, even after a scheduler's death (P5)."""
    return float(conf.scheduler.retry_lock_timeout_seconds + 2 * conf.scheduler.schedule_period_seconds)
