"""Look first, lock later: one statement that tells a scheduler whether anything is due and when the next thing will
be."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from retryflow.model import leases, locks, retry_rows
from retryflow.model.clock import now, seconds_between
from retryflow.model.transaction import read

_EPOCH = "2020-01-01 00:00:00"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw; seconds from now, negative for what is late, ``None`` for nothing.

    :param lock_age_seconds: since the EntityLock was touched last; ``None``: nobody has it.
    :param database_seconds: the database's clock, since a fixed moment.
    """

    row_due_in: float | None
    lease_ends_in: float | None
    last_lease_ends_in: float | None
    lock_age_seconds: float | None
    database_seconds: float

    @property
    def next_in(self) -> float | None:
        """Seconds until the next thing is due."""
        known = [seconds for seconds in (self.row_due_in, self.lease_ends_in) if seconds is not None]
        return min(known) if known else None


def look(engine: sa.Engine) -> Look:
    """A few index look-ups however long the lists are, in one statement."""
    epoch = sa.literal_column(f"'{_EPOCH}'") if engine.dialect.name == "sqlite" else sa.text(f"TIMESTAMP '{_EPOCH}'")
    statement = sa.select(
        retry_rows.first_due(),
        leases.first_expiring(),
        leases.last_expiring(),
        locks.age(),
        seconds_between(epoch, now()),
    )

    def work(connection: sa.Connection) -> Look:
        row = connection.execute(statement).one()
        return Look(*(None if value is None else float(value) for value in row))  # type: ignore[arg-type]

    return read(engine, work, attempts=1)
