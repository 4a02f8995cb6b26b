"""``top``: within the terminal, and through an outage of the database."""

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from oslo_db.exception import DBConnectionError

from retryflow.cli import stats, top
from tests.fixtures.busy import Busy
from tests.fixtures.command import Command

CLEAR = "\x1b[H\x1b[2J"
WAITING = 30


def plant(busy: Busy, *statements: str) -> None:
    with busy.engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Lets standard output be a terminal of so many columns and lines."""

    def be(columns: int, lines: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(top.shutil, "get_terminal_size", lambda: os.terminal_size((columns, lines)))

    return be


def frames(out: str) -> list[list[str]]:
    """What a terminal was shown, one after the other."""
    assert out.startswith(CLEAR)
    assert out.endswith("\n")
    return [frame.split("\n") for frame in out.removesuffix("\n").split(CLEAR)[1:]]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 60), (80, 14), (80, 13), (80, 6), (20, 3), (80, 1)])
def test_top_keeps_within_the_terminal(
    retryflow: Command, busy: Busy, terminal: Callable[[int, int], None], columns: int, lines: int
) -> None:
    error = "'the authority is \u6f22\u5b57 out of service, and says so at length: ' || hex(randomblob(100))"
    names = ("id", "order_id", "retry_task", "retry_at", "retry_args", "retry_kwargs", "created_at", "last_error")
    plant(busy, "DELETE FROM order_retry_tasks")
    for number in range(WAITING):
        plant(
            busy,
            f"INSERT INTO orders (id, type, status, created_at, updated_at) SELECT 'o{number}', type, status, "
            "created_at, updated_at FROM orders WHERE id = 'polls'",
            f"INSERT INTO order_retry_tasks ({', '.join(names)}) SELECT 'r{number}', 'o{number}', 'process_type_order',"
            f" '2030-01-01 00:00:00.000000', '[]', '{{}}', created_at, {error} FROM orders WHERE id = 'polls'",
        )
    terminal(columns, lines)
    [frame] = frames(retryflow("top", "--count", "1", database=busy.url).out)
    assert len(frame) <= max(1, lines - 1)
    assert max(map(len, frame)) <= columns - 1
    assert "PENDING" in frame[0] or columns < 40
    if lines == 24:
        # Two tasks run; the rest of the room is for what waits.
        assert len(frame) == 23
        assert [sum(line.startswith(word) for line in frame) for word in ("lost ", "runs ", "o")] == [1, 1, 12]


def test_top_goes_on_while_the_database_is_away(
    retryflow: Command, busy: Busy, terminal: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(80, 24)
    count, looks = stats.count, []

    def away_once(*arguments: Any, **options: Any) -> Any:
        looks.append(1)
        if len(looks) == 2:
            raise DBConnectionError(RuntimeError("server closed the connection"))
        return count(*arguments, **options)

    monkeypatch.setattr(stats, "count", away_once)
    answer = retryflow("top", "--count", "3", "--interval", "0", database=busy.url)
    assert (answer.status, answer.err) == (0, "")
    before, meanwhile, after = frames(answer.out)
    assert ["does not answer; waiting for it" in frame[0] for frame in (before, meanwhile, after)] == [0, 1, 0]
    assert meanwhile[1:] == before[1:]


def test_top_ends_where_the_database_does_not_answer_at_first_nor_in_a_pipe(
    retryflow: Command, busy: Busy, monkeypatch: pytest.MonkeyPatch, terminal: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(stats, "count", Mock(side_effect=DBConnectionError(RuntimeError("server closed it"))))
    retryflow("top", "--count", "2", "--interval", "0", database=busy.url).assert_refused("does not answer")
    terminal(80, 24)
    retryflow("top", "--count", "2", "--interval", "0", database=busy.url).assert_refused("does not answer")


def test_top_shows_no_control_characters_of_an_error() -> None:
    assert top.fitted("a\x1b[2Jb\u6f22\u6f22", 9) == "a?[2Jb\u6f22"
