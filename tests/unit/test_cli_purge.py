"""What ``db purge`` says of what it will do, does, and could not finish."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db.exception import DBConnectionError

from retryflow.cli import bar
from retryflow.cli.bar import Bar
from retryflow.model import purging
from tests.fixtures.busy import Busy
from tests.fixtures.command import Command

PURGE = ["db", "purge", "--older-than", "1d"]
EVENTS = [*PURGE, "--events-older-than", "1d"]


@pytest.fixture
def old(busy: Busy) -> Busy:
    """A thousand orders that ended long ago, with three lines of history; and two such lines of orders that stay."""
    moment = "'2020-01-01 00:00:00.000000'"
    with busy.engine.begin() as connection:
        for statement in (
            "INSERT INTO orders (id, type, status, created_at, updated_at) "
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
            f"SELECT 'old' || i, 't', CASE WHEN i <= 600 THEN 'ACTIVE' ELSE 'ERROR' END, {moment}, {moment} FROM n",
            "INSERT INTO order_events (order_id, event, at, last_at, count) "
            f"SELECT id, 'submitted', {moment}, {moment}, 1 FROM orders WHERE id IN ('old1', 'old2', 'old700')",
            f"UPDATE order_events SET last_at = {moment} WHERE order_id = 'polls'",
        ):
            connection.execute(sa.text(statement))
    return busy


def left(busy: Busy) -> int:
    with busy.engine.connect() as connection:
        return int(connection.execute(sa.text("SELECT count(*) FROM orders WHERE id LIKE 'old%'")).scalar_one())


def test_a_dry_run_counts_the_lines_that_would_go_besides_those_of_the_orders(retryflow: Command, old: Busy) -> None:
    dry = retryflow(*EVENTS, "--dry-run", database=old.url)
    assert dry.err == ("retryflow: 1000 orders and 2 lines of history would be removed; nothing was (--dry-run)\n")
    only = retryflow(*EVENTS, "--status", "ERROR", "--dry-run", database=old.url)
    assert "400 orders and 4 lines of history would be removed" in only.err
    assert "retryflow: 1000 orders would be removed;" in retryflow(*PURGE, "--dry-run", database=old.url).err
    done = retryflow(*EVENTS, database=old.url)
    assert done.err == "retryflow: 1000 orders removed\nretryflow: 2 lines of history removed\n"


def failing(error: BaseException, real: Callable[..., int], *, calls: int) -> Callable[..., int]:
    """:returns: ``real``, which raises ``error`` after so many calls."""
    done: list[int] = []

    def call(*arguments: Any, **named: Any) -> int:
        if len(done) == calls:
            raise error
        done.append(1)
        return real(*arguments, **named)

    return call


@pytest.mark.parametrize(
    ("error", "status", "further"),
    [(KeyboardInterrupt(), 130, []), (DBConnectionError(cause=Exception("gone away")), 1, ["does not answer"])],
)
def test_a_purge_that_is_cut_short_says_how_far_it_came(
    retryflow: Command,
    old: Busy,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    further: list[str],
) -> None:
    monkeypatch.setattr(purging, "delete", failing(error, purging.delete, calls=4))
    answer = retryflow(*PURGE, "--batch", "250", database=old.url)
    first, *others = answer.err.splitlines()
    assert (answer.status, first) == (status, "retryflow: 850 orders removed so far; run it again for the rest")
    assert [word in line for word, line in zip(further, others, strict=True)] == [True] * len(further)
    assert left(old) == 150


def test_lines_of_history_that_were_removed_before_it_was_cut_short_are_told(
    retryflow: Command, old: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "delete_events", failing(KeyboardInterrupt(), purging.delete_events, calls=1))
    answer = retryflow(*EVENTS, "--batch", "1000", database=old.url)
    assert answer.status == 130
    assert answer.err.splitlines() == [
        "retryflow: 1000 orders removed",
        "retryflow: 2 lines of history removed so far; run it again for the rest",
    ]


def test_a_long_purge_says_something_now_and_then_where_there_is_no_terminal(
    retryflow: Command, old: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bar, "TELL_SECONDS", 0.0)
    answer = retryflow(*EVENTS, "--batch", "500", database=old.url)
    assert answer.err.splitlines() == [
        "retryflow: 500 orders removed so far",
        "retryflow: 600 orders removed so far",
        "retryflow: 1000 orders removed so far",
        "retryflow: 1000 orders removed",
        "retryflow: 2 lines of history removed so far",
        "retryflow: 2 lines of history removed",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_in_a_terminal_and_told_elsewhere_every_half_minute() -> None:
    told: list[float] = []
    times = iter([0.0, 29.0, 30.0, 30.0, 59.0, 60.0, 60.0])
    elsewhere = io.StringIO()
    with Bar(elsewhere, 10, tell=lambda: told.append(1.0), clock=lambda: next(times)) as shown:
        for _ in range(4):
            shown.add(1)
    assert (len(told), elsewhere.getvalue()) == (2, "")
    terminal = Terminal()
    with Bar(terminal, 10, tell=lambda: told.append(1.0), clock=lambda: 0.0) as shown:
        shown.add(5)
    assert terminal.getvalue() == "\r[###############---------------] 5 of 10 ( 50%)\n"
    assert len(told) == 2


def test_the_history_has_a_bar_of_its_own(retryflow: Command, old: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    assert retryflow(*EVENTS, database=old.url).status == 0
    assert "1000 of 1000 (100%)\n" in terminal.getvalue()
    assert "2 of 2 (100%)\n" in terminal.getvalue()
