"""What all commands have in common: the database, a word to the reader, and errors of one line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from cliff import command, lister, show
from cliff.columns import FormattableColumn
from oslo_config import cfg

from retryflow.cli.app import RetryflowApp
from retryflow.cli.failures import CommandFailed, told
from retryflow.cli.legible import legible
from retryflow.cli.store import Store
from retryflow.conf.reading import one_line
from retryflow.conf.validation import unreadable
from retryflow.errors import ConfigurationError

Row = Sequence[Any]


class _Common(command.Command):
    exit_status = 0
    """What the command returns if nothing fails; a command may change it while it runs."""

    app: RetryflowApp

    @cached_property
    def store(self) -> Store:
        """The database that the configuration names."""
        return Store(self.app.conf)

    def get_epilog(self) -> str:
        """Nothing: cliff would read the metadata of every installed package, to say which one a command is from."""
        return self._epilog or ""

    def say(self, message: str, *arguments: object) -> None:
        """Tell the reader something that is not part of the answer (standard error)."""
        self.app.LOG.info(message, *arguments)

    def ask(self, question: str, *, agreed: bool) -> None:
        """Ask before something that cannot be undone.

        :param agreed: the answer was given on the command line.
        :raises CommandFailed: the answer was no, or there is nobody to ask.
        """
        if agreed:
            return
        if not self.app.stdin.isatty():
            raise CommandFailed(f"{question} Nobody is here to answer; say --yes if it is meant")
        self.app.stderr.write(f"{legible(question)} [y/N] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandFailed("nothing was done")

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command.

        :raises retryflow.errors.RetryflowError: whatever went wrong, with a message of one line.
        """
        try:
            status = super().run(parsed_args) or self.exit_status
            self.app.stdout.flush()
            return status
        except BrokenPipeError:
            raise
        except cfg.Error as error:
            # The error itself does not know the option's group.
            raise ConfigurationError(next(unreadable(self.app.conf), one_line(error))) from error
        except Exception as error:
            raise told(error, self.__dict__.get("store")) from error
        finally:
            if "store" in self.__dict__:
                self.store.close()


_TEXTS = ("csv", "value", "shell")


def _cell(value: Any) -> Any:
    """A value for a format that has no null and no structure: cliff would print ``None`` and Python's lists."""
    plain = value.machine_readable() if isinstance(value, FormattableColumn) else value
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, dict | list) else "" if plain is None else plain


def _in_double_quotes(value: Any) -> Any:
    """A value for ``eval``: cliff escapes the quote itself only, and a shell would run what an order's meta holds."""
    return re.sub(r"([\\$`])", r"\\\1", value) if isinstance(value, str) else value


def _seen(value: Any) -> Any:
    """A value for a table; a column of ours knows by itself what can be shown of it."""
    return legible(value) if isinstance(value, str) else value


class Command(_Common):
    """A command that does something and has nothing to show."""


class Lister(_Common, lister.Lister):
    """A command that shows rows.

    Its ``take_action`` returns the columns' names, and the rows as a list.
    """

    nothing = "nothing to show"
    """What people are told in place of an empty table."""

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]
    ) -> int:
        """Print the rows."""
        rows = list(data)
        if not rows and parsed_args.formatter == "table" and not parsed_args.print_empty:
            self.say("%s", self.nothing)
            return 0
        if parsed_args.formatter in _TEXTS:
            rows = [[_cell(value) for value in row] for row in rows]
        elif parsed_args.formatter == "table":
            rows = [[_seen(value) for value in row] for row in rows]
        return super().produce_output(parsed_args, column_names, rows)


class Show(_Common, show.ShowOne):
    """A command that shows the fields of one thing."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Sequence[Any]) -> int:
        """Print the fields; people are spared those that are empty, unless they asked for them by name."""
        if parsed_args.formatter == "table" and not parsed_args.columns and not parsed_args.print_empty:
            filled = [(name, value) for name, value in zip(column_names, data, strict=True) if str(value)]
            column_names, data = zip(*filled, strict=True)
        if parsed_args.formatter == "table":
            data = [_seen(value) for value in data]
        elif parsed_args.formatter in _TEXTS:
            data = [_cell(value) for value in data]
            if parsed_args.formatter == "shell":
                data = [_in_double_quotes(value) for value in data]
        return super().produce_output(parsed_args, column_names, data)

    @staticmethod
    def fields(values: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[Any]]:
        """:returns: what ``take_action`` returns, made of a mapping."""
        return tuple(values), tuple(values.values())
