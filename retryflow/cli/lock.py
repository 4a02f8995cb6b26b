"""``retryflow lock``: the EntityLock on the retry list."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from retryflow.cli import words
from retryflow.cli.base import Command, Show
from retryflow.cli.columns import Length, Maybe
from retryflow.cli.failures import CommandFailed


class LockShow(Show):
    """Show the lock on the retry list: which scheduler has it, and since when."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from retryflow.model import locks

        lock = self.store.read(locks.look)
        if lock is None:
            return self.fields({"entity": locks.RETRY_LIST, "state": "free", **dict.fromkeys(_HELD, Maybe(None))})
        return self.fields({"entity": locks.RETRY_LIST, **describe(lock, self.app.conf)})


class LockBreak(Command):
    """Break the lock on the retry list; asks first.

    Only the lock that was shown is broken: if a scheduler has touched or taken it meanwhile, nothing is done. A stale
    lock need not be broken, since the next scheduler takes it over by itself.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.model import locks
        from retryflow.model.transaction import transact

        self.store.require_schema()
        lock = self.store.read(locks.look)
        if lock is None:
            self.say("the lock is free; nothing to do")
            return
        shown = describe(lock, self.app.conf)
        age = words.length(lock.age_seconds)
        self.ask(
            f"The lock is {shown['state']}: {shown['scheduler']} touched it {age} ago. Break it?",
            agreed=parsed_args.yes,
        )
        broken = transact(
            self.store.engine,
            lambda connection: locks.break_seen(connection, lock.worker_host_name, batches=lock.batches),
        )
        if not broken:
            raise CommandFailed("the lock has changed hands, or was touched, since it was looked at; nothing was done")
        self.say("the lock is broken; %s will notice before it writes anything more", shown["scheduler"])


_HELD = ("scheduler", "touched", "batches", "stale_in", "fence")


def describe(lock: Any, conf: Any) -> dict[str, Any]:
    """:returns: the fields of a lock that somebody has."""
    # From the future is stale as well, as in retryflow.model.locks.take_over.
    left = conf.scheduler.retry_lock_timeout_seconds - abs(lock.age_seconds)
    return {
        "state": "held" if left >= 0 else "stale",
        # host:pid:token:nonce, unless somebody else has written it.
        "scheduler": ":".join(lock.worker_host_name.split(":")[:2]),
        "touched": Length(lock.age_seconds),
        "batches": lock.batches,
        "stale_in": Length(left),
        "fence": lock.worker_host_name,
    }
