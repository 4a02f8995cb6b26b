"""Tickets that are copied, lost, forged or none at all, with real daemons on a real broker (FAILURES T3, T8, T15)."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model.orders import ACTIVE, ERROR, PENDING
from retryflow.queue.client import TaskClient
from retryflow.queue.transport import get_transport
from retryflow.retry.sending import Ticket
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually, overriding


@contextmanager
def task_client(deployment: Deployment) -> Iterator[TaskClient]:
    with overriding(deployment.rabbit.overrides) as conf:
        transport = get_transport(conf)
        client = TaskClient(transport, conf)
        try:
            yield client
        finally:
            client.close()
            transport.cleanup()


def waiting_tickets(deployment: Deployment) -> list[Ticket]:
    statement = sa.text("SELECT id, order_id, task FROM order_task_leases WHERE holder IS NULL")
    with deployment.engine.connect() as connection:
        return [Ticket(row.id, row.order_id, row.task, "p1", None, 60.0) for row in connection.execute(statement)]


def forget_leases(deployment: Deployment, order_ids: list[str]) -> None:
    """What upstream's client leaves: an order, and nothing of ours beside it."""
    with deployment.engine.begin() as connection:
        for order_id in order_ids:
            connection.execute(sa.text("DELETE FROM order_task_leases WHERE order_id = :i"), {"i": order_id})


def test_t3_fifty_copies_of_each_ticket_give_one_run_each(make_deployment: Callable[[str], Deployment]) -> None:
    """FAILURES T3: delivered to three workers at once, while the tasks run and after their ends."""
    deployment = make_deployment("mysql")
    workers = [deployment.start("worker", ready=False) for _ in range(3)]
    eventually(lambda: deployment.consumers() == 3, "three workers consume", timeout_seconds=60)
    ids = deployment.submit(4, steps=["sleep 0.3"])
    tickets = waiting_tickets(deployment)
    assert len(tickets) == 4
    with task_client(deployment) as client:
        assert client.send(tickets * 50, timeout_seconds=30.0) == set()
        assert deployment.wait_until_ended() == {ACTIVE: 4}
        assert client.send(tickets * 10, timeout_seconds=30.0) == set()
    eventually(lambda: deployment.rabbit.ready() == 0, "all copies are consumed")
    for worker in workers:
        worker.terminate()
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert Counter(run.order_id for run in deployment.runs("start")) == Counter(ids)
    for order_id in ids:
        assert [event.event for event in deployment.history(order_id)] == ["submitted", "done"]


def test_t8_upstreams_client_is_served_and_its_doubled_messages_do_nothing(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T8 and T15: clients that know nothing of leases; follow-ons through the real RPC methods."""
    deployment = make_deployment("postgresql")
    deployment.start("worker", ready=False)
    deployment.start("scheduler")
    eventually(lambda: deployment.consumers() == 1, "the worker consumes")
    first = deployment.submit(steps=["poll 0.2", "retry 0|done"])[0]
    hold = deployment.directory / "hold"
    hold.touch()
    second = deployment.submit(steps=[f"hold {hold}"], version=1)[0]
    forget_leases(deployment, [first, second])
    with task_client(deployment) as client:
        for _ in range(5):
            client.process_type_order(first, "p1", "req-first")
            client.process_type_order(second, "p1", "req-second")
        eventually(lambda: any(run.order_id == second for run in deployment.runs("start")), "the second runs")
        steps = [f"hold {hold}"]
        client.update_order(second, "p1", {"trace": str(deployment.trace), "steps": steps, "version": 2}, "req-update")
        client.check_certificate_status("no-such-order", "p1", "req-nobody")
        eventually(lambda: deployment.order(second).meta["version"] == 2, "the update is in the order")
        hold.unlink()
        assert deployment.wait_until_ended() == {ACTIVE: 2}
        for order_id in (first, second):
            client.process_type_order(order_id, "p1", "late")
            client.check_certificate_status(order_id, "p1", "late")
    eventually(lambda: deployment.rabbit.ready() == 0, "all messages are consumed")
    assert [(run.step, run.retry_count) for run in deployment.runs("start") if run.order_id == first] == [
        (0, 0),
        (1, 0),
        (1, 1),
    ]
    assert len([run for run in deployment.runs("start") if run.order_id == second]) == 1
    deployment.wait_until_nothing_is_left()


def _message(method: object, arguments: object, **more: object) -> str:
    """A message as oslo.messaging makes it."""
    inner = {
        "method": method,
        "args": arguments,
        "version": "1.1",
        "namespace": "barbican",
        "_unique_id": "x",
        "_context_request_id": "req-x",
        **more,
    }
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(inner)})


def test_messages_that_are_no_tickets_are_dropped_and_the_next_order_runs(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """Promise P8: each is dropped once, none comes back, the worker goes on."""
    deployment = make_deployment("sqlite")
    worker = deployment.start("worker")
    kind = {"content_type": "application/json", "content_encoding": "utf-8"}
    odd: list[tuple[bytes | str, dict[str, str]]] = [
        (b"\x00\xff garbage \xfe", {}),
        (b"\x00\xff garbage", kind),
        (b"", kind),
        ("{", kind),
        ("null", kind),
        ("[[[[", kind),
        ("[" * 100_000, kind),
        (json.dumps({"oslo.version": "2.0", "oslo.message": "{"}), kind),
        (json.dumps({"oslo.version": "2.0", "oslo.message": 7}), kind),
        ("x" * 10_000_000, kind),
        (_message("process_type_order", {"order_id": "x" * 5_000_000, "task_id": "y"}), kind),
        (_message("process_type_order", {"order_id": "\x00", "task_id": "\ud800"}, _unique_id="u1"), kind),
        (_message("process_type_order", {"order_id": "\ud800"}, _unique_id="u2"), kind),
        (_message("process_type_order", {"order_id": {"a": 1}, "task_id": []}, _unique_id="u3"), kind),
        (_message("process_type_order", {}, _unique_id="u4"), kind),
        (_message("process_type_order", [], _unique_id="u5"), kind),
        (_message("run_task", {"order_id": "x", "task_id": "y", "context": 1, "self": 2}, _unique_id="u14"), kind),
        (_message("process_type_order", None, _unique_id="u6"), kind),
        (_message("no_such_method", {"order_id": "x"}, _unique_id="u7"), kind),
        (_message("init_host", {}, _unique_id="u8"), kind),
        (_message("__class__", {}, _unique_id="u9"), kind),
        (_message(7, {}, _unique_id="u10"), kind),
        (_message("run_task", {"order_id": "x", "task_id": "unknown"}, version="9.0", _unique_id="u11"), kind),
        (_message("run_task", {"order_id": "x", "task_id": "unknown"}, namespace=None, _unique_id="u12"), kind),
        (_message("update_order", {"order_id": "x", "updated_meta": "text"}, _unique_id="u13"), kind),
    ]
    for body, properties in odd:
        deployment.rabbit.publish(body, **properties)
    # With the last of them the worker is through; this one says when.
    [order_id] = deployment.submit(steps=["sleep 0.1"])
    with task_client(deployment) as client:
        assert client.send(waiting_tickets(deployment), timeout_seconds=10.0) == set()
    assert deployment.wait_until_ended() == {ACTIVE: 1}
    eventually(lambda: deployment.rabbit.ready() == 0, "the queue is empty")
    worker.terminate()
    assert worker.wait() == 0
    # Nothing was in its hands that it could not judge and gave back.
    assert deployment.rabbit.ready() == 0
    assert max(len(line.text) for line in worker.lines()) < 2000
    warnings = [line.text for line in worker.lines() if " WARNING " in line.text]
    assert len(warnings) <= len(odd)
    assert "Traceback" not in worker.log(), worker.log()[-5000:]
    assert deployment.order(order_id).status == ACTIVE


@pytest.mark.slow
def test_lost_tickets_are_sent_again_in_the_middle_of_many_orders(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """The queue is purged while 200 orders are on their way; tests/chaos does the same with 1,000."""
    lose_all_tickets(make_deployment("postgresql"), orders=200)


def lose_all_tickets(deployment: Deployment, *, orders: int) -> None:
    """Purge the queue twice while orders are being worked on."""
    options: dict[tuple[str | None, str], Any] = {
        ("scheduler", "ticket_resend_seconds"): 2.0,
        ("scheduler", "ticket_resend_maximum_seconds"): 4.0,
    }
    deployment.start("scheduler", options, ready=False)
    deployment.start("worker", options)
    ids = deployment.submit(orders, steps=["poll 0", "sleep 0.01"])
    lost = 0
    for _ in range(2):
        eventually(lambda: deployment.rabbit.ready() > orders // 4, "tickets wait", timeout_seconds=60)
        lost += deployment.rabbit.ready()
        deployment.rabbit.purge()
    assert deployment.wait_until_ended(timeout_seconds=120) == {ACTIVE: orders}
    assert Counter((run.order_id, run.step) for run in deployment.runs("start")) == Counter(
        (order_id, step) for order_id in ids for step in (0, 1)
    )
    print(f"{lost} tickets lost on the way of {orders} orders")


def test_bad_rows_end_their_orders_and_nothing_else(make_deployment: Callable[[str], Deployment]) -> None:
    """Promise P8 and FAILURES T15, through daemons: damaged rows in front of good ones."""
    deployment = make_deployment("mysql")
    ids = deployment.submit(12, steps=["done"])
    damage = [
        "UPDATE order_task_leases SET kwargs = '{broken' WHERE order_id = :i",
        "UPDATE order_task_leases SET kwargs = '[]' WHERE order_id = :i",
        "UPDATE order_task_leases SET args = '{}' WHERE order_id = :i",
        "UPDATE order_task_leases SET args = '[1, 2, 3]' WHERE order_id = :i",
        "UPDATE orders SET meta = 'broken' WHERE id = :i",
        "UPDATE orders SET type = 'unknown' WHERE id = :i",
        "UPDATE order_task_leases SET task = 'from_the_future' WHERE order_id = :i",
    ]
    with deployment.engine.begin() as connection:
        for order_id, statement in zip(ids, damage, strict=False):
            connection.execute(sa.text(statement), {"i": order_id})
    deployment.start("worker", {("retry", "give_up_after_seconds"): 1.0}, ready=False)
    deployment.start("scheduler", ready=False)
    assert deployment.wait_until_ended() == {ERROR: len(damage), ACTIVE: 12 - len(damage)}
    reasons = [deployment.order(order_id).error_reason for order_id in ids[: len(damage)]]
    assert [PENDING not in reason and len(reason) > 10 for reason in reasons] == [True] * len(damage)
    assert "gave up retrying" in reasons[-1]
    deployment.wait_until_nothing_is_left()
