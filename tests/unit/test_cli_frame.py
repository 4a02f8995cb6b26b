"""The frame around the operator's commands: help, usage, errors of one line, and output formats."""

import csv
import io
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from retryflow.cli.commands import COMMANDS
from retryflow.model.engine import create_engine
from tests.fixtures.busy import Busy
from tests.fixtures.command import Command

READING = [
    "order list",
    "order show x",
    "retry list",
    "lease list",
    "worker list",
    "lock show",
    "stats",
    "top --count 1",
]
CHANGING = [
    "order retry x",
    "order cancel x",
    "order delete x --yes",
    "retry run-now x",
    "lock break --yes",
    "db purge --older-than 1d",
]
COMMON = [*READING, *CHANGING]
SCHEMA = ["db current", "db history"]


def test_help_exits_0_and_reads_and_makes_nothing(retryflow: Command, tmp_path: Path) -> None:
    answer = retryflow("-h", "--config-file", "/no/such/file")
    assert (answer.status, answer.err) == (0, "")
    assert [name for name in COMMANDS if name not in answer.out] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_wherever_the_option_stands(retryflow: Command, name: str) -> None:
    answer = retryflow(*name.split(), "anything", "-h", "--nonsense")
    assert answer.status == 0
    assert f"usage: retryflow {name}" in answer.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["--no-such-option", "order", "list"], "--no-such-option"),
        (["order", "list", "--no-such-option"], "--no-such-option"),
        (["order"], "order list"),
        (["nonsense"], "nonsense"),
        (["order", "list", "--status", "HAPPY"], "HAPPY"),
        (["order", "list", "--older-than", "soon"], "no length of time"),
        (["order", "list", "--older-than", "99999999999d"], "greatest length of time is 36500d"),
        (["stats", "--window", "99999999d"], "greatest length of time is 36500d"),
        (["db", "purge", "--older-than", "99999999d"], "greatest length of time is 36500d"),
        (["order", "list", "--limit", "0"], "no number from 1"),
        (["order", "show"], "ORDER"),
        (["order", "create", "--type", "t", "--timeout", "5s"], "--timeout says how long to --wait"),
        (["top", "--count", "0"], "'0' is no number from 1"),
        (["top", "--count", "-1"], "'-1' is no number from 1"),
        (["top", "--count", "many"], "'many' is no number from 1"),
        ([], "Commands:"),
    ],
)
def test_wrong_usage_exits_2_without_a_traceback(retryflow: Command, words: list[str], told: str) -> None:
    answer = retryflow(*words)
    assert (answer.status, answer.out) == (2, "")
    assert told in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("words", [*COMMON, *SCHEMA])
def test_a_missing_database_is_one_line_and_is_not_made(retryflow: Command, tmp_path: Path, words: str) -> None:
    retryflow(*words.split()).assert_refused("there is no database", "retryflow db upgrade", "retryflow-standalone")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [*COMMON, "order create --type certificate", "db check"])
def test_a_database_without_tables_is_one_line_that_names_the_command(
    retryflow: Command, tmp_path: Path, words: str
) -> None:
    (tmp_path / "empty.sqlite").touch()
    answer = retryflow(*words.split(), database=f"sqlite:///{tmp_path / 'empty.sqlite'}")
    answer.assert_refused("has no retryflow tables", "retryflow db upgrade")


@pytest.mark.parametrize("words", ["lock show", "lock break --yes", "db check", "order create --type certificate"])
def test_a_table_that_is_missing_is_named_and_so_is_the_command_that_makes_it_again(
    retryflow: Command, busy: Busy, words: str
) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE entity_locks"))
    answer = retryflow(*words.split(), database=busy.url)
    answer.assert_refused("has lost its table entity_locks; ", "retryflow db upgrade")
    made = retryflow("db", "upgrade", database=busy.url)
    assert (made.status, made.err.splitlines()[1:]) == (
        0,
        ["retryflow: what had been lost is made again, empty: entity_locks"],
    )
    assert retryflow("db", "check", database=busy.url).status == 0


@pytest.mark.parametrize("words", [*COMMON, *SCHEMA])
def test_a_file_that_is_no_database_is_one_line(retryflow: Command, tmp_path: Path, words: str) -> None:
    (tmp_path / "text").write_text("certainly no database " * 100)
    retryflow(*words.split(), database=f"sqlite:///{tmp_path / 'text'}").assert_refused("not a database")


@pytest.mark.parametrize("words", [*COMMON, *SCHEMA])
def test_an_unreachable_database_is_one_line_without_password(retryflow: Command, words: str) -> None:
    answer = retryflow(*words.split(), database="postgresql+psycopg://me:geheim@127.0.0.1:1/none")
    answer.assert_refused("does not answer", "127.0.0.1")
    assert "geheim" not in answer.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://127.0.0.1:1/none?user=me&password=geheim",
        "mysql+pymysql://me@127.0.0.1:1/none?passwd=geheim",
    ],
)
@pytest.mark.parametrize("words", ["stats", "doctor", "db current"])
def test_a_password_in_the_query_of_the_url_is_not_shown(retryflow: Command, words: str, url: str) -> None:
    answer = retryflow(*words.split(), database=url)
    assert (answer.status, "does not answer" in answer.out + answer.err) == (1, True), answer
    assert "geheim" not in answer.out + answer.err


@pytest.mark.parametrize("words", [*COMMON, *SCHEMA])
def test_a_password_with_an_at_sign_is_refused_without_its_end(retryflow: Command, words: str) -> None:
    answer = retryflow(*words.split(), database="postgresql+psycopg://me:ge@heim@127.0.0.1:1/none")
    answer.assert_refused("[database] connection", "%40")
    assert "heim" not in answer.err


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("garbage", "is not a database URL"),
        ("sqlite", "is not a database URL"),
        ("sqlite://file.sqlite", "one slash more"),
        ("oracle://u:geheim@127.0.0.1/x", "use sqlite, postgresql+psycopg or mysql+pymysql"),
        ("mysql+pymysql://u:geheim@127.0.0.1:3306abc/x", "a port that is not a number"),
        ("postgresql+psycopg://h:notaport/x", "a port that is not a number"),
        ("mysql+pymysql://u:g@geheim:heim@127.0.0.1/x", "%40"),
        ("mysql+pymysql://u:geheim@127.0.0.1:99999/x", "the port 99999"),
        ("mysql+pymysql://root:geheim@127.0.0.1", "names no database"),
        ("postgresql+psycopg://root:geheim@127.0.0.1/", "names no database"),
        ("mysql+pymysql://root:geheim@127.0.0.1:1/x?bogus=1", "'bogus'"),
        ("mysql+pymysql://root:geheim@127.0.0.1:1/x?connect_timeout=soon", "'soon'"),
        ("mysql+pymysql://root:geheim@127.0.0.1:1/x?ssl_ca=/nonexistent", "a certificate"),
        ("postgresql+psycopg://root:geheim@127.0.0.1:1/x?bogus=1", '"bogus"'),
        ("postgresql+psycopg://root:geheim@127.0.0.1:1/x?sslmode=bogus", '"bogus"'),
    ],
)
def test_a_url_of_a_database_that_can_never_work_is_one_line_without_its_password(
    retryflow: Command, monkeypatch: pytest.MonkeyPatch, url: str, told: str
) -> None:
    monkeypatch.delenv("PGDATABASE", raising=False)
    for words in ("stats", "db upgrade"):
        answer = retryflow(*words.split(), database=url)
        answer.assert_refused("[database] connection", told)
        assert "heim" not in answer.err
    answer = retryflow("doctor", "-f", "json", database=url)
    assert answer.status == 1
    [finding] = [finding for finding in json.loads(answer.out) if finding["check"] == "database"]
    assert told in f"{finding['what']}; {finding['remedy']}"
    assert "heim" not in answer.out + answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "text", "told"),
    [
        ("stats", "[database]\nconnection = postgresql+psycopg://me:ge$heim@h/x\n", "[database] connection has a $ "),
        ("order list --stuck", "[lease]\nlease_seconds = x\n", "[lease] lease_seconds in {file}: 'x' is no number"),
        ("order list --stuck", "[retry]\njitter = 7\n[lease]\nlease_seconds = 0\n", "in {file}: should be "),
    ],
)
def test_a_value_that_cannot_be_read_is_one_line_with_its_group_and_file(
    retryflow: Command, tmp_path: Path, words: str, text: str, told: str
) -> None:
    file = tmp_path / "bad.conf"
    file.write_text(text)
    answer = retryflow(*words.split(), "--config-file", file)
    answer.assert_refused(told.format(file=file), "mend the configuration")
    assert "heim" not in answer.err
    assert "Location" not in answer.err


@pytest.mark.parametrize("query", ["dbname=none", "service=none"])
def test_the_name_of_a_postgresql_database_may_stand_among_the_arguments(retryflow: Command, query: str) -> None:
    answer = retryflow("stats", database=f"postgresql+psycopg://me@127.0.0.1:1/?{query}")
    answer.assert_refused("does not answer")


def test_upgrade_of_an_unusable_database_does_not_say_to_run_what_was_run(retryflow: Command, sqlite_url: str) -> None:
    """Somebody else's tables are there, and no revision."""
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (dish VARCHAR(99))"))
    engine.dispose()
    answer = retryflow("db", "upgrade", database=sqlite_url)
    answer.assert_refused("cannot be upgraded", "table orders already exists")
    assert "retryflow db upgrade" not in answer.err


def test_history_at_a_revision_that_is_not_known_here_is_one_line(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE retryflow_alembic_version SET version_num = 'a-newer-one'"))
    answer = retryflow("db", "history", database=busy.url)
    answer.assert_refused("a-newer-one", "install")
    assert "should not happen" not in answer.err


def test_a_schema_too_old_for_a_query_is_told_as_such(retryflow: Command, busy: Busy) -> None:
    with busy.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM retryflow_alembic_version"))
        connection.execute(sa.text("ALTER TABLE orders RENAME COLUMN sub_status TO old"))
    retryflow("order", "list", database=busy.url).assert_refused("retryflow db upgrade")


@pytest.mark.parametrize(
    ("text", "word"), [("[database\n", "mend"), ("[lease]\nlease_seconds = many\n", "lease_seconds")]
)
def test_a_broken_configuration_is_one_line(
    retryflow: Command, tmp_path: Path, empty: str, text: str, word: str
) -> None:
    file = tmp_path / "broken.conf"
    file.write_text(f"[database]\nconnection = {empty}\n{text}")
    retryflow("lease", "list", "--config-file", file).assert_refused(word)


def test_a_configuration_file_that_is_missing_is_one_line(retryflow: Command) -> None:
    retryflow("order", "list", "--config-file", "/no/such/file").assert_refused("/no/such/file")


def test_an_unknown_column_is_one_line(retryflow: Command, busy: Busy) -> None:
    retryflow("order", "list", "-c", "colour", database=busy.url).assert_refused("colour")


def test_a_fault_of_ours_is_one_line_that_asks_for_a_report(
    retryflow: Command, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retryflow.model.locks.look", lambda connection: 1 / 0)
    answer = retryflow("lock", "show", database=empty)
    answer.assert_refused("ZeroDivisionError", "--debug")


def test_every_format_shows_the_same_orders(retryflow: Command, busy: Busy) -> None:
    def ids(form: str) -> str:
        return retryflow("order", "list", "-c", "id", "-f", form, database=busy.url).out

    expected = list(reversed(Busy.names))
    assert ids("value").split() == expected
    assert [row["id"] for row in yaml.safe_load(ids("yaml"))] == expected
    assert [row["id"] for row in csv.DictReader(io.StringIO(ids("csv")))] == expected
    table = ids("table")
    assert [name for name in expected if f"| {name} " not in table] == []


def test_csv_has_nothing_for_null_and_json_for_a_structure(retryflow: Command, busy: Busy) -> None:
    def rows(form: str) -> str:
        return retryflow("order", "list", "-c", "id", "-c", "sub_status", "-c", "next_step", "-f", form, **at).out

    at = {"database": busy.url}
    table = {row["id"]: row for row in csv.DictReader(io.StringIO(rows("csv")))}
    assert (table["failed"]["sub_status"], table["failed"]["next_step"]) == ("", "[]")
    [step] = json.loads(table["waits"]["next_step"])
    assert (step["step"], step["last_error"], step["sent_count"]) == ("waits for a worker", None, 1)
    assert [set(row) for row in json.loads(rows("json"))] == [set(row) for row in table.values()]


def test_plain_values_have_nothing_for_null_and_json_for_a_structure(retryflow: Command, busy: Busy) -> None:
    columns = ["-c", "id", "-c", "sub_status", "-c", "next_step", "-f", "value"]
    rows = retryflow("order", "list", *columns, database=busy.url).out.splitlines()
    assert [row for row in rows if row.startswith("failed")] == ["failed  []"]
    [row] = [row for row in rows if row.startswith("waits")]
    assert json.loads(row.removeprefix("waits  "))[0]["last_error"] is None
    shown = retryflow("order", "show", "waits", *columns, "-c", "meta", database=busy.url).out.splitlines()
    assert (shown[:2], json.loads(shown[3])) == (["waits", ""], {"name": "waits"})
    assert "None" not in retryflow("order", "show", "waits", "-f", "value", database=busy.url).out


def test_people_read_times_in_their_own_zone_with_their_age(
    retryflow: Command, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        table = retryflow("order", "show", "waits", "-c", "created_at", database=busy.url).out
        exact = retryflow("order", "show", "waits", "-c", "created_at", "-f", "json", database=busy.url).json
    finally:
        monkeypatch.undo()
        time.tzset()
    import datetime

    moment = datetime.datetime.fromisoformat(exact["created_at"])
    local = moment.astimezone(datetime.timezone(datetime.timedelta(hours=5, minutes=45)))
    assert f"{local:%Y-%m-%d %H:%M:%S} (16m" in table
    assert exact["created_at"].endswith("Z")
