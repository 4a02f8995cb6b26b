"""Orders that do nothing, from their ticket to ACTIVE: one worker process, eight threads, RabbitMQ, all durable.

The baseline is the same number of claims and finishes by the raw driver in as many threads, without a broker.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

from benchmarks import place, raw
from benchmarks.measure import Sample
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit
from tests.fixtures.deployment import PROBE, Deployment

THREADS = 8
NEW = NewOrder(type="probe", meta={}, project_id="p1")
ACTIVE = "SELECT count(*) FROM orders WHERE status = 'ACTIVE'"


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    if not place.has_rabbit():
        return
    for kind in place.databases():
        # SQLite is made for one process, and the disk decides.
        count = 100 if quick else 1_000 if kind == "sqlite" else 8_000
        yield from _one(kind, count)


def _one(kind: str, count: int) -> Iterator[Sample]:
    case = f"{kind}, {THREADS} threads"
    with place.deployment(kind) as made:
        order_ids = submit_all(made, count)
        counter = Counter(made)
        # The queue is full before the worker starts: what is measured is the worker.
        worker = made.start("worker", place.options({(None, "executor_thread_pool_size"): THREADS}), env=counter.env)
        began = place.wait_for(lambda: place.count(made.engine, ACTIVE) >= count // 10)
        first, statements, cpu = place.count(made.engine, ACTIVE), counter.value, place.cpu_seconds(worker.pid)
        ended = place.wait_for(lambda: place.count(made.engine, ACTIVE) >= count, pause_seconds=0.02)
        done = count - first
        cpu, statements = place.cpu_seconds(worker.pid) - cpu, counter.value - statements
        worker.terminate()
        worker.wait()
    with place.deployment(kind) as made:
        order_ids = submit_all(made, count, send=False)
        seconds = raw.run_orders(made.database, order_ids, threads=THREADS if kind != "sqlite" else 1)
    yield Sample(case, "orders/s", done / (ended - began), count / seconds, "raw driver")
    yield Sample(case, "CPU ms/order", cpu / done * 1000)
    yield Sample(case, "statements/order", statements / done)


def submit_all(made: Deployment, count: int, *, send: bool = True) -> list[str]:
    """Submit orders in bulk; their tickets lie in the queue."""
    ids: list[str] = []
    with place.client(made) as client:
        for at in range(0, count, 100):
            new = [NEW] * min(100, count - at)
            settings = Settings(ticket_resend_seconds=600.0)
            ids += submit(made.engine, new, settings=settings, sender=client if send else None)
    return ids


class Counter:
    """Counts the statements of a daemon, across the fork."""

    def __init__(self, made: Deployment) -> None:
        path = made.directory / "statements"
        path.write_bytes(bytes(8))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 8)
        place_of_hook = str(PROBE.parents[2] / "benchmarks" / "hook")
        self.env = {"RETRYFLOW_BENCH_COUNTER": str(path), "PYTHONPATH": f"{PROBE}:{place_of_hook}"}

    @property
    def value(self) -> int:
        """How many so far."""
        return int(struct.unpack_from("q", self._map)[0])
