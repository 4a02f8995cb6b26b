"""Commands that change something: each does it, refuses what cannot be done in one line, and asks where it must."""

import io
from typing import Any

import pytest
import sqlalchemy as sa

from tests.fixtures.busy import Busy
from tests.fixtures.command import Command
from tests.fixtures.entry_points import Install


def status(busy: Busy, order_id: str) -> str | None:
    with busy.engine.connect() as connection:
        return connection.execute(sa.text("SELECT status FROM orders WHERE id = :id"), {"id": order_id}).scalar()


def rows(busy: Busy, table: str) -> set[str]:
    with busy.engine.connect() as connection:
        return set(connection.execute(sa.text(f"SELECT order_id FROM {table}")).scalars())


def plant(busy: Busy, *statements: str) -> None:
    with busy.engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


class Terminal(io.StringIO):
    """Standard input with a person before it."""

    def isatty(self) -> bool:
        return True


def test_retry_starts_an_order_in_error_over_again(retryflow: Command, busy: Busy) -> None:
    answer = retryflow("order", "retry", "failed", database=busy.url)
    assert (answer.status, answer.err) == (0, "retryflow: order failed is PENDING again\n")
    assert status(busy, "failed") == "PENDING"
    [lease] = retryflow("lease", "list", "--order", "failed", "-f", "json", database=busy.url).json
    assert (lease["state"], lease["sent_count"]) == ("waiting, expired", 0)
    history = retryflow("order", "show", "failed", "-f", "json", database=busy.url).json["history"]
    assert history[-1]["event"] == "retry requested"


def test_cancel_ends_an_order_and_takes_its_rows_with_it(retryflow: Command, busy: Busy) -> None:
    answer = retryflow("order", "cancel", "polls", "waits", "--reason", "no longer needed", database=busy.url)
    assert answer.status == 0, answer.err
    for order_id in ("polls", "waits"):
        shown = retryflow("order", "show", order_id, "-f", "json", database=busy.url).json
        assert (shown["status"], shown["sub_status"], shown["error_reason"], shown["next_step"]) == (
            "ERROR",
            "cancelled",
            "no longer needed",
            None,
        )
    assert rows(busy, "order_retry_tasks") == set()
    assert rows(busy, "order_task_leases") == {"runs", "lost"}


CANCELLING = """
    import sys
    from retryflow.tasks.base import OrderType

    class telling(OrderType):
        def process_type_order(self, context, order, **kwargs): ...
        def cancel(self, order):
            if order.meta.get("raise"):
                raise RuntimeError("backend away\\nfor long")
            return f"the backend keeps {order.id} {order.state['key']}"
"""


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ("{}", "warning: the backend keeps stuck kept"),
        ('{"raise": true}', "warning: its backend could not be told (RuntimeError: backend away for long)"),
    ],
)
def test_cancel_tells_the_backend_after_the_commit_and_survives_what_it_does(
    retryflow: Command, busy: Busy, install_package: Install, meta: str, told: str
) -> None:
    install_package("telling_orders", CANCELLING, {"telling": "retryflow.order_types"})
    with busy.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE orders SET type = 'telling', meta = :meta WHERE id = 'stuck'"), {"meta": meta}
        )
        connection.execute(
            sa.text("INSERT INTO order_plugin_metadata (order_id, \"key\", value) VALUES ('stuck', 'key', 'kept')")
        )
    answer = retryflow("order", "cancel", "stuck", database=busy.url)
    assert answer.status == 0
    assert answer.err == f"retryflow: order stuck is cancelled; {told}\n"
    assert status(busy, "stuck") == "ERROR"


def test_cancel_of_an_unknown_type_only_warns(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET type = 'nobodys' WHERE id = 'stuck'"))
    answer = retryflow("order", "cancel", "stuck", database=busy.url)
    assert answer.status == 0
    assert "unknown order type 'nobodys'" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_delete_removes_an_order_with_everything_that_belongs_to_it(retryflow: Command, busy: Busy) -> None:
    assert retryflow("order", "delete", "polls", "done", "--yes", database=busy.url).status == 0
    assert status(busy, "polls") is status(busy, "done") is None
    assert "polls" not in rows(busy, "order_retry_tasks") | rows(busy, "order_events")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["retry", "done"], "only an order in ERROR can be retried"),
        (["retry", "nobody"], "there is no order nobody"),
        (["cancel", "done"], "only a PENDING order can be cancelled"),
        (["cancel", "nobody"], "there is no order nobody"),
        (["delete", "nobody", "--yes"], "there is no order nobody"),
    ],
)
def test_what_an_order_s_state_does_not_allow_is_one_line(
    retryflow: Command, busy: Busy, words: list[str], told: str
) -> None:
    retryflow("order", *words, database=busy.url).assert_refused(told)


def test_one_order_that_fails_does_not_stop_the_others(retryflow: Command, busy: Busy) -> None:
    answer = retryflow("order", "cancel", "polls", "done", "stuck", database=busy.url)
    assert answer.status == 1
    assert "1 of 3 orders failed" in answer.err
    assert status(busy, "stuck") == status(busy, "polls") == "ERROR"


def test_run_now_lets_the_retry_list_be_due_and_keeps_the_counters(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE order_retry_tasks SET retry_count = 5"))
    answer = retryflow("retry", "run-now", "polls", database=busy.url)
    assert (answer.status, answer.err) == (0, "retryflow: order polls: 1 task due now\n")
    [row] = retryflow("retry", "list", "--due", "-f", "json", database=busy.url).json
    assert (row["order_id"], row["retry_count"]) == ("polls", 5)
    retryflow("retry", "run-now", "done", database=busy.url).assert_refused("nothing on the retry list")
    retryflow("retry", "run-now", "nobody", database=busy.url).assert_refused("no order nobody")


@pytest.mark.parametrize("words", [["lock", "break"], ["order", "delete", "done"]])
def test_what_cannot_be_undone_is_asked_first(
    retryflow: Command, busy: Busy, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    busy.lock("node7:4711:0123:abcd")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    retryflow(*words, database=busy.url).assert_refused("--yes")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    answer = retryflow(*words, database=busy.url)
    assert (answer.status, "[y/N]" in answer.err, "nothing was done" in answer.err) == (1, True, True)
    assert retryflow("lock", "show", "-f", "json", database=busy.url).json["state"] == "held"
    assert status(busy, "done") == "ACTIVE"
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert retryflow(*words, database=busy.url).status == 0


def test_break_breaks_only_the_lock_that_was_shown(
    retryflow: Command, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: between the question and the answer its holder shows a sign of life, or another has it."""
    busy.lock("node7:4711:0123:abcd")

    class Slow(Terminal):
        def __init__(self, change: str) -> None:
            super().__init__()
            self.change = change

        def readline(self, *_: Any) -> str:
            plant(busy, self.change)
            return "y\n"

    changes = ("batches = batches + 1", "worker_host_name = 'node8:1:2:3'")
    for change in changes:
        monkeypatch.setattr("sys.stdin", Slow(f"UPDATE entity_locks SET {change}"))
        answer = retryflow("lock", "break", database=busy.url)
        assert answer.status == 1
        assert "changed hands, or was touched" in answer.err
        assert retryflow("lock", "show", "-f", "json", database=busy.url).json["state"] == "held"
    assert retryflow("lock", "break", "--yes", database=busy.url).status == 0
    assert retryflow("lock", "show", "-f", "json", database=busy.url).json["state"] == "free"
    assert "free; nothing to do" in retryflow("lock", "break", database=busy.url).err


@pytest.mark.parametrize("holder", ["somebody", "", "node 7", ":::"])
def test_a_lock_is_shown_and_broken_whatever_its_holder_is_called(retryflow: Command, busy: Busy, holder: str) -> None:
    busy.lock(holder)
    shown = retryflow("lock", "show", "-f", "json", database=busy.url).json
    assert (shown["state"], shown["fence"]) == ("held", holder)
    assert retryflow("lock", "show", database=busy.url).status == 0
    answer = retryflow("lock", "break", "--yes", database=busy.url)
    assert (answer.status, "the lock is broken" in answer.err) == (0, True), answer
    assert retryflow("lock", "show", "-f", "json", database=busy.url).json["state"] == "free"


def test_upgrade_makes_the_schema_once_and_says_so(retryflow: Command, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'new.sqlite'}"
    assert "was at nothing" in retryflow("db", "upgrade", database=url).err
    assert "already" in retryflow("db", "upgrade", database=url).err
    assert retryflow("db", "check", database=url).status == 0
    current = retryflow("db", "current", "-f", "json", database=url).json
    assert (current["current"] == current["needed"], current["up_to_date"]) == (True, True)
    history = retryflow("db", "history", "-f", "json", database=url).json
    assert [row["applied"] for row in history] == [True] * len(history)


def test_upgrade_without_configuration_makes_the_standalone_database(retryflow: Command, tmp_path: Any) -> None:
    assert retryflow("db", "upgrade").status == 0
    assert (tmp_path / ".local/state/retryflow/retryflow.sqlite").exists()
    assert retryflow("order", "list", "-f", "json").json == []


def test_check_finds_a_schema_that_was_changed_by_hand(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("DROP INDEX ix_orders_created_at_id"))
    retryflow("db", "check", database=busy.url).assert_refused(
        "differs from this version's in 1 places: missing index ix_orders", "CREATE INDEX"
    )


def test_purge_removes_only_what_ended_long_ago(retryflow: Command, busy: Busy) -> None:
    dry = retryflow("db", "purge", "--older-than", "5m", "--dry-run", database=busy.url)
    # Both have ended just now.
    assert dry.err == "retryflow: 0 orders would be removed; nothing was (--dry-run)\n"
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET updated_at = created_at"))
    dry = retryflow("db", "purge", "--older-than", "5m", "--dry-run", database=busy.url)
    assert "2 orders would be removed" in dry.err
    only = retryflow("db", "purge", "--older-than", "5m", "--status", "ERROR", database=busy.url)
    assert only.err == "retryflow: 1 order removed\n"
    assert (status(busy, "failed"), status(busy, "done")) == (None, "ACTIVE")
    assert retryflow("db", "purge", "--older-than", "5m", "--batch", "1", database=busy.url).status == 0
    left = retryflow("order", "list", "-f", "value", "-c", "id", database=busy.url).out.split()
    assert left == ["stuck", "polls", "lost", "runs", "waits"]
    assert not rows(busy, "order_events") & {"done", "failed"}


def test_purge_works_in_batches_and_meets_every_order(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO orders (id, type, status, created_at, updated_at) "
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
                "SELECT 'old' || i, 't', 'ACTIVE', '2020-01-01 00:00:00.000000', '2020-01-01 00:00:00.000000' FROM n"
            )
        )
    answer = retryflow("db", "purge", "--older-than", "1d", "--batch", "300", database=busy.url)
    assert answer.err == "retryflow: 1000 orders removed\n"
    assert len(retryflow("order", "list", "-f", "json", database=busy.url).json) == len(Busy.names)


def test_purge_trims_histories_when_asked_to(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE order_events SET last_at = '2020-01-01 00:00:00.000000' WHERE order_id = 'polls'")
        )
    answer = retryflow("db", "purge", "--older-than", "1d", "--events-older-than", "1d", database=busy.url)
    assert "2 lines of history removed" in answer.err
    assert "polls" not in rows(busy, "order_events")
    assert status(busy, "polls") == "PENDING"


def test_stats_count_what_there_is(retryflow: Command, busy: Busy) -> None:
    shown = retryflow("stats", "-f", "json", database=busy.url).json
    assert 3500 < shown.pop("retry_next_in") <= 3600
    assert 0 <= shown.pop("oldest_waiting") < 60
    assert 300 <= shown.pop("longest_running") < 400
    assert shown == {
        "orders_pending": 5,
        "orders_active": 1,
        "orders_error": 1,
        "retry_list": 1,
        "retry_due": 0,
        "retry_late": None,
        "tasks_waiting": 1,
        "tasks_running": 2,
        "leases_expired": 1,
        "workers_alive": 1,
        "schedulers_alive": 0,
        "window": 300.0,
        "happened": {"submitted": 7, "polling": 1, "failed": 1},
    }


def test_stats_of_an_empty_database_are_zeros(retryflow: Command, empty: str) -> None:
    shown = retryflow("stats", "-f", "json", database=empty).json
    assert {value for name, value in shown.items() if name not in ("window", "happened")} == {0, None}
    assert shown["happened"] == {}


def test_top_shows_what_runs_and_what_comes_next_once_without_a_terminal(retryflow: Command, busy: Busy) -> None:
    answer = retryflow("top", database=busy.url)
    assert (answer.status, answer.err) == (0, "")
    assert "PENDING 5  ACTIVE 1  ERROR 1" in answer.out
    assert "\nDaemons: 1 worker, 0 schedulers alive\n" in answer.out
    assert [name for name in ("runs ", "lost ", "polls ", "node7:4711 (gone)") if name not in answer.out] == []
    assert "\x1b" not in answer.out
    plant(busy, "DELETE FROM orders")
    twice = retryflow("top", "--count", "2", "--interval", "0", database=busy.url)
    assert twice.out.count("Retry list 0: due 0") == 2
