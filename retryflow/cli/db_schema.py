"""``retryflow db``: the database's schema."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from retryflow import conf as configuration
from retryflow.cli.base import Command, Lister, Show
from retryflow.cli.columns import Maybe
from retryflow.cli.differences import remedy_of, tell
from retryflow.cli.failures import CommandFailed
from retryflow.conf.reading import one_line

_SHOWN = 3


class DbUpgrade(Command):
    """Make the tables, or bring them up to date; harmless when they are."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        import sqlalchemy as sa
        from oslo_db.exception import DBError

        from retryflow.model import schema
        from retryflow.model.transaction import driver_error

        if not self.app.conf.database.connection:
            configuration.make_state_directory(self.app.conf)
        engine = self.store.open(patient=True)
        try:
            before = schema.current(engine)
            after = schema.upgrade(engine)
            made = schema.make_lost_tables(engine)
        except (DBError, sa.exc.SQLAlchemyError) as error:
            # Not "run: retryflow db upgrade", which is what other commands would say of a missing table.
            reason = one_line(driver_error(error))
            raise CommandFailed(f"the schema of {self.store.shown} cannot be upgraded: {reason}") from error
        finally:
            engine.dispose()
        done = f"was at {before or 'nothing'}, is at {after}" if before != after else f"was at {after} already"
        self.say("the schema of %s %s", self.store.shown, done)
        if made:
            self.say("what had been lost is made again, empty: %s", ", ".join(made))


class DbCurrent(Show):
    """Show at which revision the database's schema is, and which one this version needs."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        from retryflow.model import schema

        at, wanted = schema.current(self.store.engine), schema.head()
        return self.fields(
            {"database": self.store.shown, "current": Maybe(at), "needed": wanted, "up_to_date": at == wanted}
        )


class DbHistory(Lister):
    """List all revisions of the schema, the oldest first."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        from retryflow.model import schema

        rows = schema.history(self.store.engine)
        return ("revision", "applied", "what"), [(row.id, row.applied, row.message) for row in rows]


class DbCheck(Command):
    """Check that the schema is what this version needs, also column by column; exit status 1 if it is not."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.model import schema

        schema.check(self.store.engine)
        found = schema.differences(self.store.engine)
        if found:
            some = ", ".join(tell(each) for each in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
            raise CommandFailed(
                f"the schema of {self.store.shown} has the right revision, but differs from this version's in "
                f"{len(found)} places: {some}; {remedy_of(found)}"
            )
        self.say("the schema of %s is at %s, as it should be", self.store.shown, schema.head())
