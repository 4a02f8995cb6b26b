"""kill -9 of a worker in the middle of a task: how long until the task runs again elsewhere, at the defaults?"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import sqlalchemy as sa

from benchmarks import place
from benchmarks.measure import Sample
from tests.fixtures.deployment import Deployment


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    if not place.has_rabbit():
        return
    kind = (place.servers() or ["sqlite"])[0]
    yield Sample(f"respawned by its master, {kind}", "s to run again", _respawned(kind))
    if not quick:
        yield Sample(f"by a neighbour on the host, {kind}", "s to run again", _elsewhere(kind, provable=True))
        yield Sample(f"on another host, {kind}", "s to run again", _elsewhere(kind, provable=False))


def _respawned(kind: str) -> float:
    with place.deployment(kind) as made:
        made.start("worker", place.options({("queue", "asynchronous_workers"): 2}))
        made.start("scheduler", place.options())
        return _kill_and_wait(made, lambda: None)


def _elsewhere(kind: str, *, provable: bool) -> float:
    with place.deployment(kind) as made:
        made.start("worker", place.options())
        made.start("scheduler", place.options())

        def another() -> None:
            made.start("worker", place.options())
            if not provable:
                # As a process of another machine looks from here.
                with made.engine.begin() as connection:
                    connection.execute(sa.text("UPDATE daemon_processes SET boot_id = 'another' WHERE kind = 'worker'"))

        return _kill_and_wait(made, another)


def _kill_and_wait(made: Deployment, before: Callable[[], None]) -> float:
    gate = made.directory / "gate"
    gate.touch()
    with place.client(made) as client:
        made.submit(1, steps=[f"hold {gate}"], sender=client)
    place.wait_for(lambda: made.runs("start"))
    before()
    killed = time.time()
    os.kill(made.runs("start")[0].pid, signal.SIGKILL)
    place.wait_for(lambda: len(made.runs("start")) > 1)
    gate.unlink()
    place.wait_for(lambda: made.statuses() == {"ACTIVE": 1})
    return made.runs("start")[1].at - killed
