"""The frame around the commands: global options, help, and how an error is told."""

from __future__ import annotations

import argparse
import logging
from typing import Any, NoReturn

from cliff import _argparse
from cliff import app as cliff_app
from cliff.help import HelpCommand
from oslo_config import cfg

import retryflow
from retryflow import conf as configuration
from retryflow.cli.commands import Commands
from retryflow.cli.failures import STANDARD_OUTPUT, writing_to
from retryflow.cli.legible import legible

PROG = "retryflow"
USAGE = 2
_DESCRIPTION = (
    "See and steer the orders of retryflow. Without any configuration it speaks to the database of "
    "retryflow-standalone."
)


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        # We speak in single lines; the libraries in their statements as well.
        return legible(super().formatMessage(record), lines=record.name != RetryflowApp.LOG.name)


class _Help(HelpCommand):
    """print detailed help for another command"""

    def run(self, parsed_args: argparse.Namespace) -> int:
        with writing_to(STANDARD_OUTPUT):
            return super().run(parsed_args)


class RetryflowApp(cliff_app.App):
    """The command; one object for one call.

    :param conf: is read when a command first asks for it, so that help needs no configuration.
    """

    NAME = PROG
    LOG = logging.getLogger("retryflow.cli")

    command_manager: Commands

    def __init__(self, conf: cfg.ConfigOpts = configuration.CONF) -> None:
        super().__init__(_DESCRIPTION, retryflow.__version__, Commands(), deferred_help=True)
        self.command_manager.add_command("help", _Help)
        self._conf = conf
        self._conf_is_read = False
        self._handler: logging.Handler | None = None
        self._root_level = logging.getLogger().level

    @property
    def conf(self) -> cfg.ConfigOpts:
        """The configuration.

        :raises retryflow.errors.ConfigurationError: a file is missing or cannot be parsed.
        """
        if not self._conf_is_read:
            arguments = []
            for option in ("config_file", "config_dir"):
                for value in getattr(self.options, option) or ():
                    arguments += [f"--{option.replace('_', '-')}", value]
            # The rest is registered by whoever needs it: it takes oslo.messaging, which is slow to load.
            configuration.parse(
                arguments, prog=PROG, conf=self._conf, set_up_logging=False, register=configuration.register_own
            )
            self._conf_is_read = True
        return self._conf

    def build_option_parser(
        self, description: str | None, version: str | None, argparse_kwargs: dict[str, Any] | None = None
    ) -> argparse.ArgumentParser:
        """The options that stand before or after any command."""
        # An abbreviation here would swallow options of the commands, since these are parsed later.
        parser = _argparse.ArgumentParser(
            description=description, prog=PROG, add_help=False, allow_abbrev=False, **(argparse_kwargs or {})
        )
        parser.add_argument(
            "--config-file",
            action="append",
            metavar="FILE",
            help="configuration file, the same as for the daemons; may be repeated. Without it ~/.retryflow, ~, "
            "/etc/retryflow and /etc are searched for retryflow.conf",
        )
        parser.add_argument(
            "--config-dir", action="append", metavar="DIR", help="directory of further configuration files (*.conf)"
        )
        parser.add_argument(
            "-v",
            "--verbose",
            action="count",
            dest="verbose_level",
            default=0,
            help="show the log of the libraries as well: -v warnings, -vv everything",
        )
        parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
        parser.add_argument("--version", action="version", version=f"{PROG} {version}")
        parser.add_argument("-h", "--help", dest="deferred_help", action="store_true", help="show this help, and exit")
        return parser

    def configure_logging(self) -> None:
        """Standard error gets our own lines; what the libraries log only on request, as it is no answer to anybody."""
        self._handler = logging.StreamHandler(self.stderr)
        self._handler.setFormatter(_Formatter(f"{PROG}: %(message)s"))
        level = (logging.CRITICAL + 1, logging.WARNING, logging.DEBUG)[min(self.options.verbose_level, 2)]
        logging.getLogger().setLevel(level)
        logging.getLogger().addHandler(self._handler)
        self.LOG.setLevel(logging.INFO)

    def close(self) -> None:
        """Take back what is global to the process."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            logging.getLogger().setLevel(self._root_level)

    def initialize_app(self, argv: list[str]) -> None:
        """Answer ``-h`` at once; for ``COMMAND ... -h`` keep only the command's name, which is all that help needs."""
        self.print_help_if_requested()
        if argv[:1] == ["help"]:
            options = [index for index, word in enumerate(argv) if word.startswith("-")]
            del argv[options[0] if options else len(argv) :]

    def print_help_if_requested(self) -> None:
        """Print the options and all commands, without reading anything.

        :raises SystemExit: 0, after it was printed.
        """
        if self.options.deferred_help:
            with writing_to(STANDARD_OUTPUT):
                self.stdout.write(self._help())
            raise SystemExit(0)

    def interact(self) -> NoReturn:
        """No command was given: there is no interactive mode, so it is a mistake.

        :raises SystemExit: 2.
        """
        self.stderr.write(self._help())
        raise SystemExit(USAGE)

    def run_subcommand(self, argv: list[str]) -> int:
        """Run the command that ``argv`` begins with.

        :returns: the exit status; 2 if there is no such command.
        """
        try:
            self.command_manager.find_command(argv)
        except ValueError:
            if argv[0].startswith("-"):
                self.LOG.error("there is no option %s (see %s --help)", argv[0], PROG)
                return USAGE
            words = [word for word in argv if not word.startswith("-")]
            meant = self.command_manager.suggestions(words)
            hint = f"; did you mean: {', '.join(meant)}?" if meant else ""
            self.LOG.error("there is no command %r%s (see %s --help)", " ".join(argv), hint, PROG)
            return USAGE
        return super().run_subcommand(argv)

    def _help(self) -> str:
        lines = [self.parser.format_help(), "Commands:"]
        for name, entry_point in sorted(self.command_manager):
            summary = (entry_point.load().__doc__ or "").strip().splitlines()[0].rstrip(".")
            lines.append(f"  {name:<16} {summary[:1].upper()}{summary[1:]}")
        lines.append(f"\nMore about a command: {PROG} help COMMAND\n")
        return "\n".join(lines)
