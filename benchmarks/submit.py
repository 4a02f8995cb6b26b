"""Orders submitted by one client, durable and with their tickets confirmed: one at a time, and in bulk.

The baseline inserts the same rows by the raw driver, without a broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks import place, raw
from benchmarks.measure import Sample
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit

NEW = NewOrder(type="probe", meta={"profile": "server"}, project_id="p1")


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    if not place.has_rabbit():
        return
    for kind in place.databases():
        with place.deployment(kind) as made, place.client(made) as client:
            submit(made.engine, [NEW], settings=Settings(), sender=client)
            for bulk, count in ((1, 20 if quick else 500), (100, 200 if quick else 10_000)):
                began, cpu = time.perf_counter(), time.process_time()
                for _ in range(0, count, bulk):
                    submit(made.engine, [NEW] * bulk, settings=Settings(), sender=client)
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                baseline = count / raw.insert_orders(made.database, count, batch=bulk)
                case = f"{kind}, {bulk} at a time"
                yield Sample(case, "orders/s", count / seconds, baseline, "raw driver, no broker")
                yield Sample(case, "CPU ms/order", cpu / count * 1000)
