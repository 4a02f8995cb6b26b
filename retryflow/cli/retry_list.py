"""``retryflow retry list``."""

from __future__ import annotations

import argparse
from typing import Any

from retryflow.cli.base import Lister
from retryflow.cli.columns import Maybe, Moment
from retryflow.cli.paging import add_paging, tell_more
from retryflow.cli.words import storable

COLUMNS = (
    "id",
    "order_id",
    "task",
    "retry_at",
    "retry_count",
    "poll_count",
    "crash_count",
    "stands_behind",
    "request_id",
    "last_error",
)


class RetryList(Lister):
    """List the retry list: what is to be put on the queue, and when."""

    nothing = "the retry list is empty"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--order", type=storable, metavar="ORDER", help="only the tasks of this order")
        parser.add_argument("--due", action="store_true", help="only tasks that are due")
        add_paging(parser, "row")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from retryflow.model import listing
        from retryflow.retry.log_context import request_of

        order_ids = [parsed_args.order] if parsed_args.order else None
        page = self.store.read(
            lambda connection: listing.retry_page(
                connection,
                limit=parsed_args.limit + 1,
                marker=parsed_args.marker,
                order_ids=order_ids,
                due=parsed_args.due,
            )
        )
        return COLUMNS, [
            (
                row.id,
                row.order_id,
                row.retry_task,
                Moment(row.retry_at, -row.due_in_seconds),
                row.retry_count,
                row.poll_count,
                row.crash_count,
                Maybe(row.lease_id),
                request_of(row.order_id, row.request_id),
                Maybe(row.last_error),
            )
            for row in tell_more(self, page, parsed_args)
        ]
