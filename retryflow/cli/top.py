"""``retryflow top``."""

from __future__ import annotations

import argparse
import datetime
import shutil
import time
import unicodedata
from typing import TYPE_CHECKING, Any

from retryflow.cli import next_step, stats, words
from retryflow.cli.base import Command
from retryflow.cli.legible import legible
from retryflow.cli.words import number_from_1, seconds_of
from retryflow.conf.reading import one_line

if TYPE_CHECKING:
    from retryflow.model.census import Census

_CLEAR = "\x1b[H\x1b[2J"
_WINDOW_SECONDS = 60.0
_PIPE_LINES = 60


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
        live = self.app.stdout.isatty()
        left = parsed_args.count or (None if live else 1)
        lines: list[str] = []
        try:
            while True:
                columns, height = shutil.get_terminal_size() if live else (None, _PIPE_LINES)
                # The last line stays empty: what is written into the last cell of all may scroll.
                lines = self._look(max(1, height - 1), shown=lines if live else [])
                if live:
                    self.app.stdout.write(_CLEAR + "\n".join(fitted(line, (columns or 80) - 1) for line in lines))
                else:
                    self.app.stdout.write("\n".join(lines) + "\n")
                self.app.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    break
                time.sleep(max(0.2, parsed_args.interval))
        except KeyboardInterrupt:
            pass
        if live and lines:
            self.app.stdout.write("\n")

    def _look(self, height: int, *, shown: list[str]) -> list[str]:
        """:param shown: what stands there; it stays under a word on the trouble while the database is away.
        :returns: at most ``height`` lines."""
        from oslo_db.exception import DBError
        from sqlalchemy.exc import SQLAlchemyError

        from retryflow.model.transaction import driver_error, is_disconnect, is_lost_race

        try:
            return self._lines(height)
        except (DBError, SQLAlchemyError) as error:
            if not shown or not (is_disconnect(error) or is_lost_race(error)):
                raise
            moment = f"{datetime.datetime.now().astimezone():%H:%M:%S}"
            what = f"the database does not answer; waiting for it ({one_line(driver_error(error))})"
            return [f"{moment}  {what}", *shown[1:]][:height]

    def _lines(self, height: int) -> list[str]:
        from retryflow.model import listing

        liveness = next_step.Liveness(self.app.conf.lease.lease_seconds)
        census = stats.count(self.store, self.app.conf, window_seconds=_WINDOW_SECONDS)
        running = self.store.read(lambda connection: listing.lease_page(connection, held=True, limit=height))
        next_rows = self.store.read(lambda connection: listing.retry_page(connection, limit=height))
        return arranged(
            summary(census, self.store.shown),
            [f"{'RUNNING ORDER':<38}{'SINCE':>9}  {'TASK':<28}WORKER", *(_running(row, liveness) for row in running)],
            [f"{'NEXT ORDER':<38}{'DUE':>9}  {'TASK':<28}LAST ERROR", *(_next(row) for row in next_rows)],
            height=height,
        )


def arranged(head: list[str], first: list[str], second: list[str], *, height: int) -> list[str]:
    """Put the parts below each other: what does not fit is left out of the two lists, and these before the head.

    :param first: a list with its title.
    :param second: the same; each gets half of the room, and what the other does not need.
    :param height: the most lines there may be.
    """
    room = height - len(head) - 2 * len(("", "title"))
    if room < 2:
        return head[:height]
    of_second = min(len(second) - 1, max(room - (len(first) - 1), room // 2))
    of_first = room - of_second
    return [*head, "", *first[: of_first + 1], "", *second[: of_second + 1]]


def fitted(line: str, columns: int) -> str:
    """:returns: as much of a line as fits into so many cells of a terminal, without what would move its cursor."""
    kept, left = [], columns
    for letter in line:
        shown = letter if letter.isprintable() else "?"
        left -= 0 if unicodedata.combining(shown) else 2 if unicodedata.east_asian_width(shown) in "WF" else 1
        if left < 0:
            break
        kept.append(shown)
    return "".join(kept)


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
    return legible(f"{row.order_id:<38}{words.length(row.running_seconds):>9}  {row.task[:26]:<28}{worker}")


def _next(row: Any) -> str:
    due = "now" if row.due_in_seconds <= 0 else words.length(row.due_in_seconds)
    error = " ".join((row.last_error or "").split())[:60]
    return legible(f"{row.order_id:<38}{due:>9}  {row.retry_task[:26]:<28}{error}")
