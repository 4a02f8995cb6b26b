"""What databases do to a worker in the middle of its work: connections killed, refusals, answers that are too large."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model.orders import ACTIVE, ERROR
from retryflow.model.tables import order_task_leases
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Done, Outcome, Poll
from retryflow.retry.submit import NewOrder, submit
from tests.fixtures.contract import Desk, at_once, new_id
from tests.fixtures.order_worker import OrderWorker, order_worker
from tests.fixtures.rabbit import eventually

_leases = order_task_leases.c


@pytest.fixture
def worker(desk: Desk) -> Iterator[OrderWorker]:
    if desk.kind == "sqlite":
        pytest.skip("SQLite has no connections that a server could end")
    with order_worker(desk, replace(desk.settings, renew_seconds=0.1)) as made:
        made.manager.init_host()
        yield made


def kill_connections(desk: Desk) -> int:
    """End every connection to the test's database but the one that does it."""
    engine = sa.create_engine(desk.url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        if desk.kind == "postgresql":
            kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            return len(connection.exec_driver_sql(f"{kill} AND datname = current_database()").all())
        own = connection.scalar(sa.text("SELECT connection_id()"))
        listed = connection.exec_driver_sql("SELECT id FROM information_schema.processlist WHERE db = database()")
        others = [row.id for row in listed if row.id != own]
        for number in others:
            with contextlib.suppress(sa.exc.OperationalError):
                connection.exec_driver_sql(f"KILL {number}")
        return len(others)


def test_t13_connections_killed_between_two_tasks_are_survived(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T13: the next task in that thread has a clean session, and nobody notices anything."""
    for _ in range(3):
        order_id = desk.submit()
        assert worker.run(desk, order_id) == "acknowledged"
        assert desk.order(order_id).status == ACTIVE
        assert kill_connections(desk) >= 1


def test_t13_connections_killed_while_a_task_runs_cost_neither_run_nor_lease(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T13."""

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        kill_connections(desk)
        context.checkpoint({"k": "v"})
        kill_connections(desk)
        return Done(result={"n": 1})

    worker.type.steps["process_type_order"] = run
    order_id = desk.submit()
    assert worker.run(desk, order_id) == "acknowledged"
    assert desk.order(order_id).result == {"n": 1}
    assert desk.history(order_id) == ["submitted", "done"]
    assert desk.plugin_state(order_id) == [("k", "v")]


def test_t13_connections_killed_again_and_again_double_and_lose_nothing(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T13: at whatever statement it falls."""
    runs: list[str] = []

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        runs.append(context.task_id)
        return Done() if context.poll_count == 2 else Poll(after_seconds=0)

    worker.type.steps["process_type_order"] = run
    over = threading.Event()
    ids = [new_id() for _ in range(3)]

    def killer() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(Exception):
                kill_connections(desk)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        for order_id in ids:
            _complete(desk, worker, order_id)
    finally:
        over.set()
        thread.join()
    desk.engine.dispose()
    assert {desk.order(order_id).status for order_id in ids} == {ACTIVE}
    assert all(desk.is_moving(order_id) for order_id in ids)
    assert len(set(runs)) == len(runs), "a task ran twice although nobody crashed"


def _complete(desk: Desk, worker: OrderWorker, order_id: str) -> None:
    """Submit an order, and bring its tickets and dispatches until its third run."""
    _insist(lambda: submit(desk.engine, [NewOrder(type="probe", id=order_id)], settings=desk.settings))
    for _step in range(3):
        task_id = _insist(lambda: desk.lease(order_id)).id
        # A ticket that goes back to the broker comes again.
        deliver = partial(worker.deliver, "process_type_order", order_id=order_id, task_id=task_id)
        _insist(lambda deliver=deliver: deliver() != "handed back")  # type: ignore[misc]
        if _insist(lambda: [desk.rows(order_id)])[0]:
            _insist(lambda: desk.lease(order_id) or desk.dispatch(order_id))


def _insist(action: Callable[[], Any]) -> Any:
    """Until it succeeds: the test's own connections are killed as well."""

    def attempt() -> Any:
        with contextlib.suppress(Exception):
            return action()

    return eventually(attempt, "it succeeds")


def test_t13_a_duplicate_key_leaves_a_clean_session_behind(desk: Desk) -> None:
    """FAILURES T13: the session was unusable after it (LP 1527003)."""
    new = NewOrder(type="probe", id=new_id())
    results = at_once(*[lambda: submit(desk.engine, [new], settings=desk.settings)] * 6)
    assert results == [[new.id]] * 6
    claimed = desk.claim(str(new.id))
    # The lease's unique key, met in the middle of a transaction.
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"), desk.engine.begin() as connection:
        connection.execute(
            sa.insert(order_task_leases).from_select(
                [column.name for column in _leases],
                sa.select(*[sa.literal(new_id()) if column.name == "id" else column for column in _leases]).where(
                    _leases.id == claimed.task_id
                ),
            )
        )
    desk.finish(claimed, Done())
    assert desk.order(str(new.id)).status == ACTIVE


def test_a_database_that_refuses_to_write_keeps_outcomes_waiting(desk: Desk, worker: OrderWorker) -> None:
    """After a failover the address may lead to a server that is still read-only: no fault of the order's."""
    if desk.kind != "postgresql":
        pytest.skip("only PostgreSQL can be made read-only for one database")
    name = sa.make_url(desk.url).database
    maintenance = sa.create_engine(sa.make_url(desk.url).set(database="postgres"), isolation_level="AUTOCOMMIT")

    def read_only(word: str) -> None:
        with maintenance.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = {word}")
        kill_connections(desk)

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        read_only("on")
        return Done(result={"n": 1})

    worker.type.steps["process_type_order"] = run
    order_id = desk.submit()
    future = worker.begin(desk, order_id)
    try:
        eventually(lambda: worker.trouble == [True], "nothing new is taken in")
        assert not future.done()
    finally:
        read_only("off")
    assert future.result(60) == "acknowledged"
    eventually(lambda: worker.trouble == [True, False], "it goes on")
    maintenance.dispose()
    assert desk.order(order_id).result == {"n": 1}
    assert desk.history(order_id) == ["submitted", "done"]


@pytest.mark.slow
def test_an_answer_that_the_server_refuses_for_its_size_ends_in_error(desk: Desk, worker: OrderWorker) -> None:
    """MariaDB breaks the connection over a packet above max_allowed_packet, which looks like an outage each time."""
    if desk.kind != "mysql":
        pytest.skip("PostgreSQL takes it")
    with desk.engine.connect() as connection:
        limit = int(connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one())
    worker.type.steps["process_type_order"] = lambda context, order, **kwargs: Done(result={"x": "x" * (limit + 1000)})
    order_id, innocent = desk.submit(), desk.submit()
    future = worker.begin(desk, order_id)
    assert future.result(120) == "acknowledged"
    order = desk.order(order_id)
    assert (order.status, order.error_status_code, order.result) == (ERROR, "500", None)
    assert desk.is_moving(order_id)
    worker.type.steps.clear()
    eventually(lambda: not worker.manager.keeper.suspects, "the keeper is well")
    assert worker.run(desk, innocent) == "acknowledged"
    assert desk.order(innocent).status == ACTIVE
