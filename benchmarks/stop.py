"""SIGTERM to exit: idle, and from the end of the last task."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import place
from benchmarks.measure import Sample


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    if not place.has_rabbit():
        return
    for kind in place.databases()[: 1 if quick else None]:
        with place.deployment(kind) as made:
            worker, scheduler = (made.start(daemon, place.options()) for daemon in ("worker", "scheduler"))
            time.sleep(1.0)
            for name, daemon in (("worker", worker), ("scheduler", scheduler)):
                asked = time.monotonic()
                daemon.terminate()
                assert daemon.wait() == 0
                assert daemon.exited_at is not None
                yield Sample(f"idle {name}, {kind}", "s to exit", daemon.exited_at - asked)
        with place.deployment(kind) as made:
            worker = made.start("worker", place.options())
            with place.client(made) as client:
                made.submit(1, steps=["sleep 1.5"], sender=client)
            place.wait_for(lambda made=made: made.runs("start"))
            worker.terminate()
            assert worker.wait() == 0
            assert worker.exited_at is not None
            exited = time.time() - (time.monotonic() - worker.exited_at)
            assert made.statuses() == {"ACTIVE": 1}
            yield Sample(f"busy worker, {kind}", "s from last task's end", exited - made.runs("end")[0].at)
