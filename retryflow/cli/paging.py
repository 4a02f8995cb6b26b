"""The options of lists that may be long."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from retryflow.cli.base import Lister
from retryflow.cli.words import number_from_1, storable

DEFAULT_LIMIT = 50
MAXIMUM_LIMIT = 10_000


def add_paging(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--limit`` and ``--marker``.

    :param what: what a row is called.
    """
    parser.add_argument(
        "--limit", type=_limit, default=DEFAULT_LIMIT, metavar="N", help=f"at most so many (default: {DEFAULT_LIMIT})"
    )
    parser.add_argument(
        "--marker", type=storable, metavar="ID", help=f"begin after this {what}, the last one of the page before"
    )


def tell_more(command: Lister, page: Sequence[Any], parsed_args: argparse.Namespace) -> Sequence[Any]:
    """Say how to go on, if there is more.

    :param page: the rows, one more than was asked for.
    :returns: as many as were asked for.
    """
    if len(page) > parsed_args.limit:
        page = page[: parsed_args.limit]
        command.say("there are more; go on with --marker %s", page[-1].id)
    return page


def _limit(text: str) -> int:
    return number_from_1(text, up_to=MAXIMUM_LIMIT)
