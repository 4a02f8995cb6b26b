"""Where a benchmark takes place: a database of its own, a corner of the broker, and real daemons.

The servers come from the same environment variables as those of the tests; what is missing is left out.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from retryflow.queue.client import TaskClient
from retryflow.queue.transport import get_transport
from tests.fixtures.databases import KINDS, new_database
from tests.fixtures.deployment import Deployment
from tests.fixtures.many_rows import analyze
from tests.fixtures.processes import Daemons
from tests.fixtures.rabbit import Rabbit, overriding
from tests.fixtures.servers import SERVERS, problem

#: The defaults of the daemons, which the deployments of the tests shorten.
DEFAULTS: dict[tuple[str | None, str], Any] = {
    ("scheduler", "schedule_period_seconds"): 15.0,
    ("lease", "lease_seconds"): 20.0,
    ("lease", "renew_seconds"): 5.0,
    ("retry", "initial_interval_seconds"): 15.0,
    ("retry", "maximum_interval_seconds"): 3600.0,
    (None, "executor_thread_pool_size"): 8,
    ("queue", "read_ahead"): 4,
}
_TICKS = os.sysconf("SC_CLK_TCK")


#: The kinds of databases to measure.
chosen: list[str] = list(KINDS)


def databases() -> list[str]:
    """The kinds of databases that are chosen and there."""
    return [kind for kind in chosen if kind == "sqlite" or problem(kind) is None]


def servers() -> list[str]:
    """The database servers that are there."""
    return [kind for kind in databases() if kind != "sqlite"]


def has_rabbit() -> bool:
    """Whether the broker is there."""
    return problem("rabbit") is None


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="retryflow-bench-") as name:
        yield Path(name)


@contextlib.contextmanager
def corner() -> Iterator[Rabbit]:
    """A corner of the broker with the workers' queue."""
    rabbit = Rabbit(SERVERS["rabbit"].url)
    rabbit.declare()
    try:
        yield rabbit
    finally:
        rabbit.remove()


@contextlib.contextmanager
def maybe_corner(kind: str) -> Iterator[Rabbit | None]:
    """A corner of the broker for a database server; SQLite goes with the in-process transport."""
    if kind == "sqlite":
        yield None
        return
    with corner() as rabbit:
        yield rabbit


@contextlib.contextmanager
def deployment(kind: str) -> Iterator[Deployment]:
    """A database and a corner of the broker, where daemons can be started."""
    with directory() as path, new_database(kind, path) as url, corner() as rabbit:
        daemons = Daemons(path)
        made = Deployment(path, url, rabbit, daemons)
        try:
            yield made
        finally:
            daemons.close()
            made.engine.dispose()


@contextlib.contextmanager
def client(made: Deployment) -> Iterator[TaskClient]:
    """Sends tickets as a client of the service does."""
    with overriding(made.rabbit.overrides) as conf:
        sender = TaskClient(get_transport(conf), conf)
        try:
            yield sender
        finally:
            sender.close()


def options(more: Mapping[tuple[str | None, str], Any] | None = None) -> dict[tuple[str | None, str], Any]:
    """The daemons' defaults with these changes."""
    return {**DEFAULTS, **(more or {})}


def settled(engine: sa.Engine) -> None:
    """What a database does by itself some time after many rows have come."""
    analyze(engine)


def processes_of(pid: int) -> list[int]:
    """A process and all its children."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            found += [int(child) for child in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """What a process and its children have used."""
    total = 0.0
    for each in processes_of(pid):
        with contextlib.suppress(OSError):
            values = Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(values[11]) + int(values[12])) / _TICKS
    return total


def memory_mib(pid: int, what: str = "Pss") -> float:
    """Memory of a process and its children, with their share of what they share."""
    total = 0
    for each in processes_of(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith(f"{what}:"):
                    total += int(line.split()[1])
    return total / 1024


def count(engine: sa.Engine, text: str) -> int:
    """The result of a counting query."""
    with engine.connect() as connection:
        return int(connection.execute(sa.text(text)).scalar_one())


def wait_for(condition: Any, *, timeout_seconds: float = 120.0, pause_seconds: float = 0.005) -> float:
    """Wait until it is true.

    :returns: when it was, on the monotonic clock.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_seconds} s")
        time.sleep(pause_seconds)
    return time.monotonic()
