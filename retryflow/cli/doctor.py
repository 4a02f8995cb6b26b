"""``retryflow doctor``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from retryflow.cli.base import Lister
from retryflow.cli.checks import broker, configuration, database, work, writing
from retryflow.cli.checks.finding import BROKEN, Finding
from retryflow.cli.columns import Maybe
from retryflow.cli.failures import told
from retryflow.cli.order_list import overdue_seconds
from retryflow.errors import ConfigurationError, SchemaError

COLUMNS = ("check", "severity", "what", "remedy", "fixed")
UNHEALTHY = 1


class Doctor(Lister):
    """Look for what is wrong, and say what to do about it; silent when all is well.

    Exit status: 0 nothing is broken (there may be warnings), 1 something is, also after --fix.
    """

    nothing = "nothing is wrong"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--fix", action="store_true", help="repair what can be repaired from here")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        rows = []
        for finding in self._findings():
            fixed, is_fixed = self._fixed(finding) if parsed_args.fix else (None, False)
            if finding.severity == BROKEN and not is_fixed:
                self.exit_status = UNHEALTHY
            rows.append((finding.check, finding.severity, finding.what, finding.remedy, Maybe(fixed)))
        return COLUMNS, rows

    def _fixed(self, finding: Finding) -> tuple[str | None, bool]:
        if finding.fix is None:
            return None, False
        try:
            return finding.fix(), True
        except Exception as error:  # noqa: BLE001 - one repair that fails must not cost the other findings
            return f"not repaired: {told(error, self.store)}", False

    def _findings(self) -> Iterator[Finding]:
        try:
            conf = self.app.conf
        except ConfigurationError as error:
            yield configuration.broken(str(error))
            return
        wrong = list(configuration.check(conf))
        yield from wrong
        # Not before it is known that no standalone daemon works on this database.
        needed = False
        try:
            schema = list(database.check_schema(self.store))
            yield from schema
            # Without its tables there is nothing more to see in the database.
            if not any(finding.check == "schema" and "retryflow db upgrade" in finding.remedy for finding in schema):
                yield from writing.check(self.store)
                yield from database.check_clock(self.store)
                yield from database.check_durability(self.store)
                yield from work.check(self.store, conf, overdue_seconds=overdue_seconds(conf))
                needed = not broker.is_standalone(self.store, alive_within_seconds=conf.lease.lease_seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was to be found
            # A value that cannot be read is among what is wrong, and no fault of the database.
            if not (wrong and isinstance(error, cfg.Error)):
                what, _, remedy = str(told(error, self.store)).partition("; ")
                check = "schema" if isinstance(error, SchemaError) else "database"
                yield Finding(check=check, what=what, remedy=remedy or "see what the server says, and mend it there")
        try:
            yield from broker.check(conf, needed=needed)
        except ConfigurationError as error:
            if not any("transport_url" in finding.what for finding in wrong):
                yield Finding(check="broker", what=str(error), remedy="mend [DEFAULT] transport_url")
        except cfg.Error:
            if not wrong:
                raise
        except Exception as error:  # noqa: BLE001 - the other findings must be told
            yield Finding(
                check="broker",
                what=f"the broker refused a question: {' '.join(str(error).split())[:200]}",
                remedy="give its user the permissions on the virtual host that workers need; see the broker's log",
            )
