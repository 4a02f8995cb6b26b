"""A storm: many rows are due at once, and one scheduler puts their tickets on the queue.

The baseline moves as many rows by raw batched SQL and then publishes as many messages raw, one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import place, raw
from benchmarks.measure import Sample
from retryflow.model import schema
from retryflow.model.engine import create_engine
from tests.fixtures.databases import new_database
from tests.fixtures.many_rows import fill_orders, fill_retry_rows

SIZES = (1_000, 20_000, 100_000)


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    for kind in place.databases():
        if kind != "sqlite" and not place.has_rabbit():
            continue
        sizes = (500,) if quick else SIZES
        for count in sizes:
            yield from _one(kind, count)


def _one(kind: str, count: int) -> Iterator[Sample]:
    case = f"{kind}, {count} rows"
    with place.directory() as path, new_database(kind, path) as url, place.maybe_corner(kind) as rabbit:
        engine = create_engine(url)
        schema.upgrade(engine)
        fill_orders(engine, "due", count)
        fill_retry_rows(engine, "due", count, due_in_seconds=-100_000)
        place.settled(engine)
        engine.dispose()
        settings = rabbit.settings if rabbit else "[DEFAULT]\ntransport_url = fake://\n"
        found = _child(path, url, settings)
        assert found["dispatched"] == count, found
    with place.directory() as path, new_database(kind, path) as url, place.maybe_corner(kind) as rabbit:
        engine = create_engine(url)
        schema.upgrade(engine)
        fill_orders(engine, "due", count)
        fill_retry_rows(engine, "due", count, due_in_seconds=-100_000)
        place.settled(engine)
        engine.dispose()
        seconds = raw.move_rows(url, count) + (raw.publish(rabbit, count) if rabbit else 0.0)
    against = "raw SQL, then raw publishes" if rabbit else "raw SQL"
    yield Sample(case, "rows/s", count / found["seconds"], count / seconds, against)
    yield Sample(case, "CPU us/row", found["cpu_seconds"] / count * 1e6)
    yield Sample(case, "peak MiB", found["peak_mib"])


def _child(path: Path, url: str, settings: str) -> dict[str, float]:
    """In a process of its own, whose memory tells of nothing else."""
    conf = path / "drain.conf"
    conf.write_text(f"{settings}[database]\nconnection = {url}\n[scheduler]\nmax_outstanding_tickets = 1000000\n")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.child_drain", str(conf)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
