"""``doctor`` finds each planted fault, says what to do, and is silent when all is well."""

import json
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.cli.checks import database
from retryflow.cli.store import Store
from retryflow.conf import CONF, register_all
from retryflow.model import processes
from retryflow.model.identity import ProcessIdentity
from retryflow.model.transaction import transact
from tests.fixtures.busy import Busy
from tests.fixtures.command import Answer, Command


def found(answer: Answer) -> dict[str, Any]:
    """Findings by check, with every text filled in."""
    rows = json.loads(answer.out)
    assert all(row["what"] and row["remedy"] for row in rows), rows
    return {row["check"]: row for row in rows}


@pytest.fixture
def healthy(busy: Busy) -> Busy:
    """The busy database without the two orders that are in trouble, and with a scheduler."""
    scheduler = ProcessIdentity("node8:1:2", "node8", 1, "other-boot", 1, 1)

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.text("DELETE FROM orders WHERE id IN ('stuck', 'lost')"))
        processes.see(connection, scheduler, kind="scheduler", version="1.0.0", topic=None)

    transact(busy.engine, work)
    return busy


def plant(busy: Busy, *statements: str) -> None:
    with busy.engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


LONG_AGO = "'2020-01-01 00:00:00.000000'"
FAULTS = {
    "no-worker": (["DELETE FROM daemon_processes WHERE kind = 'worker'"], "barbican-worker"),
    "no-scheduler": (["DELETE FROM daemon_processes WHERE kind = 'scheduler'"], "barbican-task-scheduler"),
    "expired-leases": (
        [f"UPDATE order_task_leases SET expires_at = {LONG_AGO} WHERE order_id = 'runs'"],
        "orders runs",
    ),
    "waiting-leases": (
        [f"UPDATE order_task_leases SET expires_at = {LONG_AGO} WHERE order_id = 'waits'"],
        "orders waits",
    ),
    "overdue-retries": ([f"UPDATE order_retry_tasks SET retry_at = {LONG_AGO}"], "orders polls"),
    "no-next-step": (
        ["DELETE FROM order_retry_tasks", f"UPDATE orders SET updated_at = {LONG_AGO} WHERE id = 'polls'"],
        "1 order PENDING without a next step: polls",
    ),
    "leftovers": (["UPDATE orders SET status = 'ERROR' WHERE id = 'polls'"], "orders that have ended: polls"),
    "unknown-task": (["UPDATE order_retry_tasks SET retry_task = 'dance'"], "has no task dance"),
    "stuck-lock": (
        [f"INSERT INTO entity_locks VALUES ('OrderRetryTask', 'node9:1:2:3', {LONG_AGO}, 7)"],
        "node9:1:2:3",
    ),
    "schema": (["DROP INDEX ix_order_task_leases_expires_at_id"], "ix_order_task_leases_expires_at_id"),
}
WARNINGS = {"leftovers", "unknown-task"}
FIXABLE = {"no-next-step", "leftovers", "stuck-lock"}


def test_a_healthy_system_is_silent(retryflow: Command, healthy: Busy, empty: str) -> None:
    for url in (healthy.url, empty):
        assert retryflow("doctor", "-f", "json", database=url).json == []
        answer = retryflow("doctor", database=url)
        assert (answer.status, answer.out, answer.err) == (0, "", "retryflow: nothing is wrong\n")


@pytest.mark.parametrize("check", FAULTS)
def test_each_fault_is_found_alone(retryflow: Command, healthy: Busy, check: str) -> None:
    statements, told = FAULTS[check]
    plant(healthy, *statements)
    answer = retryflow("doctor", "-f", "json", database=healthy.url)
    findings = found(answer)
    assert list(findings) == [check]
    assert told in findings[check]["what"] + findings[check]["remedy"]
    assert findings[check]["severity"] == ("warning" if check in WARNINGS else "broken")
    assert answer.status == (0 if check in WARNINGS else 1)


@pytest.mark.parametrize("check", sorted(FIXABLE))
def test_fix_repairs_it(retryflow: Command, healthy: Busy, check: str) -> None:
    plant(healthy, *FAULTS[check][0])
    answer = retryflow("doctor", "--fix", "-f", "json", database=healthy.url)
    assert answer.status == 0
    assert found(answer)[check]["fixed"]
    assert retryflow("doctor", "-f", "json", database=healthy.url).json == []


def test_a_repair_that_is_refused_is_told_and_costs_no_other_repair(retryflow: Command, healthy: Busy) -> None:
    plant(
        healthy,
        *FAULTS["stuck-lock"][0],
        *FAULTS["leftovers"][0],
        "CREATE TRIGGER refusing BEFORE DELETE ON entity_locks BEGIN SELECT RAISE(ABORT, 'permission denied'); END",
    )
    answer = retryflow("doctor", "--fix", "-f", "json", database=healthy.url)
    assert answer.status == 1
    findings = found(answer)
    assert list(findings) == ["stuck-lock", "leftovers"]
    assert findings["stuck-lock"]["fixed"].startswith("not repaired: ")
    assert "permission denied" in findings["stuck-lock"]["fixed"]
    assert findings["leftovers"]["fixed"] == "1 row removed"
    plant(healthy, "DROP TRIGGER refusing")
    assert list(found(retryflow("doctor", "-f", "json", database=healthy.url))) == ["stuck-lock"]


def test_an_additional_index_is_a_warning_unless_something_is_missing_too(retryflow: Command, healthy: Busy) -> None:
    plant(healthy, "CREATE INDEX ix_for_a_report ON orders (project_id, type)")
    answer = retryflow("doctor", "-f", "json", database=healthy.url)
    finding = found(answer)["schema"]
    assert (answer.status, finding["severity"]) == (0, "warning")
    assert "additional index ix_for_a_report" in finding["what"]
    plant(healthy, *FAULTS["schema"][0])
    answer = retryflow("doctor", "-f", "json", database=healthy.url)
    finding = found(answer)["schema"]
    assert (answer.status, finding["severity"]) == (1, "broken")
    assert "missing index ix_order_task_leases_expires_at_id" in finding["what"]


def test_an_order_that_got_a_next_step_goes_on_where_it_was(retryflow: Command, healthy: Busy) -> None:
    plant(
        healthy, "UPDATE orders SET plugin_name = 'simple_certificate' WHERE id = 'polls'", *FAULTS["no-next-step"][0]
    )
    assert retryflow("doctor", "--fix", database=healthy.url).status == 0
    with healthy.engine.connect() as connection:
        row = connection.execute(sa.text("SELECT retry_task, step FROM order_retry_tasks")).one()
    # It has one committed poll behind it, and its plugin is only asked how it stands.
    assert tuple(row) == ("check_certificate_status", 1)
    history = retryflow("order", "show", "polls", "-f", "json", database=healthy.url).json["history"]
    assert history[-1]["event"] == "resumed"


def test_a_schema_that_is_missing_is_the_only_finding(retryflow: Command, tmp_path: Any) -> None:
    (tmp_path / "empty.sqlite").touch()
    answer = retryflow("doctor", "-f", "json", database=f"sqlite:///{tmp_path / 'empty.sqlite'}")
    assert answer.status == 1
    findings = found(answer)
    assert list(findings) == ["schema"]
    assert "retryflow db upgrade" in findings["schema"]["remedy"]


def test_a_table_that_is_missing_is_the_only_finding(retryflow: Command, healthy: Busy) -> None:
    plant(healthy, "DROP TABLE entity_locks")
    answer = retryflow("doctor", "-f", "json", database=healthy.url)
    assert answer.status == 1
    findings = found(answer)
    assert list(findings) == ["schema"]
    assert "lost its table entity_locks" in findings["schema"]["what"]
    assert "retryflow db upgrade" in findings["schema"]["remedy"]


@pytest.mark.parametrize(
    ("url", "check", "told"),
    [
        ("sqlite:///{}/none.sqlite", "schema", "there is no database"),
        ("sqlite:///{}/text", "database", "not a database"),
        ("postgresql+psycopg://me:ge@heim@127.0.0.1:1/x", "database", "has an @ in its user or password"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_finding(
    retryflow: Command, tmp_path: Any, url: str, check: str, told: str
) -> None:
    (tmp_path / "text").write_text("certainly no database " * 100)
    answer = retryflow("doctor", "-f", "json", database=url.format(tmp_path))
    assert (answer.status, answer.err) == (1, "")
    findings = found(answer)
    assert list(findings) == [check]
    assert told in findings[check]["what"]
    assert "heim" not in answer.out


def test_a_database_that_is_away_is_found_without_its_password(retryflow: Command) -> None:
    answer = retryflow("doctor", "-f", "json", database="postgresql+psycopg://me:geheim@127.0.0.1:1/x")
    assert answer.status == 1
    assert list(found(answer)) == ["database"]
    assert "geheim" not in answer.out


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[lease]\nrenew_seconds = 15\n", "renew_seconds"),
        ("[queue]\nread_ahead = 100\n", "read_ahead"),
        ("[DEFAULT]\ngraceful_shutdown_timeout = 160\n", "graceful_shutdown_timeout"),
        ("[scheduler]\nretry_lock_timeout_seconds = 15\n", "retry_lock_timeout_seconds"),
        ("[scheduler]\nbatch_size = lots\n", "batch_size"),
        ("[health]\naddress = somewhere\n", "[health] address 'somewhere'"),
        ("[certificate]\nenabled_certificate_plugins = nonesuch\n", "cannot load nonesuch"),
        ("[DEFAULT]\nlog_file = /nonexistent/x.log\n", "the log cannot be written to /nonexistent/x.log (No such file"),
        ("[DEFAULT]\nlog_file = /tmp\n", "the log cannot be written to /tmp (Is a directory"),
        ("[DEFAULT]\nlog_dir = /nonexistent\n", "the log cannot be written to /nonexistent/"),
        ("[DEFAULT]\nlog_config_append = /nonexistent/x.conf\n", "Error loading logging config /nonexistent/x.conf"),
        ("[DEFAULT]\nlog_config_append = /dev/null\n", "no section [formatters]"),
        ("[DEFAULT]\nuse_syslog = true\nsyslog_log_facility = bogus\n", "facility"),
        (
            "[oslo_reports]\nfile_event_handler = /nonexistent/f\n",
            "file_event_handler /nonexistent/f cannot be watched",
        ),
    ],
)
def test_a_configuration_that_contradicts_itself_is_found(
    retryflow: Command, healthy: Busy, tmp_path: Any, text: str, word: str
) -> None:
    file = tmp_path / "wrong.conf"
    file.write_text(f"[database]\nconnection = {healthy.url}\n{text}")
    answer = retryflow("doctor", "-f", "json", "--config-file", file)
    assert answer.status == 1
    assert word in found(answer)["configuration"]["what"]


def configured(tmp_path: Any, url: str, text: str) -> list[Any]:
    file = tmp_path / "configured.conf"
    file.write_text(f"{text}[database]\nconnection = {url}\n")
    return ["--config-file", file]


def test_looking_at_the_log_makes_none(retryflow: Command, healthy: Busy, tmp_path: Any) -> None:
    """It would belong to whoever has run doctor, and the daemon could not write to it."""
    text = f"[DEFAULT]\nlog_file = {tmp_path / 'daemon.log'}\n[health]\nfile = {tmp_path / '{prog}.json'}\n"
    options = configured(tmp_path, healthy.url, text)
    before = sorted(tmp_path.iterdir())
    assert retryflow("doctor", "-f", "json", *options).json == []
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "option", ["[health]\nfile = /nonexistent/{prog}.json", "[DEFAULT]\nshutdown_report_file = /nonexistent/{pid}.json"]
)
def test_a_place_that_nobody_can_write_to_is_a_warning(
    retryflow: Command, healthy: Busy, tmp_path: Any, option: str
) -> None:
    answer = retryflow("doctor", "-f", "json", *configured(tmp_path, healthy.url, f"{option}\n"))
    finding = found(answer)["configuration"]
    assert (answer.status, finding["severity"]) == (0, "warning")
    assert "/nonexistent/" in finding["what"]
    assert "cannot be written (No such file or directory)" in finding["what"]


def test_what_only_this_user_may_not_write_to_is_a_warning(
    retryflow: Command, healthy: Busy, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemons' user may; and the superuser, whom these tests may run as, may all."""
    monkeypatch.setattr("retryflow.conf.places.os.access", lambda *_: False)
    text = f"[DEFAULT]\nlog_file = {tmp_path / 'daemon.log'}\n"
    answer = retryflow("doctor", "-f", "json", *configured(tmp_path, healthy.url, text))
    finding = found(answer)["configuration"]
    assert (answer.status, finding["severity"]) == (0, "warning")
    assert "Permission denied" in finding["what"]
    assert "daemons' user" in finding["remedy"]


@pytest.mark.parametrize("text", ["[lease\n", None])
def test_a_file_that_cannot_be_read_is_a_finding(retryflow: Command, tmp_path: Any, text: str | None) -> None:
    file = tmp_path / "torn.conf"
    if text is not None:
        file.write_text(text)
    answer = retryflow("doctor", "-f", "json", "--config-file", file)
    assert (answer.status, answer.err) == (1, "")
    [finding] = found(answer).values()
    assert (finding["check"], "torn.conf" in finding["what"]) == ("configuration", True)


def test_a_url_that_cannot_be_read_is_a_finding_without_its_password(retryflow: Command, tmp_path: Any) -> None:
    answer = retryflow("doctor", "-f", "json", *configured(tmp_path, "postgresql+psycopg://me:ge$heim@h/x", ""))
    assert (answer.status, answer.err) == (1, "")
    rows = json.loads(answer.out)
    assert [row["check"] for row in rows] == ["configuration"]
    assert "[database] connection has a $ " in rows[0]["what"]
    assert "heim" not in answer.out


def test_a_value_out_of_range_is_no_fault_of_the_database(retryflow: Command, healthy: Busy, tmp_path: Any) -> None:
    options = configured(tmp_path, healthy.url, "[lease]\nlease_seconds = -1\n")
    answer = retryflow("doctor", "-f", "json", *options)
    assert [row["check"] for row in json.loads(answer.out)] == ["configuration"]


def test_each_reason_to_refuse_is_found_at_once(retryflow: Command, healthy: Busy, tmp_path: Any) -> None:
    text = "[health]\naddress = somewhere\n[oslo_reports]\nfile_event_handler = /nonexistent/f\n"
    text += "[certificate]\nenabled_certificate_plugins = nonesuch\n"
    answer = retryflow("doctor", "-f", "json", *configured(tmp_path, healthy.url, text))
    told = " ".join(row["what"] for row in json.loads(answer.out) if row["check"] == "configuration")
    assert [word for word in ("[health] address", "file_event_handler", "nonesuch") if word not in told] == []


def test_all_values_that_cannot_be_read_are_found_at_once(retryflow: Command, healthy: Busy, tmp_path: Any) -> None:
    file = tmp_path / "wrong.conf"
    wrong = "[scheduler]\nbatch_size = lots\n[lease]\nrenew_seconds = nan\n[retry]\njitter = 2\n"
    file.write_text(f"[DEFAULT]\nmanager_shutdown_timeout = soon\n[database]\nconnection = {healthy.url}\n{wrong}")
    answer = retryflow("doctor", "-f", "json", "--config-file", file)
    assert answer.status == 1
    told = [row["what"] for row in json.loads(answer.out) if row["check"] == "configuration"]
    for name in ("manager_shutdown_timeout", "batch_size", "renew_seconds", "jitter"):
        assert sum(name in line for line in told) == 1, (name, told)


def test_a_misspelt_option_is_a_warning(retryflow: Command, healthy: Busy, tmp_path: Any) -> None:
    file = tmp_path / "misspelt.conf"
    file.write_text(f"[database]\nconnection = {healthy.url}\n[lease]\nlease_second = 30\n")
    answer = retryflow("doctor", "-f", "json", "--config-file", file)
    assert answer.status == 0
    [row] = answer.json
    assert (row["check"], row["severity"], row["remedy"]) == ("unknown-option", "warning", "is lease_seconds meant?")
    assert "[lease] lease_second" in row["what"]


def test_a_broker_that_is_away_is_found_without_its_password(retryflow: Command, healthy: Busy, tmp_path: Any) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        f"[DEFAULT]\ntransport_url = rabbit://me:geheim@127.0.0.1:1//\n[database]\nconnection = {healthy.url}\n"
    )
    answer = retryflow("doctor", "-f", "json", "--config-file", file)
    assert answer.status == 1
    assert list(found(answer)) == ["broker"]
    assert "geheim" not in answer.out + answer.err


def test_a_broker_password_that_cannot_be_used_is_found_once_with_the_others(
    retryflow: Command, healthy: Busy, tmp_path: Any
) -> None:
    plant(healthy, *FAULTS["leftovers"][0])
    file = tmp_path / "slash.conf"
    file.write_text(
        "[DEFAULT]\ntransport_url = rabbit://me:ge%2Fheim@127.0.0.1:1//\n"
        f"[database]\nconnection = {healthy.url}\n[lease]\nrenew_seconds = 15\n"
    )
    answer = retryflow("doctor", "-f", "json", "--config-file", file)
    assert answer.status == 1
    rows = json.loads(answer.out)
    assert [row["check"] for row in rows] == ["configuration", "configuration", "leftovers"]
    assert ("renew_seconds" in rows[0]["what"], "a slash in it" in rows[1]["what"]) == (True, True)
    assert all(row["what"] and row["remedy"] for row in rows)
    assert "heim" not in answer.out + answer.err


def test_a_clock_that_is_off_is_found(healthy: Busy) -> None:
    import time

    register_all(CONF)
    CONF([], project="retryflow", default_config_files=[], default_config_dirs=[])
    CONF.set_override("connection", healthy.url, "database")
    try:
        store = Store(CONF)
        assert list(database.check_clock(store)) == []
        [behind] = database.check_clock(store, clock=lambda: time.time() - 100)
        [ahead] = database.check_clock(store, clock=lambda: time.time() + 100)
        store.close()
    finally:
        CONF.clear_override("connection", "database")
        CONF.reset()
    assert "behind the database" in behind.what
    assert "ahead of the database" in ahead.what
