"""``retryflow stats``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retryflow.cli.base import Show
from retryflow.cli.columns import Length, Told
from retryflow.cli.words import seconds_of

if TYPE_CHECKING:
    from retryflow.cli.store import Store
    from retryflow.model.census import Census


class Stats(Show):
    """Show how much there is to do, how late it is, and how fast it goes."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--window", type=seconds_of, default=300.0, metavar="TIME", help="count changes since then (default: 5m)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        census = count(self.store, self.app.conf, window_seconds=parsed_args.window)
        return self.fields(
            {
                **{
                    f"orders_{status.lower()}": census.orders.get(status, 0)
                    for status in ("PENDING", "ACTIVE", "ERROR")
                },
                "retry_list": census.retry_rows,
                "retry_due": census.due,
                "retry_late": Length(census.late_seconds),
                "retry_next_in": Length(census.next_due_seconds),
                "tasks_waiting": census.waiting,
                "oldest_waiting": Length(census.oldest_waiting_seconds),
                "tasks_running": census.running,
                "longest_running": Length(census.longest_running_seconds),
                "leases_expired": census.expired,
                "workers_alive": census.alive.get("worker", 0),
                "schedulers_alive": census.alive.get("scheduler", 0),
                "window": Length(parsed_args.window),
                "happened": Told(census.happened, tell_happened),
            }
        )


def count(store: Store, conf: Any, *, window_seconds: float) -> Census:
    """:returns: the numbers."""
    from retryflow.model import census

    alive_within_seconds = conf.lease.lease_seconds
    return store.read(
        lambda connection: census.take(
            connection, alive_within_seconds=alive_within_seconds, window_seconds=window_seconds
        )
    )


def tell_happened(happened: dict[str, int]) -> str:
    """:returns: the events with their numbers, the most frequent first."""
    several = sorted(happened.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{event}: {number}" for event, number in several) or "nothing"
