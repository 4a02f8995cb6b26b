"""The lease keeper: what runs is renewed, what is lost is told, who is dead is recovered (FAILURES T1, T2, T14, S8)."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model import leases, processes
from retryflow.model.identity import ProcessIdentity, own_identity
from retryflow.model.leases import Claimable
from retryflow.model.tables import daemon_processes, metadata, order_task_leases
from retryflow.model.transaction import read, transact
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.keeper import LeaseKeeper
from retryflow.retry.outcome import Done, Outcome
from retryflow.retry.running import RunningTasks
from tests.fixtures.contract import Desk, new_id
from tests.fixtures.order_worker import OrderWorker, order_worker
from tests.fixtures.rabbit import eventually
from tests.fixtures.tcp_proxy import TcpProxy

_leases = order_task_leases.c


class Kept:
    """A keeper whose rounds the test makes, and what it said."""

    def __init__(self, desk: Desk, **changes: Any) -> None:
        self.desk = desk
        self.identity = own_identity()
        self.now = 1000.0
        self.running = RunningTasks(clock=lambda: self.now)
        self.trouble: list[bool] = []
        self.overdue: list[str] = []
        self.recovered: list[int] = []
        self.keeper = LeaseKeeper(
            desk.engine,
            self.identity,
            self.running,
            replace(desk.settings, **changes),
            version="test",
            topic="test",
            on_trouble=self.trouble.append,
            on_overdue=lambda running: self.overdue.append(running.claimed.task_id),
            on_recovered=self.recovered.append,
        )

    def run(self, claimed: Claimable | None = None) -> tuple[Claimable, TaskContext]:
        claimed = claimed or self.desk.running(self.identity.holder)
        state = claimed.state
        context = TaskContext(task_id=claimed.task_id, order_id=state.order_id, task=state.task)
        self.running.add(claimed, context)
        return claimed, context


@pytest.fixture
def kept(desk: Desk) -> Kept:
    desk.write(sa.delete(daemon_processes))
    return Kept(desk)


# --- renewal ---


def test_t2_a_task_of_any_length_keeps_its_lease(desk: Desk, kept: Kept) -> None:
    """FAILURES T2: started again while it ran. Its lease runs out ten times over, and each time it is renewed first."""
    claimed, context = kept.run()
    for turn in range(10):
        desk.expire(claimed.task_id)
        kept.keeper.round()
        lease = desk.lease(claimed.state.order_id)
        assert (lease.holder, lease.renewals, lease.expires_in_seconds > 10) == (kept.identity.holder, turn + 1, True)
        assert not desk.recover(claimed.state.order_id)
    assert not context.lease_lost


def test_a_lease_that_nobody_runs_is_left_to_expire(desk: Desk, kept: Kept) -> None:
    """By id, never "all of mine": a claim whose answer was lost would hang for ever."""
    orphan = desk.running(kept.identity.holder)
    kept.run()
    before = desk.lease(orphan.state.order_id)
    kept.keeper.round()
    after = desk.lease(orphan.state.order_id)
    assert (after.renewals, after.expires_at) == (before.renewals, before.expires_at)


def test_t4_only_a_row_that_is_gone_proves_the_loss_and_the_task_is_told(
    desk: Desk, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """FAILURES T4 and T14: the zombie fences itself, and says so."""
    lost, lost_context = kept.run()
    safe, safe_context = kept.run()
    desk.expire(lost.task_id)
    desk.recover(lost.state.order_id)
    kept.keeper.round()
    assert (lost_context.lease_lost, safe_context.lease_lost) == (True, False)
    assert desk.lease(safe.state.order_id).renewals == 1
    assert lost.task_id in caplog.text
    caplog.clear()
    kept.keeper.round()
    assert lost.task_id not in caplog.text


def test_a_lease_given_to_another_worker_is_lost_although_the_order_has_one(desk: Desk, kept: Kept) -> None:
    claimed, context = kept.run()
    desk.expire(claimed.task_id)
    desk.recover(claimed.state.order_id)
    other = desk.next(claimed.state.order_id, "other")
    kept.keeper.round()
    assert context.lease_lost
    assert desk.lease(claimed.state.order_id).renewals == 0
    assert desk.lease(claimed.state.order_id).id == other.task_id


def test_t14_a_row_that_somebody_locks_holds_up_no_renewal_and_proves_nothing(desk: Desk, kept: Kept) -> None:
    """FAILURES T14: a heartbeat that waits for one row lets all the others go."""
    if desk.kind == "sqlite":
        pytest.skip("SQLite locks the whole file")
    locked, locked_context = kept.run()
    free, _ = kept.run()
    with desk.engine.connect() as connection, connection.begin():
        connection.execute(sa.update(order_task_leases).where(_leases.id == locked.task_id).values(sent_count=9))
        kept.keeper.round()
        assert desk.lease(free.state.order_id).renewals == 1
        assert not locked_context.lease_lost
    kept.keeper.round()
    assert desk.lease(locked.state.order_id).renewals == 1


def test_a_task_that_ended_during_the_renewal_is_not_reported_as_lost(
    desk: Desk, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    claimed, context = kept.run()
    desk.finish(claimed, Done(), kept.identity.holder)
    kept.running.remove(claimed.task_id)
    kept.keeper.round()
    assert not context.lease_lost
    assert "lost its lease" not in caplog.text


# --- max_run_seconds ---


def test_a_task_that_runs_too_long_is_told_once_and_no_longer_renewed(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(desk, max_run_seconds=60.0)
    claimed, context = kept.run()
    kept.now += 59.0
    kept.keeper.round()
    assert (desk.lease(claimed.state.order_id).renewals, kept.overdue) == (1, [])
    kept.now += 2.0
    kept.keeper.round()
    kept.keeper.round()
    assert (desk.lease(claimed.state.order_id).renewals, kept.overdue) == (1, [claimed.task_id])
    assert context.lease_lost
    assert caplog.text.count("max_run_seconds") == 1


# --- the database away (FAILURES T14) ---


def _through(proxy: TcpProxy, url: str) -> str:
    return sa.make_url(url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)


@pytest.fixture
def behind_proxy(desk: Desk, tcp_proxies: list[TcpProxy]) -> Iterator[tuple[OrderWorker, TcpProxy]]:
    if desk.kind == "sqlite":
        pytest.skip("SQLite has no connection that could be lost")
    url = sa.make_url(desk.url)
    proxy = TcpProxy(url.host or "127.0.0.1", url.port or {"postgresql": 5432, "mysql": 3306}[desk.kind])
    tcp_proxies.append(proxy)
    settings = replace(desk.settings, renew_seconds=0.1)
    with order_worker(desk, settings, url=_through(proxy, desk.url)) as worker:
        yield worker, proxy


def test_t14_a_worker_that_cannot_renew_takes_nothing_in_until_it_can(
    desk: Desk, behind_proxy: tuple[OrderWorker, TcpProxy], caplog: pytest.LogCaptureFixture
) -> None:
    """FAILURES T14: it carried on as a zombie. The outage proves nothing: what runs goes on, and its outcome counts."""
    worker, proxy = behind_proxy
    go = threading.Event()
    contexts: list[TaskContext] = []

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        contexts.append(context)
        assert go.wait(60.0)
        return Done(result={"n": 1})

    worker.type.steps["process_type_order"] = run
    worker.manager.init_host()
    running, waiting = desk.submit(), desk.submit()
    future = worker.begin(desk, running)
    worker.running(running)
    proxy.refuse()
    eventually(lambda: worker.manager.keeper.suspects, "it suspects that it is fenced")
    assert worker.trouble == [True]
    assert worker.run(desk, waiting) == "handed back"
    assert not contexts[0].lease_lost
    go.set()
    eventually(lambda: "its outcome waits for the database" in caplog.text, "the outcome waits")
    assert not future.done()
    proxy.resume()
    assert future.result(60) == "acknowledged"
    eventually(lambda: worker.trouble == [True, False], "intake is on again")
    assert desk.order(running).result == {"n": 1}
    assert desk.history(running) == ["submitted", "done"]
    assert worker.run(desk, waiting) == "acknowledged"
    assert caplog.text.count("Leases cannot be renewed") == 1


def test_t14_a_renewal_that_hangs_is_suspicious_after_one_lease(
    desk: Desk, behind_proxy: tuple[OrderWorker, TcpProxy]
) -> None:
    """FAILURES T14: a database that keeps the connection and never answers gives no error to notice."""
    worker, proxy = behind_proxy
    worker.manager.keeper._settings = replace(worker.manager.keeper._settings, lease_seconds=0.5)
    worker.manager.init_host()
    order_id = desk.submit()
    proxy.stall()
    eventually(lambda: worker.manager.keeper.suspects, "it suspects that it is fenced")
    assert worker.run(desk, order_id) == "handed back"
    proxy.resume()
    eventually(lambda: not worker.manager.keeper.suspects, "it is sure again")
    assert worker.run(desk, order_id) == "acknowledged"


def test_t14_one_connection_that_was_ended_is_no_trouble(
    desk: Desk, behind_proxy: tuple[OrderWorker, TcpProxy]
) -> None:
    """FAILURES T13: a firewall or a restarted pooler ends idle connections; the next one works."""
    worker, proxy = behind_proxy
    worker.manager.init_host()
    proxy.cut()
    before = worker.manager.keeper.last_renewal
    eventually(lambda: worker.manager.keeper.last_renewal > before, "the next renewal")
    assert worker.trouble == []


def test_t14_a_claim_that_the_database_does_not_answer_hands_the_ticket_back(
    desk: Desk, behind_proxy: tuple[OrderWorker, TcpProxy]
) -> None:
    """FAILURES T14: before the keeper has noticed anything."""
    worker, proxy = behind_proxy
    order_id = desk.submit()
    proxy.refuse()
    assert worker.run(desk, order_id) == "handed back"
    assert worker.deliver("process_type_order", order_id=order_id) == "handed back"
    proxy.resume()
    assert worker.run(desk, order_id) == "acknowledged"
    assert desk.order(order_id).status == "ACTIVE"


def test_t14_tasks_that_use_up_all_connections_do_not_starve_the_keeper(desk: Desk) -> None:
    """FAILURES T14: own thread and connection."""
    with order_worker(desk, max_overflow=0) as worker:
        worker.manager.keeper.round()
        # All that the pool has; one more would wait for half a minute.
        held = [worker.engine.connect() for _ in range(5)]
        try:
            before = worker.manager.keeper.last_renewal
            worker.manager.keeper.round()
            assert worker.manager.keeper.last_renewal > before
        finally:
            for connection in held:
                connection.close()


# --- neighbours ---


class Neighbour:
    """A real process of this host, registered like a worker."""

    def __init__(self, desk: Desk, **changes: Any) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        me = own_identity()
        ticks = int(Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        identity = ProcessIdentity(
            holder=f"{me.host}:{self.process.pid}:{new_id()[:8]}",
            host=me.host,
            pid=self.process.pid,
            boot_id=me.boot_id,
            pid_namespace=me.pid_namespace,
            start_ticks=ticks,
        )
        self.identity = replace(identity, **changes)
        transact(desk.engine, lambda connection: processes.see(
            connection, self.identity, kind="worker", version="test", topic=None
        ))  # fmt: skip
        self.claimed = desk.running(self.identity.holder)

    def kill(self, *, reap: bool) -> None:
        self.process.send_signal(signal.SIGKILL)
        if reap:
            self.process.wait(10)
        else:
            # Ended, and kept as a zombie by its parent.
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def neighbours() -> Iterator[list[Neighbour]]:
    made: list[Neighbour] = []
    yield made
    for neighbour in made:
        neighbour.close()


def _rows(desk: Desk) -> set[str]:
    return {row.holder for row in read(desk.engine, processes.all_rows)}


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "zombie"])
def test_t1_a_neighbour_that_is_provably_dead_is_recovered_at_once(
    desk: Desk, kept: Kept, neighbours: list[Neighbour], caplog: pytest.LogCaptureFixture, reap: bool
) -> None:
    """FAILURES T1: without waiting for the lease to end."""
    neighbours.append(dead := Neighbour(desk))
    kept.keeper.round()
    assert desk.lease(dead.claimed.state.order_id).holder == dead.identity.holder
    dead.kill(reap=reap)
    kept.keeper.round()
    [row] = desk.rows(dead.claimed.state.order_id)
    assert (row.crash_count, row.in_seconds <= 0) == (1, True)
    assert kept.recovered == [1]
    assert _rows(desk) == {kept.identity.holder}
    assert dead.identity.holder in caplog.text


@pytest.mark.parametrize("table", ["order_task_leases", "orders"])
def test_a_dead_neighbours_lease_that_somebody_has_locked_costs_no_renewal(
    desk: Desk, kept: Kept, neighbours: list[Neighbour], table: str
) -> None:
    """It is looked at again in the next round, and nobody stops taking tasks in over it."""
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("SQLite locks the whole file")
    neighbours.append(dead := Neighbour(desk))
    dead.kill(reap=True)
    claimed = dead.claimed
    key = {"order_task_leases": claimed.task_id, "orders": claimed.state.order_id}[table]
    with desk.engine.begin() as connection:
        columns = metadata.tables[table].c
        connection.execute(sa.select(columns.id).where(columns.id == key).with_for_update())
        kept.keeper.round()
        assert not kept.keeper.suspects
    assert kept.recovered == []
    assert _rows(desk) == {kept.identity.holder, dead.identity.holder}
    kept.keeper.round()
    assert kept.recovered == [1]
    assert _rows(desk) == {kept.identity.holder}


def test_a_neighbour_that_stopped_in_good_order_meanwhile_is_not_called_dead(
    desk: Desk, kept: Kept, neighbours: list[Neighbour], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """It took its row away after the keeper had read the rows and before it looked at the pid."""
    neighbours.append(leaving := Neighbour(desk))
    holder = leaving.identity.holder

    def leave(*_args: Any, **_kwargs: Any) -> bool:
        transact(desk.engine, lambda connection: leases.delete_held(connection, leaving.claimed.task_id, holder=holder))
        transact(desk.engine, lambda connection: processes.remove(connection, holder))
        return True

    monkeypatch.setattr("retryflow.retry.keeper.provably_dead", leave)
    kept.keeper.round()
    assert holder not in caplog.text
    assert kept.recovered == []


def test_t1_a_pid_that_is_in_use_again_is_not_taken_for_the_dead(
    desk: Desk, kept: Kept, neighbours: list[Neighbour]
) -> None:
    """The pid lives, with another start time: the one that held the lease is dead."""
    neighbours.append(reused := Neighbour(desk))
    former = replace(reused.identity, holder=new_id(), start_ticks=(reused.identity.start_ticks or 0) - 1)
    transact(desk.engine, lambda connection: processes.see(connection, former, kind="worker", version="x", topic=None))
    claimed = desk.running(former.holder)
    kept.keeper.round()
    assert desk.rows(claimed.state.order_id)[0].crash_count == 1
    assert desk.lease(reused.claimed.state.order_id).holder == reused.identity.holder
    assert _rows(desk) == {kept.identity.holder, reused.identity.holder}


@pytest.mark.parametrize(
    "doctored",
    [
        {"boot_id": "00000000-0000-0000-0000-000000000000"},
        {"boot_id": None},
        {"pid_namespace": 1},
        {"pid_namespace": None},
        {"start_ticks": None},
    ],
    ids=lambda doctored: next(iter(doctored.items())).__repr__()[:40],
)
def test_never_on_a_guess(desk: Desk, kept: Kept, neighbours: list[Neighbour], doctored: dict[str, Any]) -> None:
    """Another boot, another container, an unknown start: nothing is proven, and the lease ends by itself."""
    neighbours.append(unknown := Neighbour(desk, **doctored))
    unknown.kill(reap=True)
    kept.keeper.round()
    assert desk.lease(unknown.claimed.state.order_id).holder == unknown.identity.holder
    assert desk.rows(unknown.claimed.state.order_id) == []
    assert kept.recovered == []


def test_s8_host_names_prove_nothing_either_way(desk: Desk, kept: Kept, neighbours: list[Neighbour]) -> None:
    """FAILURES S8: names are set by people. The same host under another name is recovered all the same."""
    neighbours.append(renamed := Neighbour(desk, host="another-name", holder=f"another-name:1:{new_id()[:8]}"))
    renamed.kill(reap=True)
    kept.keeper.round()
    assert desk.rows(renamed.claimed.state.order_id)[0].crash_count == 1


def test_without_a_boot_id_of_its_own_a_worker_proves_nothing(
    desk: Desk, kept: Kept, neighbours: list[Neighbour]
) -> None:
    neighbours.append(unknown := Neighbour(desk, boot_id=None, pid_namespace=None))
    unknown.kill(reap=True)
    kept.keeper._identity = replace(kept.identity, boot_id=None, pid_namespace=None)
    kept.keeper.round()
    assert desk.lease(unknown.claimed.state.order_id).holder == unknown.identity.holder


def test_a_neighbour_that_cannot_be_recovered_does_not_stop_the_keeper(
    desk: Desk, kept: Kept, neighbours: list[Neighbour], caplog: pytest.LogCaptureFixture
) -> None:
    """Promise P8: one bad row must not put every worker of the host out of work."""
    neighbours.extend([bad := Neighbour(desk), good := Neighbour(desk)])
    for neighbour in (bad, good):
        neighbour.kill(reap=True)
    bad_order = bad.claimed.state.order_id
    real = kept.keeper._random

    class Failing:
        def uniform(self, a: float, b: float, /) -> float:
            raise RuntimeError("a row that cannot be recovered")

    # Its second crash draws a random wait; this stands for whatever a row may hold.
    desk.write(order_task_leases.update().where(_leases.order_id == bad_order).values(crash_count=1))
    kept.keeper._random = Failing()
    kept.keeper.round()
    assert not kept.keeper.suspects
    assert desk.rows(good.claimed.state.order_id)[0].crash_count == 1
    assert desk.lease(bad_order).holder == bad.identity.holder
    assert "cannot be recovered" in caplog.text
    kept.keeper._random = real
    kept.keeper.round()
    assert desk.rows(bad_order)[0].crash_count == 2


def test_a_process_row_that_was_purged_comes_back(desk: Desk, kept: Kept) -> None:
    kept.keeper.round()
    desk.write(sa.delete(daemon_processes))
    kept.keeper.round()
    assert _rows(desk) == {kept.identity.holder}
