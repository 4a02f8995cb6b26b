"""What a worker does with rows and messages that cannot be right, and with clients that know nothing of leases."""

import json
import logging
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model.orders import ACTIVE, ERROR
from retryflow.model.tables import order_task_leases, orders
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Done, Outcome
from tests.fixtures.contract import Desk
from tests.fixtures.order_worker import OrderWorker

_leases = order_task_leases.c
METHODS = ("process_type_order", "check_certificate_status", "update_order", "run_task")


# --- bad rows (FAILURES S3 and T15) ---


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("kwargs", "{broken", "kwargs"),
        ("kwargs", "[]", "kwargs"),
        ("kwargs", '"text"', "kwargs"),
        ("kwargs", "", "kwargs"),
        ("kwargs", "[" * 100_000, "kwargs"),
        ("args", "{}", "args"),
        ("args", "nonsense", "args"),
        ("args", "null", "args"),
        ("args", '["more", "than", "it", "takes"]', "do not fit"),
    ],
)
def test_a_row_with_bad_arguments_ends_its_order_with_one_warning(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, column: str, value: str, reason: str
) -> None:
    order_id = desk.submit()
    desk.write(order_task_leases.update().where(_leases.order_id == order_id).values({column: value}))
    with caplog.at_level(logging.WARNING):
        assert worker.run(desk, order_id) == "acknowledged"
    order = desk.order(order_id)
    assert (order.status, reason in order.error_reason) == (ERROR, True), order.error_reason
    assert desk.is_moving(order_id)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert value not in caplog.text or not value


@pytest.mark.parametrize("meta", ["{broken", "[1]", '"text"', "7", ""])
def test_an_order_with_broken_meta_ends_with_one_warning(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, meta: str
) -> None:
    order_id = desk.submit()
    with desk.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET meta = :m WHERE id = :i"), {"m": meta, "i": order_id})
    with caplog.at_level(logging.WARNING):
        worker.run(desk, order_id)
    assert "meta" in desk.order(order_id).error_reason
    assert len(caplog.records) == 1


def test_an_order_without_meta_runs(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    desk.write(orders.update().where(orders.c.id == order_id).values(meta=None))
    worker.run(desk, order_id)
    assert desk.order(order_id).status == ACTIVE


def test_an_unknown_task_is_tried_again_without_counting(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer worker may know it."""
    order_id = desk.submit()
    desk.write(order_task_leases.update().where(_leases.order_id == order_id).values(task="from_the_future"))
    with caplog.at_level(logging.WARNING):
        worker.run(desk, order_id)
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.retry_count, row.retry_since is not None) == ("from_the_future", 0, True)
    assert "from_the_future" in row.last_error
    assert len(caplog.records) == 1
    worker.type.steps["from_the_future"] = lambda context, order, **kwargs: Done()
    desk.dispatch(order_id)
    worker.run(desk, order_id)
    assert desk.order(order_id).status == ACTIVE


def test_an_unknown_order_type_ends_in_error_with_the_reason(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit(order_type="nobody_offers_it")
    worker.run(desk, order_id)
    assert (desk.order(order_id).status, desk.order(order_id).error_status_code) == (ERROR, "400")
    assert "nobody_offers_it" in desk.order(order_id).error_reason


def test_t15_rows_with_fewer_and_more_arguments_run(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T15: rows of the previous and of the next version."""
    got: list[dict[str, Any]] = []

    def run(context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        got.append(kwargs)
        return Done()

    worker.type.steps["process_type_order"] = run
    for kwargs in ({}, {"order_id": "x"}, {"order_id": "x", "project_id": "p", "updated_meta": {}, "new": [1]}):
        order_id = desk.submit()
        desk.write(order_task_leases.update().where(_leases.order_id == order_id).values(kwargs=json.dumps(kwargs)))
        worker.run(desk, order_id)
        assert desk.order(order_id).status == ACTIVE
    assert got == [{}, {}, {"new": [1]}]


def test_t15_messages_with_fewer_and_more_arguments_run(desk: Desk, worker: OrderWorker) -> None:
    """FAILURES T15: messages of the previous and of the next version."""
    for method in METHODS:
        for more in ({}, {"project_id": None}, {"request_id": "r", "project_id": "p", "priority": 3, "trace": {}}):
            order_id = desk.submit()
            task_id = desk.lease(order_id).id
            assert worker.deliver(method, order_id=order_id, task_id=task_id, **more) == "acknowledged"
            assert desk.order(order_id).status == ACTIVE


# --- bad messages ---


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"order_id": None},
        {"order_id": 7, "task_id": 8},
        {"order_id": ["x"], "task_id": "x"},
        {"order_id": "x" * 5_000_000},
        {"order_id": "x" * 37, "task_id": None},
        {"order_id": "NUL \x00"},
        {"order_id": "lone \ud800"},
        {"order_id": "x", "task_id": "NUL \x00"},
        {"order_id": "x", "task_id": "lone \ud800"},
        {"order_id": "x", "task_id": "x" * 5_000_000},
        {"order_id": "x", "task_id": {"a": 1}},
        {"order_id": "unknown"},
        {"order_id": "unknown", "request_id": {"a": 1}},
        {"order_id": "unknown", "request_id": "NUL \x00"},
        {"order_id": "unknown\nCRITICAL gone\x1b", "updated_meta": {}},
        {"order_id": "unknown", "task_id": "unknown"},
    ],
    ids=lambda arguments: repr(arguments)[:30],
)
def test_a_message_that_is_no_ticket_is_dropped_and_never_comes_back(
    worker: OrderWorker, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any]
) -> None:
    """One that is handed back comes again at once and for ever (promise P8)."""
    for method in METHODS:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert worker.deliver(method, **arguments) is None
        assert len(caplog.records) <= 1
        assert all(record.getMessage().isprintable() for record in caplog.records)
        assert len(caplog.text) < 1000
    assert not worker.manager.keeper.suspects


def test_a_foreign_message_with_an_odd_request_id_is_admitted(desk: Desk, worker: OrderWorker) -> None:
    for request_id in ("lone \ud800", "NUL \x00", "two\nlines\x1b", "x" * 5000, 7, None):
        order_id = desk.submit()
        desk.write(sa.delete(order_task_leases).where(_leases.order_id == order_id))
        assert worker.deliver("process_type_order", order_id=order_id, request_id=request_id) is None
        [row] = desk.rows(order_id)
        assert row.request_id is None or row.request_id.isprintable()


# --- clients that know nothing of leases ---


def test_upstreams_messages_make_a_row_and_wake_the_scheduler(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit()
    desk.write(sa.delete(order_task_leases).where(_leases.order_id == order_id))
    for _ in range(3):
        assert worker.deliver("process_type_order", order_id=order_id, project_id="p1", request_id="req") is None
    [row] = desk.rows(order_id)
    assert (row.retry_task, row.request_id, worker.bell.rung) == ("process_type_order", "req", 1)


def test_upstreams_update_brings_its_meta_along(desk: Desk, worker: OrderWorker) -> None:
    order_id = desk.submit(version=1)
    arguments = {"order_id": order_id, "project_id": "p1", "updated_meta": {"version": 2}, "request_id": "req"}
    assert worker.deliver("update_order", **arguments) is None
    assert desk.order(order_id).meta == {"version": 2}
    assert [row.retry_task for row in desk.rows(order_id)] == ["update_order"]


@pytest.mark.parametrize("meta", [[1], "text", 7, {"a": float("nan")}])
def test_upstreams_update_with_odd_meta_is_dropped_with_one_warning(
    desk: Desk, worker: OrderWorker, caplog: pytest.LogCaptureFixture, meta: object
) -> None:
    order_id = desk.submit(version=1)
    assert worker.deliver("update_order", order_id=order_id, project_id="p1", updated_meta=meta) is None
    assert (desk.order(order_id).meta, desk.rows(order_id)) == ({"version": 1}, [])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
