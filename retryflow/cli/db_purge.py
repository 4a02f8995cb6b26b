"""``retryflow db purge``."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING

from retryflow.cli import words
from retryflow.cli.bar import Bar
from retryflow.cli.base import Command
from retryflow.cli.words import seconds_of

if TYPE_CHECKING:
    from retryflow.model.purging import Ended

BATCH = 500
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
        before = self.store.read(lambda connection: purging.moment_before(connection, parsed_args.older_than))
        kinds = [purging.Ended(status, before) for status in parsed_args.status or ("ACTIVE", "ERROR")]
        total = sum(self.store.read(partial(purging.count, ended=kind)) for kind in kinds)
        if parsed_args.dry_run:
            self.say("%s would be removed; nothing was (--dry-run)", words.count(total, "order"))
            return
        with Bar(self.app.stderr, total) as bar:
            removed = sum(self._orders(kind, parsed_args.batch, bar) for kind in kinds)
        self.say("%s removed", words.count(removed, "order"))
        if parsed_args.events_older_than is not None:
            self.say("%s of history removed", words.count(self._events(parsed_args), "line"))

    def _orders(self, kind: Ended, batch: int, bar: Bar) -> int:
        from retryflow.model import purging
        from retryflow.model.transaction import transact

        removed, after = 0, None
        while page := self.store.read(partial(purging.page, ended=kind, limit=batch, after=after)):
            ids = [row.id for row in page]
            removed += transact(self.store.engine, partial(purging.delete, ended=kind, ids=ids))
            after = page[-1]
            bar.add(len(ids))
            time.sleep(PAUSE_SECONDS)
        return removed

    def _events(self, parsed_args: argparse.Namespace) -> int:
        from retryflow.model import purging
        from retryflow.model.transaction import transact

        before = self.store.read(lambda connection: purging.moment_before(connection, parsed_args.events_older_than))
        removed = 0
        while gone := transact(
            self.store.engine,
            lambda connection: purging.delete_events(connection, before, limit=parsed_args.batch),
        ):
            removed += gone
            time.sleep(PAUSE_SECONDS)
        return removed


def _batch(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
    return int(text)
