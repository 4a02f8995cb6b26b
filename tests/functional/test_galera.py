"""Two real Galera nodes: the loser of a race learns it at COMMIT, as a deadlock, and that means "not mine"."""

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.errors import LeaseLost
from retryflow.model import leases, retry_rows, schema
from retryflow.model.engine import create_engine, is_galera
from retryflow.model.leases import Claimable
from retryflow.model.tables import entity_locks, order_events, order_retry_tasks, order_task_leases
from retryflow.model.tables import orders as all_orders
from retryflow.model.task_state import TaskState
from retryflow.model.transaction import transact
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.dispatch import Dispatcher
from retryflow.retry.finish import finish
from retryflow.retry.lock import EntityLock
from retryflow.retry.outcome import Done
from retryflow.retry.policy import Limits
from retryflow.retry.recover import recover_dead
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit

ROUNDS = 12


@pytest.fixture(scope="module")
def nodes(galera: tuple[str, str]) -> Iterator[list[sa.Engine]]:
    engines = [create_engine(url) for url in galera]
    schema.upgrade(engines[0])
    # Until the other node has applied the tables, it would answer that there are none.
    with engines[1].connect() as connection:
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 15")
        connection.exec_driver_sql("SELECT 1")
    assert [is_galera(engine) for engine in engines] == [True, True]
    yield engines
    for engine in engines:
        engine.dispose()


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Run each on a thread of its own, let go together; what one raises is its result."""
    barrier = threading.Barrier(len(works))
    results: list[Any] = [None] * len(works)

    def run(index: int, work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[index] = work()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def synced(engine: sa.Engine, statement: Any) -> Any:
    """Read after the node has applied all that was committed elsewhere."""
    with engine.connect() as connection:
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 15")
        rows = connection.execute(statement).all()
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 0")
    return rows


def test_one_scheduler_gets_the_lock_and_the_other_no_error(nodes: list[sa.Engine]) -> None:
    """S7 on Galera: only "inserted and committed" is a success."""
    for _round in range(ROUNDS):
        locks = [EntityLock(engine, holder=f"h{n}:1:t", timeout_seconds=60.0) for n, engine in enumerate(nodes)]
        taken = at_once(*(lock.take for lock in locks))
        assert sorted(taken) == [False, True], taken
        winner = locks[taken.index(True)]
        [[held]] = synced(nodes[taken.index(False)], sa.select(entity_locks.c.worker_host_name))
        assert held == winner.fence
        winner.clear()
        assert [synced(engine, sa.select(entity_locks.c.batches)) for engine in nodes] == [[], []]


class _NoLock(EntityLock):
    """A scheduler that wrongly believes to hold the lock."""

    def touch(self, connection: sa.Connection) -> None:
        return


def test_two_schedulers_without_any_lock_double_nothing(nodes: list[sa.Engine]) -> None:
    """P4: both nodes offer the same rows to both; the guarded delete lets one of them commit."""
    settings = Settings(batch_size=20)
    ids = submit(nodes[0], [NewOrder(type="probe")] * 60, settings=settings)

    def to_the_retry_list(connection: sa.Connection) -> None:
        leases_of = connection.execute(sa.select(order_task_leases.c.id, order_task_leases.c.order_id)).all()
        for task_id, order_id in leases_of:
            leases.delete_waiting(connection, task_id)
            state = TaskState.first(order_id, "process_type_order", project_id=None, request_id=None)
            retry_rows.put(connection, state, after_seconds=-1.0)

    transact(nodes[0], to_the_retry_list)
    synced(nodes[1], sa.select(order_retry_tasks.c.id))
    tickets: list[str] = []

    def schedule(engine: sa.Engine) -> None:
        lock = _NoLock(engine, holder="x:1:t", timeout_seconds=60.0)
        dispatcher = Dispatcher(engine, lock, settings)
        empty = 0
        while empty < 3:
            try:
                batch = dispatcher.dispatch(20)
            except Exception:
                # Five times the loser of a race: the tick ends, and the next one comes.
                continue
            empty = 0 if batch.tickets else empty + 1
            tickets.extend(ticket.task_id for ticket in batch.tickets)

    results = at_once(*(lambda engine=engine: schedule(engine) for engine in nodes))  # type: ignore[misc]
    assert results == [None, None]
    assert [count for count in Counter(tickets).values() if count > 1] == []
    assert len(tickets) == 60
    for engine in nodes:
        assert sorted(row[0] for row in synced(engine, sa.select(order_task_leases.c.order_id))) == sorted(ids)
        assert synced(engine, sa.select(order_retry_tasks.c.id)) == []
    with nodes[0].begin() as connection:
        connection.execute(all_orders.delete())


def _claim(engine: sa.Engine, task_id: str, holder: str) -> Claimable | NotClaimed:
    return claim(engine, task_id, holder=holder, lease_seconds=20.0, also_crashed=False)


def _one_lease(nodes: Sequence[sa.Engine]) -> tuple[str, str]:
    [order_id] = submit(nodes[0], [NewOrder(type="probe", id=str(uuid.uuid4()))], settings=Settings())
    [[task_id]] = synced(nodes[1], sa.select(order_task_leases.c.id).where(order_task_leases.c.order_id == order_id))
    return order_id, task_id


def test_one_worker_claims_a_ticket_that_both_have(nodes: list[sa.Engine]) -> None:
    """P3, T3: a claim counts only once it is committed."""
    for _round in range(ROUNDS):
        _order_id, task_id = _one_lease(nodes)
        results = at_once(
            lambda task_id=task_id: _claim(nodes[0], task_id, "a:1:t"),  # type: ignore[misc]
            lambda task_id=task_id: _claim(nodes[1], task_id, "b:1:t"),  # type: ignore[misc]
        )
        assert [isinstance(result, Claimable) for result in results].count(True) == 1, results
        assert NotClaimed.HELD in results


def test_a_finish_and_a_recovery_on_two_nodes_have_one_winner(nodes: list[sa.Engine]) -> None:
    """T4: the order agrees with the winner, whichever node it was on."""
    for _round in range(ROUNDS):
        order_id, task_id = _one_lease(nodes)
        claimed = _claim(nodes[0], task_id, f"dead:{_round}:t")
        assert isinstance(claimed, Claimable)
        synced(nodes[1], sa.select(order_task_leases.c.id))
        finished, recovered = at_once(
            lambda claimed=claimed, holder=f"dead:{_round}:t": finish(  # type: ignore[misc]
                nodes[0], claimed, Done(), holder=holder, run_seconds=0.0, limits=Limits(), random=random
            ),
            lambda holder=f"dead:{_round}:t": recover_dead(nodes[1], holder, limits=Limits(), random=random),  # type: ignore[misc]
        )
        [[status]] = synced(nodes[1], sa.select(all_orders.c.status).where(all_orders.c.id == order_id))
        kinds = {
            row[0]
            for row in synced(nodes[1], sa.select(order_events.c.event).where(order_events.c.order_id == order_id))
        }
        if recovered == (1, 0):
            assert isinstance(finished, LeaseLost), finished
            assert (status, kinds) == ("PENDING", {"submitted", "crashed"})
        else:
            assert recovered == (0, 0), recovered
            assert (status, kinds) == ("ACTIVE", {"submitted", "done"})
