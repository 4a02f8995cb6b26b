"""``retryflow top``."""

from __future__ import annotations

import argparse
import datetime
import shutil
import time
from typing import TYPE_CHECKING, Any

from retryflow.cli import next_step, stats, words
from retryflow.cli.base import Command
from retryflow.cli.words import number_from_1, seconds_of

if TYPE_CHECKING:
    from retryflow.model.census import Census

_CLEAR = "\x1b[H\x1b[2J"
_WINDOW_SECONDS = 60.0
_FIXED_LINES = 11


class Top(Command):
    """Watch the whole at work, in the terminal; Ctrl-C ends it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--interval", type=seconds_of, default=2.0, metavar="TIME", help="look so often (default: 2s)"
        )
        parser.add_argument(
            "--count",
            type=number_from_1,
            metavar="N",
            help="look so many times, then end (default: 1 if this is no terminal)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        terminal = self.app.stdout.isatty()
        left = parsed_args.count or (None if terminal else 1)
        try:
            while True:
                lines = self._lines(shutil.get_terminal_size().lines if terminal else 60)
                self.app.stdout.write((_CLEAR if terminal else "") + "\n".join(lines) + "\n")
                self.app.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return
                time.sleep(max(0.2, parsed_args.interval))
        except KeyboardInterrupt:
            return

    def _lines(self, height: int) -> list[str]:
        from retryflow.model import listing

        rows = max(3, (height - _FIXED_LINES) // 2)
        liveness = next_step.Liveness(self.app.conf.lease.lease_seconds)
        census = stats.count(self.store, self.app.conf, window_seconds=_WINDOW_SECONDS)
        running = self.store.read(lambda connection: listing.lease_page(connection, held=True, limit=rows))
        next_rows = self.store.read(lambda connection: listing.retry_page(connection, limit=rows))
        return [
            *summary(census, self.store.shown),
            "",
            f"{'RUNNING ORDER':<38}{'SINCE':>9}  {'TASK':<28}WORKER",
            *(_running(row, liveness) for row in running),
            "",
            f"{'NEXT ORDER':<38}{'DUE':>9}  {'TASK':<28}LAST ERROR",
            *(_next(row) for row in next_rows),
        ]


def summary(census: Census, database: str) -> list[str]:
    """:returns: the numbers in five lines."""
    orders = "  ".join(f"{status} {census.orders.get(status, 0)}" for status in ("PENDING", "ACTIVE", "ERROR"))
    late = f", late {words.length(census.late_seconds)}" if census.late_seconds else ""
    following = "" if census.next_due_seconds is None else f", next in {words.length(census.next_due_seconds)}"
    oldest = f", oldest {words.length(census.oldest_waiting_seconds)}" if census.oldest_waiting_seconds else ""
    longest = f", longest {words.length(census.longest_running_seconds)}" if census.longest_running_seconds else ""
    alive = ", ".join(words.count(census.alive.get(kind, 0), kind) for kind in ("worker", "scheduler"))
    return [
        f"{datetime.datetime.now().astimezone():%H:%M:%S}  {orders}  on {database}",
        f"Retry list {census.retry_rows}: due {census.due}{late}{following}",
        f"Tasks: waiting {census.waiting}{oldest}; running {census.running}{longest}; expired {census.expired}",
        f"Daemons: {alive} alive",
        f"Last minute: {stats.tell_happened(census.happened)}",
    ]


def _running(row: Any, liveness: next_step.Liveness) -> str:
    worker = f"{next_step.host_of(row.holder)} ({liveness.of(row)})"
    return f"{row.order_id:<38}{words.length(row.running_seconds):>9}  {row.task[:26]:<28}{worker}"


def _next(row: Any) -> str:
    due = "now" if row.due_in_seconds <= 0 else words.length(row.due_in_seconds)
    return f"{row.order_id:<38}{due:>9}  {row.retry_task[:26]:<28}{' '.join((row.last_error or '').split())[:60]}"
