"""Text of other people neither steers the reader's terminal, nor passes for lines of ours, nor stops a command."""

import subprocess

import pytest
import sqlalchemy as sa

from retryflow.cli.legible import legible
from retryflow.model import events, orders
from retryflow.model.transaction import read, transact
from tests.fixtures.busy import Busy
from tests.fixtures.command import Command

FORGED = "gone\n2026-12-01 01:53:53  done\x1b[2J\x9b31m\u202e"
WRITTEN_OUT = r"gone\n2026-12-01 01:53:53  done\x1b[2J\x9b31m\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 請求, 🙂", "plain, é, 請求, 🙂"),
        ("no\u00a0break\u3000wide", "no\u00a0break\u3000wide"),
        ("a\x1b[31mb\x00\x7f\t\r", r"a\x1b[31mb\x00\x7f\t\r"),
        ("two\nlines\u2028three", r"two\nlines\u2028three"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_is_not_printable_is_written_out(text: str, shown: str) -> None:
    assert legible(text) == shown


def test_ends_of_lines_stay_where_they_are_meant() -> None:
    assert legible("a\nb\x1b", lines=True) == "a\nb\\x1b"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--id", "i\n2026 CRITICAL gone"),
        ("--id", " "),
        ("--id", " mine"),
        ("--id", "\ud800"),
        ("--id", ""),
        ("--request-id", "req-1\n2026 CRITICAL gone"),
        ("--request-id", "req-1 "),
        ("--project", "p\x1b[31m"),
        ("--type", "t\r"),
    ],
)
def test_ids_that_could_write_log_lines_of_their_own_are_refused(
    retryflow: Command, empty: str, option: str, value: str
) -> None:
    answer = retryflow("order", "create", "--type", "t", option, value, database=empty)
    answer.assert_refused("all of them printable")
    assert retryflow("order", "list", "-f", "json", database=empty).json == []


def test_the_reason_of_a_cancellation_is_kept_as_one_line(retryflow: Command, busy: Busy) -> None:
    answer = retryflow("order", "cancel", "stuck", "--reason", "a\x1b[31mb\n ordered\ttwice ", database=busy.url)
    assert answer.status == 0
    shown = retryflow("order", "show", "stuck", "-f", "json", database=busy.url).json
    assert shown["error_reason"] == shown["history"][-1]["detail"] == "a [31mb ordered twice"


def test_a_table_writes_out_what_is_not_printable(retryflow: Command, busy: Busy) -> None:
    """Also what stands in the database already, and what plugins write."""

    def work(connection: sa.Connection) -> None:
        events.add(connection, "stuck", events.POLLING, task=FORGED, detail=FORGED)
        orders.update_pending(connection, "stuck", meta={FORGED: FORGED}, sub_status_message=FORGED, plugin_name=FORGED)
        connection.execute(sa.text("UPDATE order_retry_tasks SET last_error = :text"), {"text": FORGED})
        connection.execute(sa.text("UPDATE order_task_leases SET task = :text"), {"text": FORGED})
        connection.execute(sa.text("UPDATE orders SET type = :text"), {"text": FORGED})

    transact(busy.engine, work)
    for words, times in (
        ("order show stuck", 7),
        ("order show polls", 2),
        ("order list", 10),
        ("retry list", 1),
        ("lease list", 3),
    ):
        answer = retryflow(*words.split(), database=busy.url)
        assert answer.status == 0, answer
        assert not set("\x1b\x9b\u202e") & set(answer.out), words
        written_out = answer.out.replace("\\u001b", "\\x1b").replace('"', "")
        assert written_out.count(WRITTEN_OUT) == times, answer.out
    # In what programs read it is as it was.
    assert retryflow("order", "show", "stuck", "-f", "json", database=busy.url).json["plugin_name"] == FORGED


def test_what_is_told_beside_the_answer_is_written_out_as_well(retryflow: Command, busy: Busy) -> None:
    def work(connection: sa.Connection) -> None:
        orders.insert(connection, order_id="a\nb\x1b", project_id=None, order_type="t", meta={})

    transact(busy.engine, work)
    answer = retryflow("order", "retry", "a\nb\x1b", "done", database=busy.url)
    assert answer.err.splitlines()[0] == r"retryflow: order a\nb\x1b is PENDING; only an order in ERROR can be retried"


@pytest.mark.parametrize(
    "words",
    [
        "order show {}",
        "order cancel stuck {}",
        "order retry {}",
        "order delete {} --yes",
        "retry run-now {}",
        "order list --project {}",
        "order list --type {}",
        "order list --marker {}",
        "retry list --order {}",
        "retry list --marker {}",
        "lease list --order {}",
        "lease list --marker {}",
    ],
)
@pytest.mark.parametrize("text", ["\udcff", "a\x00"])
def test_what_can_stand_in_no_database_is_not_asked_for(retryflow: Command, busy: Busy, words: str, text: str) -> None:
    """Python makes \\udcff of the byte 0xff on the command line."""
    answer = retryflow(*(word.format(text) for word in words.split()), database=busy.url)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.endswith(f"{text!r} is no text (in the encoding of this locale)\n")
    assert read(busy.engine, lambda connection: orders.get(connection, "stuck")).status == "PENDING"


@pytest.mark.parametrize(
    "text", ["$(echo run)", "`echo run`", "${HOME}", 'a"; echo run; "', "\\$(echo run)", "back\\slash"]
)
def test_a_shell_reads_a_text_and_runs_none_of_it(retryflow: Command, busy: Busy, text: str) -> None:
    """``eval`` is what the format is for."""
    transact(busy.engine, lambda connection: orders.update_pending(connection, "stuck", error_reason=text))
    shown = retryflow("order", "show", "stuck", "-f", "shell", "-c", "error_reason", database=busy.url).out
    command = ["sh", "-c", 'eval "$1"; printf %s "$error_reason"', "sh", shown]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == text


def test_top_writes_out_what_is_not_printable(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE order_retry_tasks SET last_error = :text"), {"text": "a\x1b[2Jb"})
    assert r"a\x1b[2Jb" in retryflow("top", database=busy.url).out
