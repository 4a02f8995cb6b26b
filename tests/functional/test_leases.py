"""Leases of real daemons: long tasks, bounded intake, the database away, calls that never return (T2, T6, T14)."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model.orders import ACTIVE
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually
from tests.fixtures.tcp_proxy import TcpProxy

Options = dict[tuple[str | None, str], Any]
SHORT: Options = {("lease", "lease_seconds"): 1.5, ("lease", "renew_seconds"): 0.3}


def held(deployment: Deployment) -> int:
    with deployment.engine.connect() as connection:
        count = sa.text("SELECT count(*) FROM order_task_leases WHERE holder IS NOT NULL")
        return int(connection.execute(count).scalar_one())


def starts(deployment: Deployment) -> Counter[str]:
    return Counter(run.order_id for run in deployment.runs("start"))


@pytest.mark.slow
def test_t6_t2_a_worker_takes_what_its_threads_can_run_and_keeps_it_however_long_it_takes(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T6: all queued messages were taken into one worker's memory. FAILURES T2: a task longer than the lease
    was started again while it ran, here for four leases, beside a scheduler and a second worker.
    """
    deployment = make_deployment("postgresql")
    first = deployment.start("worker", {**SHORT, ("scheduler", "ticket_resend_seconds"): 60.0})
    hold = deployment.directory / "hold"
    hold.touch()
    ids = deployment.submit(50, steps=[f"hold {hold}"])
    deployment.start("scheduler", {**SHORT, ("scheduler", "ticket_resend_seconds"): 60.0}, ready=False)
    eventually(lambda: held(deployment) == 4, "its four threads are busy")
    # Four threads and two tickets read ahead; acknowledged are those that are claimed.
    eventually(lambda: deployment.rabbit.ready() == 44, "44 tickets wait in the broker for others")
    second = deployment.start("worker", SHORT)
    eventually(lambda: len(starts(deployment)) == 8, "the other worker has its share")
    begun = time.monotonic()
    while time.monotonic() - begun < 6.0:
        assert (held(deployment), deployment.rabbit.ready()) == (8, 38)
        time.sleep(0.5)
    assert set(starts(deployment).values()) == {1}
    hold.unlink()
    assert deployment.wait_until_ended() == {ACTIVE: 50}
    assert starts(deployment) == Counter(ids)
    assert {run.crash_count for run in deployment.runs()} == {0}
    assert {run.pid for run in deployment.runs()} == {first.pid, second.pid}


@pytest.mark.slow
def test_t14_tasks_survive_a_database_that_is_gone_for_longer_than_their_lease(
    make_deployment: Callable[[str], Deployment], tcp_proxies: list[TcpProxy]
) -> None:
    """FAILURES T14: one run each and no crash counted, with all daemons cut off for 5 seconds, the lease being 3."""
    outlast_an_outage(make_deployment("mysql"), tcp_proxies, tasks=20, seconds=5.0)


def outlast_an_outage(deployment: Deployment, proxies: list[TcpProxy], *, tasks: int, seconds: float) -> None:
    """Cut the daemons off from the database while ``tasks`` run; some end meanwhile, some later.

    The scheduler finds the database again before the worker does, with every lease long over.
    """
    url = sa.make_url(deployment.database)
    upstream = (url.host or "127.0.0.1", url.port or {"postgresql": 5432, "mysql": 3306}[url.get_backend_name()])
    daemons = {}
    for kind in ("scheduler", "worker"):
        proxies.append(proxy := TcpProxy(*upstream))
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        options: Options = {("database", "connection"): through, (None, "executor_thread_pool_size"): tasks}
        daemons[kind] = deployment.start(kind, options)
    scheduler, worker = daemons["scheduler"], daemons["worker"]
    early, late = deployment.directory / "early", deployment.directory / "late"
    for path in (early, late):
        path.touch()
    ids = deployment.submit(tasks // 2, steps=[f"hold {early}"]) + deployment.submit(tasks // 2, steps=[f"hold {late}"])
    eventually(lambda: len(starts(deployment)) == tasks, "all run")
    for proxy in proxies:
        proxy.refuse()
    worker.wait_for_log("Leases cannot be renewed")
    early.unlink()
    eventually(lambda: len(deployment.runs("end")) == tasks // 2, "half of them end")
    # Long enough for every lease to run out; nothing can be waited for while the database is away.
    time.sleep(seconds)
    before = seen_at(deployment, "scheduler")
    proxies[-2].resume()
    eventually(lambda: seen_at(deployment, "scheduler") != before, "the scheduler ticks again")
    proxies[-1].resume()
    worker.wait_for_log("Leases are renewed again")
    late.unlink()
    assert deployment.wait_until_ended() == {ACTIVE: tasks}
    assert starts(deployment) == Counter(ids)
    assert {run.crash_count for run in deployment.runs()} == {0}
    for order_id in ids:
        assert [event.event for event in deployment.history(order_id)] == ["submitted", "done"]
    assert "is recovered" not in scheduler.log()
    for daemon in (worker, scheduler):
        daemon.terminate()
        assert daemon.wait() == 0


def seen_at(deployment: Deployment, kind: str) -> object:
    with deployment.engine.connect() as connection:
        return connection.execute(sa.text("SELECT seen_at FROM daemon_processes WHERE kind = :k"), {"k": kind}).scalar()


@pytest.mark.slow
def test_calls_that_never_return_cost_their_worker_and_not_their_orders(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """``max_run_seconds``: recovered as crashes; a worker without any thread left drains, is not held up by them, and
    exits with 4; the next one goes on.
    """
    deployment = make_deployment("sqlite")
    hold = deployment.directory / "hold"
    hold.touch()
    options: Options = {**SHORT, ("lease", "max_run_seconds"): 2.0, (None, "executor_thread_pool_size"): 2}
    deployment.start("scheduler", SHORT, ready=False)
    worker = deployment.start("worker", options)
    deployment.submit(2, steps=[f"hold {hold}"])
    assert worker.wait() == 4
    assert worker.log().count("has run longer than [lease] max_run_seconds") == 2
    assert "no thread is left" in worker.log()
    Path(hold).unlink()
    deployment.start("worker", options)
    assert deployment.wait_until_ended() == {ACTIVE: 2}
    assert max(run.crash_count for run in deployment.runs()) == 1
    for count in starts(deployment).values():
        assert count == 2
