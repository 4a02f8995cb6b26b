"""Commands that do the same with several orders: one that fails does not stop the others (promise P8)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from retryflow.cli import words
from retryflow.cli.base import Command
from retryflow.cli.words import storable
from retryflow.errors import RetryflowError


class EachOrder(Command):
    """Takes ids of orders."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "orders", nargs="+", type=storable, metavar="ORDER", help="id of an order; several may be given"
        )
        return parser

    def each(self, order_ids: Sequence[str], act: Callable[[str], str]) -> None:
        """Do it; the exit status is 1 if one of them failed.

        :param act: returns what to say; raises a ``RetryflowError``.
        """
        failed = 0
        for order_id in order_ids:
            try:
                self.say("%s", act(order_id))
            except RetryflowError as error:
                failed += 1
                self.app.LOG.error("%s", error)
        if failed:
            self.exit_status = 1
            if len(order_ids) > 1:
                self.app.LOG.error("%s of %s failed", failed, words.count(len(order_ids), "order"))
