"""The scheduler's promises with real processes: killed, paused, stopped, and cut off from their broker."""

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from retryflow.errors import WrongOrderState
from retryflow.model.clock import now
from retryflow.model.tables import entity_locks, order_retry_tasks
from retryflow.model.tables import orders as orders_table
from retryflow.retry.steer import update_order
from retryflow.retry.submit import NewOrder, submit
from retryflow.service.status import ExitStatus
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually
from tests.fixtures.tcp_proxy import TcpProxy

EMPTY = {"order_retry_tasks": 0, "order_task_leases": 0, "entity_locks": 0}
# A lease that nobody claims has its ticket sent again after two periods; with this one that is not in the test's time.
LONG_PERIOD = {("scheduler", "schedule_period_seconds"): 60.0}
LOCK_TIMEOUT = {
    ("scheduler", "retry_lock_timeout_seconds"): 2.0,
    ("scheduler", "batch_timeout_seconds"): 0.9,
    ("queue", "publish_timeout_seconds"): 0.8,
}


def due_rows(deployment: Deployment, count: int = 1, *, late_seconds: float = 1.0, **values: Any) -> list[str]:
    """Orders with a due retry row each, in one transaction.

    :returns: the rows' ids, which will be their leases'.
    """
    meta = {"trace": str(deployment.trace), "steps": ["done"]}
    new = [{"id": str(uuid.uuid4()), "type": "probe", "meta": meta, "status": "PENDING"} for _ in range(count)]
    rows = [
        {
            "id": str(uuid.uuid4()),
            "order_id": order["id"],
            "retry_task": "process_type_order",
            "retry_args": "[]",
            "retry_kwargs": json.dumps({"order_id": order["id"]}),
            **values,
        }
        for order in new
    ]
    with deployment.engine.begin() as connection:
        connection.execute(orders_table.insert().values(created_at=now(), updated_at=now()), new)
        statement = order_retry_tasks.insert().values(retry_at=now(-late_seconds), created_at=now())
        connection.execute(statement, rows)
    return [str(row["id"]) for row in rows]


def tickets(deployment: Deployment) -> list[str]:
    """Take all tickets out of the workers' queue.

    :returns: their task ids.
    """
    found = []
    with deployment.rabbit.channel() as channel:
        while message := channel.basic_get(deployment.rabbit.topic, no_ack=True):
            body = json.loads(json.loads(message.body)["oslo.message"])
            found.append(str(body["args"]["task_id"]))
    return found


def list_is_empty(deployment: Deployment) -> bool:
    return deployment.left()["order_retry_tasks"] == 0


def lock_holder(deployment: Deployment) -> str | None:
    with deployment.engine.connect() as connection:
        return connection.execute(sa.select(entity_locks.c.worker_host_name)).scalar_one_or_none()


def pid_of(holder: str) -> int:
    return int(holder.split(":")[1])


@pytest.mark.parametrize(("schedulers", "kind"), [(1, "sqlite"), (2, "mysql"), (5, "postgresql")])
@pytest.mark.slow
def test_s1_sends_are_as_many_as_rows_while_schedulers_are_killed(
    make_deployment: Callable[[str], Deployment], schedulers: int, kind: str
) -> None:
    """S1: one is killed again and again, each time when it has just committed a batch or is about to send it."""
    deployment = make_deployment(kind)
    deployment.rabbit.declare()
    rows = due_rows(deployment, 200)
    options = {("scheduler", "batch_size"): 20, **LOCK_TIMEOUT, **LONG_PERIOD}
    faults = ["dispatch.before_commit=kill@3", "send.after=kill@2", "tick.locked=kill@1"]
    for number in range(schedulers):
        deployment.start(
            "scheduler", options, faults=faults[number % 3] if number < schedulers - 1 else "", ready=False
        )
    eventually(lambda: list_is_empty(deployment), "all rows are dispatched", timeout_seconds=60)
    eventually(lambda: deployment.rabbit.ready() >= 200, "all tickets are in the queue", timeout_seconds=60)
    deployment.daemons.close()
    assert sorted(tickets(deployment)) == sorted(rows)


@pytest.mark.slow
def test_500_due_rows_and_5_schedulers_three_of_them_killed_make_500_runs(deployment: Deployment) -> None:
    """S1, S4: the issue's own words: 500 runs, 500 ACTIVE."""
    due_rows(deployment, 500)
    options = {("scheduler", "batch_size"): 25, **LOCK_TIMEOUT}
    deployment.start("worker", {(None, "executor_thread_pool_size"): 8})
    schedulers = [deployment.start("scheduler", options, ready=False) for _ in range(5)]
    chooser = random.Random(os.getpid())
    for victim in chooser.sample(schedulers, 3):
        before = len(deployment.runs("start"))
        eventually(
            lambda before=before: len(deployment.runs("start")) >= min(before + chooser.randrange(1, 100), 480),
            "the work goes on",
            timeout_seconds=60,
        )
        victim.kill()
    assert deployment.wait_until_ended(timeout_seconds=120) == {"ACTIVE": 500}
    runs = Counter(run.order_id for run in deployment.runs("start"))
    assert (len(runs), set(runs.values())) == (500, {1})
    deployment.wait_until_nothing_is_left()


def test_s9_after_a_kill_the_next_one_takes_over_within_the_locks_time_and_names_the_dead(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """S9, S8: both run on one host; a clean stop, on the other hand, leaves no lock at all."""
    deployment = make_deployment("mysql")
    options = {**LOCK_TIMEOUT, ("scheduler", "batch_size"): 5}
    deployment.rabbit.declare()
    due_rows(deployment, 20)
    victim = deployment.start("scheduler", options, faults="dispatch.before_commit=kill@2", ready=False)
    assert victim.wait() == -signal.SIGKILL
    dead = lock_holder(deployment)
    assert dead is not None
    assert pid_of(dead) == victim.pid
    successor = deployment.start("scheduler", options, ready=False)
    [match] = successor.wait_for_log(r"Took over the lock on the retry list from (\S+), which had not touched it for")
    assert match[1] == dead
    eventually(lambda: list_is_empty(deployment), "the successor works")
    successor.terminate()
    assert successor.wait() == ExitStatus.DRAINED
    assert lock_holder(deployment) is None


def test_s6_a_holder_paused_beyond_the_locks_time_commits_nothing_afterwards_and_says_so(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """S5, S6: SIGSTOP in the middle of a tick, another takes over and works, SIGCONT."""
    deployment = make_deployment("postgresql")
    options = {**LOCK_TIMEOUT, **LONG_PERIOD, ("scheduler", "batch_size"): 5}
    deployment.rabbit.declare()
    rows = due_rows(deployment, 20)
    gate = deployment.directory / "gate"
    paused = deployment.start("scheduler", options, faults=f"dispatch.after_commit=pause:{gate}@2", ready=False)
    eventually(gate.exists, "it is between the commit of its second batch and the sending")
    paused.send(signal.SIGSTOP)
    gate.unlink()
    before = lock_holder(deployment)
    assert before is not None
    assert pid_of(before) == paused.pid
    other = deployment.start("scheduler", options, ready=False)
    other.wait_for_log(r"Took over the lock on the retry list from " + re.escape(before))
    eventually(lambda: list_is_empty(deployment), "the other one works")
    eventually(lambda: lock_holder(deployment) is None, "the other one is done")
    other.terminate()
    assert other.wait() == ExitStatus.DRAINED
    rows += due_rows(deployment, 10)
    paused.send(signal.SIGCONT)
    paused.wait_for_log(r"the lock on the retry list was taken over from " + re.escape(before) + "; this tick stops")
    # Its next tick takes the lock anew, and then it may.
    eventually(lambda: list_is_empty(deployment), "the next tick")
    paused.terminate()
    assert paused.wait() == ExitStatus.DRAINED
    # The second batch was committed before the pause: its tickets are sent late, under the ids of their leases.
    assert sorted(tickets(deployment)) == sorted(rows)


def test_s3_broken_rows_end_in_error_and_the_others_go_on(make_deployment: Callable[[str], Deployment]) -> None:
    """S3: arguments that are no JSON, or no arguments, in front of good rows: their orders end in ERROR."""
    deployment = make_deployment("sqlite")
    bad = [
        due_rows(deployment, late_seconds=60.0, retry_kwargs="{broken"),
        due_rows(deployment, late_seconds=60.0, retry_args="not a list"),
        due_rows(deployment, late_seconds=60.0, retry_kwargs='["no object"]'),
    ]
    [unknown] = due_rows(deployment, late_seconds=60.0, retry_task="task_of_a_newer_version")
    due_rows(deployment, 10)
    deployment.start("worker")
    deployment.start("scheduler", {("scheduler", "batch_size"): 2})
    eventually(lambda: deployment.statuses() == {"ACTIVE": 10, "ERROR": 3, "PENDING": 1}, "all but one have ended")
    with deployment.engine.connect() as connection:
        columns = orders_table.c
        reasons = connection.execute(sa.select(columns.error_reason).where(columns.status == "ERROR")).scalars().all()
    assert len(bad) == len(reasons)
    assert all(reasons)
    eventually(lambda: _last_error(deployment, "task_of_a_newer_version"), "the unknown task is tried again")
    assert unknown not in [run.task_id for run in deployment.runs("start")]


def _last_error(deployment: Deployment, task: str) -> str | None:
    columns = order_retry_tasks.c
    with deployment.engine.connect() as connection:
        return connection.execute(sa.select(columns.last_error).where(columns.retry_task == task)).scalar()


@pytest.mark.slow
def test_s10_no_error_reaches_anyone_while_schedulers_workers_and_clients_meet(deployment: Deployment) -> None:
    """S10: 4 schedulers, 2 workers whose tasks write rows, and clients that submit and update all the while."""
    options = {("scheduler", "batch_size"): 10, ("scheduler", "schedule_period_seconds"): 0.2}
    daemons = [deployment.start("worker"), deployment.start("worker", ready=False)]
    daemons += [deployment.start("scheduler", options, ready=False) for _ in range(4)]
    meta = {"trace": str(deployment.trace), "steps": ["poll 0", "retry 0|poll 0", "done"]}
    ended: list[BaseException | None] = []

    def client() -> None:
        try:
            for _ in range(4):
                ids = submit(deployment.engine, [NewOrder(type="probe", meta=meta)] * 5, settings=deployment.settings)
                for order_id in ids[::2]:
                    with contextlib.suppress(WrongOrderState):
                        update_order(deployment.engine, order_id, meta)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    clients = [threading.Thread(target=client) for _ in range(3)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(120)
    assert ended == [None] * 3
    assert deployment.wait_until_ended(timeout_seconds=120) == {"ACTIVE": 60}
    # The workers first: a wake-up that meets the end of the last scheduler's queue is an error of the driver's.
    for daemon in daemons[:2]:
        daemon.terminate()
        daemon.wait()
    for daemon in daemons[2:]:
        daemon.terminate()
    for daemon in daemons:
        assert daemon.wait() == ExitStatus.DRAINED
        assert not re.search(r"Traceback|ERROR|refused a transaction|The tick failed", daemon.log()), daemon.log()
    assert deployment.left() == EMPTY


def _through_proxy(deployment: Deployment, proxies: list[TcpProxy]) -> tuple[TcpProxy, dict[Any, Any]]:
    parts = urlsplit(deployment.rabbit.url)
    proxy = TcpProxy(parts.hostname or "127.0.0.1", parts.port or 5672)
    proxies.append(proxy)
    return proxy, {(None, "transport_url"): deployment.rabbit.through(proxy.port).url}


@pytest.mark.parametrize("manner", ["refuse", "stall"])
def test_s11_with_the_broker_away_rows_are_kept_and_a_stop_takes_effect(
    make_deployment: Callable[[str], Deployment], tcp_proxies: list[TcpProxy], manner: str
) -> None:
    """S11: bounded sends, no lock held for ever, SIGTERM works meanwhile, back to work when the broker is."""
    deployment = make_deployment("postgresql")
    proxy, options = _through_proxy(deployment, tcp_proxies)
    options |= {("scheduler", "batch_size"): 5, ("queue", "publish_timeout_seconds"): 2.0}
    deployment.rabbit.declare()
    stopped = deployment.start("scheduler", {**options, ("queue", "publish_timeout_seconds"): 8.0})
    scheduler = deployment.start("scheduler", options)
    getattr(proxy, manner)()
    rows = due_rows(deployment, 50)
    eventually(lambda: deployment.left()["order_task_leases"], "one of them tries to send")
    began = time.monotonic()
    stopped.terminate()
    assert stopped.wait() == ExitStatus.DRAINED
    # Far from a measurement: the time-out of its sends is eight seconds.
    assert time.monotonic() - began < 7.0
    scheduler.wait_for_log(r"tickets were not confirmed|not confirmed by the broker", timeout=60)
    left = deployment.left()
    assert left["order_retry_tasks"] + left["order_task_leases"] == 50
    eventually(lambda: lock_holder(deployment) is None, "no lock is held while the broker is away")
    proxy.resume()
    eventually(lambda: list_is_empty(deployment), "back to work", timeout_seconds=60)
    eventually(lambda: deployment.rabbit.ready() >= 50, "all tickets are in the queue", timeout_seconds=60)
    assert set(tickets(deployment)) == set(rows)
    scheduler.terminate()
    assert scheduler.wait() == ExitStatus.DRAINED


def test_s12_a_stop_in_a_large_tick_ends_after_the_batch_and_nothing_is_sent_after_the_exit(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """S12: still sending 100 s after SIGTERM elsewhere (LP 1701495)."""
    deployment = make_deployment("mysql")
    deployment.rabbit.declare()
    rows = due_rows(deployment, 500)
    gate = deployment.directory / "gate"
    scheduler = deployment.start(
        "scheduler", {("scheduler", "batch_size"): 50}, faults=f"dispatch.after_commit=pause:{gate}@3", ready=False
    )
    eventually(gate.exists, "it is in its third batch")
    scheduler.terminate()
    scheduler.wait_for_log("Graceful shutdown: stopping because of SIGTERM")
    gate.unlink()
    assert scheduler.wait() == ExitStatus.DRAINED
    left = deployment.left()
    assert left == {"order_retry_tasks": 350, "order_task_leases": 150, "entity_locks": 0}
    sent = tickets(deployment)
    assert len(sent) == 150
    assert set(sent) < set(rows)
    scheduler.wait_for_log(r"Retry list: 150 dispatched")
    assert deployment.rabbit.ready() == 0


def test_s13_an_error_in_a_tick_ends_neither_the_ticking_nor_the_process(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """S13: one exception in a tick ended the ticking elsewhere (Barbican 02dc4cdb)."""
    deployment = make_deployment("sqlite")
    deployment.rabbit.declare()
    scheduler = deployment.start("scheduler", {("scheduler", "schedule_period_seconds"): 0.3})
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE order_retry_tasks RENAME TO hidden")
    scheduler.wait_for_log(r"The tick failed; the next one comes", count=2)
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE hidden RENAME TO order_retry_tasks")
    [row] = due_rows(deployment)
    eventually(lambda: deployment.rabbit.ready() == 1, "the next tick comes")
    assert tickets(deployment) == [row]
    assert scheduler.process.poll() is None


def test_connections_killed_between_two_ticks_are_survived(make_deployment: Callable[[str], Deployment]) -> None:
    """T13: the daemon says so at most once, and goes on."""
    deployment = make_deployment("mysql")
    deployment.rabbit.declare()
    scheduler = deployment.start("scheduler")
    seen: list[str] = []

    def sent(row: str) -> bool:
        # A ticket that nobody takes is sent again after a while: there may be older ones too.
        seen.extend(tickets(deployment))
        return row in seen

    for _ in range(3):
        with deployment.engine.connect() as connection:
            query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            for number in connection.exec_driver_sql(query).scalars().all():
                with contextlib.suppress(Exception):
                    connection.exec_driver_sql(f"KILL {number}")
        [row] = due_rows(deployment)
        eventually(lambda row=row: sent(row), "it goes on")
    assert "Traceback" not in scheduler.log()
