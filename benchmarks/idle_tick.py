"""A tick with nothing due, beside many rows that are due later: statements and time.

The baseline is one statement without any table, by the raw driver.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import place, raw
from benchmarks.measure import Sample
from retryflow.model import schema
from retryflow.model.engine import create_engine
from retryflow.retry.settings import Settings
from retryflow.retry.tick import Ticker
from tests.fixtures.databases import new_database
from tests.fixtures.many_rows import executed, fill_orders, fill_retry_rows
from tests.fixtures.retry_list import Recorder

SIZES = (0, 10_000, 1_000_000)
TURNS = 200


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    for kind in place.databases():
        with place.directory() as path, new_database(kind, path) as url:
            yield from _one(kind, url, sizes=(0, 1_000) if quick else SIZES, turns=20 if quick else TURNS)


def _one(kind: str, url: str, *, sizes: tuple[int, ...], turns: int) -> Iterator[Sample]:
    engine = create_engine(url)
    schema.upgrade(engine)
    ticker = Ticker(engine, holder="host:1:token", sender=Recorder(), settings=Settings())
    rows = 0
    for size in sizes:
        if size > rows:
            prefix = f"later{size}"
            fill_orders(engine, prefix, size - rows, events=False)
            fill_retry_rows(engine, prefix, size - rows, due_in_seconds=100_000)
            place.settled(engine)
            rows = size
        case = f"{kind}, {size} rows not due"
        with executed(engine) as seen:
            ticker.tick()
        yield Sample(case, "statements", len(seen))
        with raw.connection(url) as driver:
            baseline = _median_ms(functools.partial(_select, driver), turns)
        yield Sample(case, "ms", _median_ms(ticker.tick, turns), baseline, "SELECT 1")
    engine.dispose()


def _select(driver: Any) -> None:
    cursor = driver.cursor()
    cursor.execute("SELECT 1")
    cursor.fetchall()
    driver.rollback()


def _median_ms(work: Callable[[], object], turns: int) -> float:
    taken = []
    for _ in range(turns):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000
