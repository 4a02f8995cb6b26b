"""What the lists show, on a database that is empty and on one with an order in each state."""

import re
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model import listing
from retryflow.model.transaction import read
from tests.fixtures.busy import Busy, plain
from tests.fixtures.command import Command

COUNTS = {"retry_count": 0, "poll_count": 0, "crash_count": 0}


@pytest.mark.parametrize("words", ["order list", "retry list", "lease list", "worker list"])
def test_an_empty_database_has_empty_lists_and_says_so_to_people(retryflow: Command, empty: str, words: str) -> None:
    assert retryflow(*words.split(), "-f", "json", database=empty).json == []
    answer = retryflow(*words.split(), database=empty)
    assert (answer.status, answer.out, len(answer.err.splitlines())) == (0, "", 1)


def test_orders_are_listed_newest_first_with_their_next_step(retryflow: Command, busy: Busy) -> None:
    rows = plain(retryflow("order", "list", "-f", "json", database=busy.url).json)
    assert [(row["id"], row["status"]) for row in rows] == [
        ("failed", "ERROR"),
        ("done", "ACTIVE"),
        ("stuck", "PENDING"),
        ("polls", "PENDING"),
        ("lost", "PENDING"),
        ("runs", "PENDING"),
        ("waits", "PENDING"),
    ]
    steps = {row["id"]: [step["step"] for step in row["next_step"]] for row in rows}
    assert steps == {
        "failed": [],
        "done": [],
        "stuck": [],
        "polls": ["retry"],
        "lost": ["lost with its worker"],
        "runs": ["runs"],
        "waits": ["waits for a worker"],
    }
    assert rows[0] == {
        "id": "failed",
        "status": "ERROR",
        "type": "certificate",
        "project_id": "p1",
        "sub_status": None,
        "created_at": "TIME",
        "updated_at": "TIME",
        "next_step": [],
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--status", "error"], ["failed"]),
        (["--status", "ERROR", "--status", "ACTIVE"], ["failed", "done"]),
        (["--type", "certificate", "--limit", "2"], ["failed", "done"]),
        (["--type", "other"], []),
        (["--project", "p2"], []),
        (["--older-than", "14m30s"], ["runs", "waits"]),
        (["--newer-than", "11m30s"], ["failed", "done"]),
        (["--oldest-first", "--limit", "2"], ["waits", "runs"]),
        (["--stuck"], ["stuck"]),
    ],
)
def test_orders_are_filtered(retryflow: Command, busy: Busy, options: list[str], expected: list[str]) -> None:
    rows = retryflow("order", "list", "-f", "json", *options, database=busy.url).json
    assert [row["id"] for row in rows] == expected


@pytest.mark.parametrize("extra", [[], ["--oldest-first"], ["--status", "PENDING"]])
def test_pages_hold_every_order_once(retryflow: Command, busy: Busy, extra: list[str]) -> None:
    whole = [row["id"] for row in retryflow("order", "list", "-f", "json", *extra, database=busy.url).json]
    pages: list[str] = []
    marker: list[str] = []
    while True:
        answer = retryflow("order", "list", "-f", "json", "--limit", "2", *marker, *extra, database=busy.url)
        pages += [row["id"] for row in answer.json]
        if not answer.err:
            break
        marker = answer.err.split()[-2:]
        assert marker[0] == "--marker"
    assert pages == whole


def test_a_marker_that_is_gone_is_told(retryflow: Command, busy: Busy) -> None:
    retryflow("order", "list", "--marker", "gone", database=busy.url).assert_refused("no order gone")
    retryflow("retry", "list", "--marker", "gone", database=busy.url).assert_refused("gone", "from the beginning")


def test_a_page_is_read_from_an_index_and_not_sorted(busy: Busy) -> None:
    def plan(connection: sa.Connection) -> str:
        seen: list[str] = []
        sa.event.listen(connection, "before_cursor_execute", lambda c, cu, text, *rest: seen.append((text, rest[0])))
        listing.orders_page(connection, listing.OrderFilter(statuses=("PENDING",)), limit=2, marker="polls")
        text, parameters = seen[-1]
        rows: Any = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)
        return " ".join(row.detail for row in rows)

    found = read(busy.engine, plan)
    assert "USING INDEX ix_orders_status_created_at_id" in found
    assert "TEMP B-TREE" not in found


def test_the_retry_list_says_what_is_due_when(retryflow: Command, busy: Busy) -> None:
    [row] = plain(retryflow("retry", "list", "-f", "json", database=busy.url).json)
    assert len(row.pop("id")) == 36
    assert row == {
        "order_id": "polls",
        "task": "check_certificate_status",
        "retry_at": "TIME",
        **COUNTS,
        "stands_behind": None,
        "request_id": "req-1",
        "last_error": None,
    }
    assert retryflow("retry", "list", "--due", "-f", "json", database=busy.url).json == []
    assert re.search(r"\(in (1h|59m)", retryflow("retry", "list", "--order", "polls", database=busy.url).out)


def test_leases_say_who_runs_what_and_whether_he_lives(retryflow: Command, busy: Busy) -> None:
    rows = {row["id"]: row for row in plain(retryflow("lease", "list", "-f", "json", database=busy.url).json)}
    assert list(rows) == ["lease-lost", "lease-runs", "lease-waits"]
    shown = {name: (row["state"], row["worker"], row["worker_is"]) for name, row in rows.items()}
    assert shown == {
        "lease-lost": ("running, expired", "node7:4711", "gone"),
        "lease-runs": ("running", f"{busy.alive.host}:{busy.alive.pid}", "alive"),
        "lease-waits": ("waiting", None, None),
    }
    lost = rows["lease-lost"]
    assert -140 < lost.pop("expires_in") < -75
    assert lost == {
        "id": "lease-lost",
        "order_id": "lost",
        "task": "process_type_order",
        "state": "running, expired",
        "worker": "node7:4711",
        "worker_is": "gone",
        "created_at": "TIME",
        "started_at": "TIME",
        "sent_count": 1,
        "renewals": 0,
        "request_id": "req-lost",
        **COUNTS,
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--running"], ["lost", "runs"]),
        (["--waiting"], ["waits"]),
        (["--order", "runs"], ["runs"]),
        (["--limit", "1", "--marker", "lease-lost"], ["runs"]),
    ],
)
def test_leases_are_filtered(retryflow: Command, busy: Busy, options: list[str], expected: list[str]) -> None:
    rows = retryflow("lease", "list", "-f", "json", *options, database=busy.url).json
    assert [row["order_id"] for row in rows] == expected


def test_workers_are_alive_or_gone(retryflow: Command, busy: Busy) -> None:
    rows = {row["host"]: row for row in plain(retryflow("worker", "list", "-f", "json", database=busy.url).json)}
    assert rows["node7"] == {
        "holder": "node7:4711:0123",
        "kind": "worker",
        "host": "node7",
        "pid": 4711,
        "is": "gone",
        "started_at": "TIME",
        "seen_at": "TIME",
        "running_tasks": 1,
        "version": "1.0.0",
        "topic": "barbican.workers",
    }
    assert rows[busy.alive.host]["is"] == "alive"


def test_a_process_that_has_died_on_this_host_is_gone_at_once(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE daemon_processes SET start_ticks = start_ticks - 1 WHERE pid = :pid"),
            {"pid": busy.alive.pid},
        )
    rows = retryflow("worker", "list", "-f", "json", database=busy.url).json
    assert {row["is"] for row in rows} == {"gone"}


def test_the_lock_is_free_held_or_stale(retryflow: Command, busy: Busy) -> None:
    free = retryflow("lock", "show", "-f", "json", database=busy.url).json
    assert free == {
        "entity": "OrderRetryTask",
        "state": "free",
        "scheduler": None,
        "touched": None,
        "batches": None,
        "stale_in": None,
        "fence": None,
    }
    busy.lock("node7:4711:0123:abcd")
    held = retryflow("lock", "show", "-f", "json", database=busy.url).json
    assert 0 <= held.pop("touched") < 30
    assert 30 < held.pop("stale_in") <= 60
    assert held == {
        "entity": "OrderRetryTask",
        "state": "held",
        "scheduler": "node7:4711",
        "batches": 0,
        "fence": "node7:4711:0123:abcd",
    }
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE entity_locks SET created_at = '2020-01-01 00:00:00.000000'"))
    assert retryflow("lock", "show", "-f", "json", database=busy.url).json["state"] == "stale"


def test_a_lock_from_the_future_is_stale(retryflow: Command, busy: Busy) -> None:
    busy.lock("node7:4711:0123:abcd")
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE entity_locks SET created_at = '2999-01-01 00:00:00.000000'"))
    assert retryflow("lock", "show", "-f", "json", database=busy.url).json["state"] == "stale"
