"""Tasks that ask for a retry in two seconds: how much later than that do they run?"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import place
from benchmarks.measure import Sample
from tests.fixtures.deployment import Deployment

DELAY_SECONDS = 2.0


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    if not place.has_rabbit():
        return
    for kind in place.servers() or ["sqlite"]:
        for period in (15.0, 1.0):
            for count in (20,) if quick else (1, 1_000):
                yield from _one(kind, period, count)


def _one(kind: str, period: float, count: int) -> Iterator[Sample]:
    more = {("scheduler", "schedule_period_seconds"): period, (None, "executor_thread_pool_size"): 8}
    with place.deployment(kind) as made:
        for daemon in ("worker", "scheduler"):
            made.start(daemon, place.options(more))
        with place.client(made) as client:
            made.submit(count, steps=[f"retry {DELAY_SECONDS}|done"], sender=client)
        place.wait_for(lambda: made.statuses() == {"ACTIVE": count}, pause_seconds=0.1)
        late = sorted(_lateness(made))
    assert len(late) == count
    case = f"{kind}, period {period:g} s, {count} tasks"
    yield Sample(case, "p50 s", late[count // 2])
    yield Sample(case, "p99 s", late[min(count - 1, int(count * 0.99))])


def _lateness(made: Deployment) -> Iterator[float]:
    asked = {run.order_id: run.at for run in made.runs("end") if run.word == "retry"}
    for run in made.runs("start"):
        if run.retry_count == 1:
            yield run.at - asked[run.order_id] - DELAY_SECONDS
