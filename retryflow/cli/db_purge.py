"""``retryflow db purge``."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from retryflow.cli import words
from retryflow.cli.bar import Bar
from retryflow.cli.base import Command
from retryflow.cli.cut_short import sigterm_raises
from retryflow.cli.words import seconds_of

if TYPE_CHECKING:
    from retryflow.model.purging import Ended

BATCH = 500
MOST_COUNTED = 1_000_000
PAUSE_SECONDS = 0.02


class DbPurge(Command):
    """Remove orders that ended long ago, batch by batch, while the daemons work.

    Each batch is a short transaction of its own, so that it can be interrupted at any time and run again.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--older-than",
            type=seconds_of,
            required=True,
            metavar="TIME",
            help="remove orders that have ended, and have not changed, for so long (90d, 12w)",
        )
        parser.add_argument(
            "--status",
            action="append",
            type=str.upper,
            choices=("ACTIVE", "ERROR"),
            help="only orders of this status (default: both)",
        )
        parser.add_argument(
            "--events-older-than",
            type=seconds_of,
            metavar="TIME",
            help="also remove lines of the histories of the orders that stay, if they are so old",
        )
        parser.add_argument(
            "--batch", type=_batch, default=BATCH, metavar="N", help=f"so many in one transaction (default: {BATCH})"
        )
        parser.add_argument("--dry-run", action="store_true", help="only say how many there are")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.model import purging

        self.store.require_schema()
        before = self._before(parsed_args.older_than)
        events_before = None if parsed_args.events_older_than is None else self._before(parsed_args.events_older_than)
        kinds = [purging.Ended(status, before) for status in parsed_args.status or ("ACTIVE", "ERROR")]
        total = sum(self.store.read(partial(purging.count, ended=kind)) for kind in kinds)
        if parsed_args.dry_run:
            found = [str(_Removed("order", total))]
            if events_before is not None:
                count = partial(purging.count_events, before=events_before, up_to=MOST_COUNTED, apart_from=kinds)
                lines = self.store.read(count)
                at_least = "at least " if lines == MOST_COUNTED else ""
                found.append(f"{at_least}{_Removed('line', lines, of=' of history')}")
            self.say("%s would be removed; nothing was (--dry-run)", " and ".join(found))
            return
        with self._removing(_Removed("order"), total) as (removed, bar):
            for kind in kinds:
                self._orders(kind, parsed_args.batch, removed, bar)
        if events_before is None:
            return
        # Only a bar has to know beforehand what makes it full.
        count = partial(purging.count_events, before=events_before, up_to=MOST_COUNTED)
        total = self.store.read(count) if self.app.stderr.isatty() else 0
        total = total if total < MOST_COUNTED else 0
        with self._removing(_Removed("line", of=" of history"), total) as (removed, bar):
            self._events(events_before, parsed_args.batch, removed, bar)

    def _before(self, seconds: float) -> datetime.datetime:
        from retryflow.model import purging

        return self.store.read(lambda connection: purging.moment_before(connection, seconds))

    @contextlib.contextmanager
    def _removing(self, removed: _Removed, total: int) -> Iterator[tuple[_Removed, Bar]]:
        """Say what was removed, also if it is cut short."""

        def tell() -> None:
            self.say("%s removed so far", removed)

        with sigterm_raises():
            try:
                with Bar(self.app.stderr, total, tell=tell) as bar:
                    yield removed, bar
            except BaseException:
                self.say("%s removed so far; run it again for the rest", removed)
                raise
        self.say("%s removed", removed)

    def _orders(self, kind: Ended, batch: int, removed: _Removed, bar: Bar) -> None:
        from retryflow.model import purging
        from retryflow.model.transaction import transact

        after = None
        while page := self.store.read(partial(purging.page, ended=kind, limit=batch, after=after)):
            ids = [row.id for row in page]
            removed.count += transact(self.store.engine, partial(purging.delete, ended=kind, ids=ids))
            after = page[-1]
            bar.add(len(ids))
            time.sleep(PAUSE_SECONDS)

    def _events(self, before: datetime.datetime, batch: int, removed: _Removed, bar: Bar) -> None:
        from retryflow.model import purging
        from retryflow.model.transaction import transact

        while gone := transact(self.store.engine, partial(purging.delete_events, before=before, limit=batch)):
            removed.count += gone
            bar.add(gone)
            time.sleep(PAUSE_SECONDS)


@dataclass
class _Removed:
    noun: str
    count: int = 0
    of: str = ""

    def __str__(self) -> str:
        return words.count(self.count, self.noun) + self.of


def _batch(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
    return int(text)
