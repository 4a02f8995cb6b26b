"""Every statement finds its rows by an index, and reads no more when the tables grow (FAILURES S14).

The tables are large in each of the ways that a service grows: rows that are not due, orders that have ended, leases of
other workers, and a storm of rows that are due. Each statement is taken as it was executed, and the database is asked
for its plan and for what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model import batches, census, events, leases, listing, orders, processes, purging, retry_rows, schema
from retryflow.model.engine import create_engine
from retryflow.model.listing import OrderFilter
from retryflow.model.several import Several
from retryflow.model.task_state import TaskState
from retryflow.retry.claim import claim, defer
from retryflow.retry.finish import checkpoint
from retryflow.retry.look import look
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.steer import cancel_order, delete_order, retry_order, update_order
from retryflow.retry.submit import NewOrder, submit
from retryflow.retry.together import TaskGroups, claim_together
from tests.fixtures.contract import Desk, new_id
from tests.fixtures.databases import new_database
from tests.fixtures.many_rows import (
    Executed,
    analyze,
    executed,
    explain,
    fill_leases,
    fill_orders,
    fill_plugin_state,
    fill_retry_rows,
)

SMALL, LARGE = 500, 20_000
IDS = [f"row-due-{n}" for n in range(1, 11)]
TASK_IDS = [f"task-lost-{n}" for n in range(1, 11)]
STATE = TaskState.first("due-1", "task", project_id="p", request_id=None)
ORDER_IDS = [f"due-{n}" for n in range(1, 11)]


@dataclass
class Grown:
    """A database at one size.

    :ivar fresh: orders that were submitted for the tests, one for each that asks.
    """

    desk: Desk
    fresh: list[str] = field(default_factory=list)

    @property
    def engine(self) -> sa.Engine:
        return self.desk.engine

    def running(self) -> Any:
        """A task that ``me`` runs."""
        return self.desk.claim(self.desk.submit(), "me")


def _fill(engine: sa.Engine, count: int) -> None:
    fill_orders(engine, "later", count)
    fill_retry_rows(engine, "later", count, due_in_seconds=3600)
    fill_plugin_state(engine, "later", count)
    fill_orders(engine, "ended", count, status="ACTIVE", age_seconds=100_000)
    fill_orders(engine, "held", count // 4)
    fill_leases(engine, "held", count // 4, ends_in_seconds=600, holder="other")
    fill_orders(engine, "waiting", count // 4)
    fill_leases(engine, "waiting", count // 4, ends_in_seconds=600)
    # What is due, and what is over, is as much in both sizes.
    fill_orders(engine, "due", 300)
    fill_retry_rows(engine, "due", 300, due_in_seconds=-1000)
    fill_orders(engine, "lost", 300)
    fill_leases(engine, "lost", 300, ends_in_seconds=-1000, holder="dead")


def filled(kind: str, directory: Path, *, settled: bool) -> Iterator[list[Grown]]:
    with new_database(kind, directory) as small, new_database(kind, directory) as large:
        made = []
        for url, count in ((small, SMALL), (large, LARGE)):
            engine = create_engine(url)
            schema.upgrade(engine)
            analyze(engine)
            _fill(engine, count)
            if settled:
                analyze(engine)
            made.append(Grown(Desk(engine, url)))
        yield made
        for one in made:
            one.engine.dispose()


@pytest.fixture(scope="module", params=["sqlite"])
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Grown]]:
    """The same database small and large, with the statistics of empty tables, as in a storm."""
    yield from filled(request.param, tmp_path_factory.mktemp("plans"), settled=False)


@pytest.fixture(scope="module", params=["sqlite"])
def settled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Grown]]:
    """The same database small and large, and the planner knows both."""
    yield from filled(request.param, tmp_path_factory.mktemp("plans"), settled=True)


Work = Callable[[Grown], object]


def _several(work: Callable[[Several], object]) -> Work:
    """In one round trip, within a transaction that is rolled back."""

    def send(connection: sa.Connection) -> None:
        several = Several(connection)
        work(several)
        several.run()

    return _within(send)


def _within(work: Callable[[sa.Connection], object]) -> Work:
    """In a transaction that is rolled back."""

    def run(grown: Grown) -> None:
        with grown.engine.connect() as connection, connection.begin() as transaction:
            work(connection)
            transaction.rollback()

    return run


TICK: dict[str, Work] = {
    "look": lambda grown: look(grown.engine),
    "due": _within(lambda c: retry_rows.due(c, limit=100)),
    "lock": _within(lambda c: retry_rows.lock(c, IDS)),
    "insert leases": _within(lambda c: leases.insert_from_retry_rows(c, IDS, expires_in_seconds=1.0)),
    "delete rows": _within(lambda c: retry_rows.delete(c, IDS)),
    "push a row out": _within(lambda c: retry_rows.push_out(c, IDS[0], after_seconds=1.0, error="x")),
    "expired": _within(lambda c: leases.expired(c, limit=100)),
    "resend": _within(lambda c: leases.resend(c, TASK_IDS, expires_in_seconds=sa.literal(1.0))),
    "sent counts": _within(lambda c: leases.sent_counts(c, TASK_IDS)),
    "unsent": _within(lambda c: leases.expire_unsent(c, TASK_IDS, after_seconds=1.0)),
    "present": _within(lambda c: leases.present(c, TASK_IDS)),
    "push a lease out": _within(lambda c: leases.push_out(c, TASK_IDS[0], after_seconds=1.0, error="x")),
    "pull in": _within(lambda c: leases.pull_in(c, farther_than_seconds=3600.0, expires_in_seconds=1.0)),
    "recover": _within(lambda c: leases.delete_expired(c, TASK_IDS[0], holder="dead")),
    "return": _within(lambda c: leases.delete_waiting(c, TASK_IDS[0])),
    "few waiting": _within(lambda c: leases.waiting_count(c, up_to=100)),
    "of a dead holder": _within(lambda c: leases.of_holder(c, "dead")),
    "put back": _within(lambda c: retry_rows.put(c, STATE, after_seconds=1.0)),
    "purge processes": _within(lambda c: processes.purge(c, unseen_for_seconds=1.0)),
}  # fmt: skip


def _end(grown: Grown, outcome: Outcome, *, alone: bool) -> None:
    groups = TaskGroups(grown.engine, holder="me", settings=grown.desk.settings, random=grown.desk.random)
    claimed = grown.running()
    groups.finish(claimed, outcome, run_seconds=0.0, alone=alone)


def _poll_twice(connection: sa.Connection) -> None:
    for _ in range(2):
        events.add(connection, "due-1", events.POLLING)


OUTCOMES: list[Outcome] = [
    Done(state={"a": "b"}),
    Fail(code="400", reason="x"),
    Retry(reason="x"),
    Poll(state={"a": "b"}),
    Continue(),
]
WORKER: dict[str, Work] = {
    "submit": lambda grown: submit(grown.engine, [NewOrder(type="probe", id=new_id())], settings=grown.desk.settings),
    "claim alone": lambda grown: claim(
        grown.engine, grown.desk.lease(grown.desk.submit()).id, holder="me", lease_seconds=9.0, also_crashed=True
    ),
    "claim together": lambda grown: claim_together(
        grown.engine, [grown.desk.lease(grown.desk.submit()).id for _ in range(8)], holder="me", lease_seconds=9.0
    ),
    "defer": lambda grown: defer(grown.engine, grown.desk.lease(grown.desk.submit()).id, after_seconds=1.0),
    "renew": _within(lambda c: leases.renew(c, TASK_IDS, holder="dead", lease_seconds=1.0)),
    "held by": _within(lambda c: leases.held_by(c, TASK_IDS, holder="dead")),
    "checkpoint": lambda grown: checkpoint(grown.engine, grown.running(), {"a": "b"}, holder="me"),
    "delete held": _several(lambda s: batches.delete_held(s, TASK_IDS, holder="dead")),
    "delete retry rows": _several(lambda s: batches.delete_retry_rows(s, ORDER_IDS)),
    "second poll": _within(_poll_twice),
    "ends of a task": _within(lambda c: events.ends_of(c, "due-1", "task")),
    **{
        f"finish {type(outcome).__name__}{' alone' if alone else ''}": partial(_end, outcome=outcome, alone=alone)
        for outcome in OUTCOMES
        for alone in (False, True)
    },
    "update order": lambda grown: update_order(grown.engine, "later-1", {"a": 1}),
    "cancel order": lambda grown: cancel_order(grown.engine, grown.desk.submit()),
    "retry order": lambda grown: _retry(grown),
    "delete order": lambda grown: delete_order(grown.engine, grown.desk.submit()),
    "make due": _within(lambda c: retry_rows.make_due(c, "due-1")),
}  # fmt: skip


def _retry(grown: Grown) -> None:
    order_id = grown.desk.submit()
    cancel_order(grown.engine, order_id)
    retry_order(grown.engine, order_id, settings=grown.desk.settings)


LISTS: dict[str, Work] = {
    "orders": _within(lambda c: listing.orders_page(c, OrderFilter(), limit=50)),
    "orders by status": _within(lambda c: listing.orders_page(c, OrderFilter(statuses=["ACTIVE"]), limit=50)),
    "orders of a project": _within(lambda c: listing.orders_page(c, OrderFilter(project_id="nobody"), limit=50)),
    "orders of a type": _within(lambda c: listing.orders_page(c, OrderFilter(order_type="none"), limit=50)),
    **{
        f"next page of a {name}": _within(
            lambda c, which=which: listing.orders_page(c, OrderFilter(**which), limit=50, marker="ended-200")
        )
        for name, which in {
            "type": {"order_type": "probe"},
            "project": {"project_id": "p1"},
            "status": {"statuses": ["ACTIVE"]},
            "type in a project": {"project_id": "p1", "order_type": "probe"},
        }.items()
    },
    "orders of a project that are old": _within(
        lambda c: listing.orders_page(c, OrderFilter(project_id="p1", older_than_seconds=50_000), limit=50)
    ),
    "next page of orders": _within(lambda c: listing.orders_page(c, OrderFilter(), limit=50, marker="ended-200")),
    "oldest orders": _within(lambda c: listing.orders_page(c, OrderFilter(), limit=50, oldest_first=True)),
    "retry list": _within(lambda c: listing.retry_page(c, limit=50)),
    "next page of the retry list": _within(lambda c: listing.retry_page(c, limit=50, marker="row-later-200")),
    "what is due": _within(lambda c: listing.retry_page(c, limit=50, due=True)),
    "retry rows of orders": _within(lambda c: listing.retry_page(c, order_ids=ORDER_IDS)),
    "leases": _within(lambda c: listing.lease_page(c, limit=50)),
    "held leases": _within(lambda c: listing.lease_page(c, limit=50, held=True)),
    "next page of leases": _within(lambda c: listing.lease_page(c, limit=50, marker="task-held-100")),
    "leases of orders": _within(lambda c: listing.lease_page(c, order_ids=ORDER_IDS)),
    "order": _within(lambda c: listing.order_in_full(c, "due-1")),
    "history": _within(lambda c: events.of_order(c, "due-1")),
    "plugin state": _within(lambda c: orders.state(c, "due-1")),
}  # fmt: skip


def _ended(connection: sa.Connection) -> purging.Ended:
    return purging.Ended("ACTIVE", purging.moment_before(connection, 1000))


PURGE: dict[str, Work] = {
    "page": _within(lambda c: purging.page(c, _ended(c), limit=50, after=None)),
    "events": _within(lambda c: purging.delete_events(c, purging.moment_before(c, 100_000), limit=50)),
}  # fmt: skip
# Counting is in proportion to what is counted; none of it is asked by a daemon at work.
COUNTS: dict[str, Work] = {
    "census": _within(lambda c: census.take(c, alive_within_seconds=60.0, window_seconds=60.0)),
    "running counts": _within(listing.running_counts),
}
AT_WORK = TICK | WORKER
FOR_PEOPLE = LISTS | PURGE
#: Reading by an index is a few pages, rows or steps for each row that is asked for; a whole table is thousands.
TOLERANCE = 1.5
SLACK = 60


def _explained(grown: Grown, work: Work) -> list[Executed]:
    with executed(grown.engine) as seen:
        work(grown)
    assert seen
    # One that inserts single rows has no plan.
    with_plan = [one for one in seen if one.kind != "INSERT" or "SELECT" in one.text.upper().split("VALUES", 1)[0]]
    return [explain(grown.engine, one) for one in with_plan]


def _is_flat(pair: list[Grown], work: Work) -> None:
    small, large = (_explained(one, work) for one in pair)
    assert [one.kind for one in small] == [one.kind for one in large]
    for before, after in zip(small, large, strict=True):
        told = f"{after.text}\n{after.plan}\nwork: {before.work} of small tables, {after.work} of large ones"
        assert not after.scanned, told
        assert after.work <= before.work * TOLERANCE + SLACK, told


@pytest.mark.parametrize("what", AT_WORK)
def test_s14_no_daemon_reads_a_whole_table_nor_more_of_it_in_a_storm(grown: list[Grown], what: str) -> None:
    """FAILURES S14: the cost of a tick grew with rows that were not due."""
    _is_flat(grown, AT_WORK[what])


@pytest.mark.parametrize("what", AT_WORK | FOR_PEOPLE)
def test_s14_nothing_reads_a_whole_table_nor_more_of_it_as_it_grows(settled: list[Grown], what: str) -> None:
    """FAILURES S14, and the lists that people look at."""
    _is_flat(settled, (AT_WORK | FOR_PEOPLE)[what])


@pytest.mark.parametrize("what", COUNTS)
def test_what_is_counted_is_counted_in_an_index(settled: list[Grown], what: str) -> None:
    for one in _explained(settled[1], COUNTS[what]):
        assert not one.scanned, f"{one.text}\n{one.plan}"


def test_a_storm_is_dispatched_batch_by_batch_without_sorting_what_is_left(grown: list[Grown]) -> None:
    """Ten thousand rows have become due since the statistics were last taken."""
    large = grown[1]
    [before] = _explained(large, TICK["due"])
    fill_orders(large.engine, "storm", 10_000)
    fill_retry_rows(large.engine, "storm", 10_000, due_in_seconds=-500)
    [during] = _explained(large, TICK["due"])
    assert not during.scanned, during.plan
    assert not during.sorted, during.plan
    assert during.work <= before.work * TOLERANCE + SLACK
