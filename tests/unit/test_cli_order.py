"""``order show`` tells the whole story; ``order create`` submits and waits."""

import base64
import io
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization

from retryflow.cli.progress import Progress
from retryflow.cli.store import Store
from retryflow.conf import CONF, register_all
from retryflow.model import events, leases, orders, retry_rows
from retryflow.model.transaction import read, transact
from tests.fixtures.busy import Busy, plain
from tests.fixtures.certificates import new_csr, pem
from tests.fixtures.command import Command

COUNTS = {"retry_count": 0, "poll_count": 0, "crash_count": 0}


def test_an_order_that_waits_for_its_next_look_is_shown_in_full(retryflow: Command, busy: Busy) -> None:
    shown = plain(retryflow("order", "show", "polls", "-f", "json", database=busy.url).json)
    [step] = shown.pop("next_step")
    assert 3500 < step.pop("due_in_seconds") <= 3600
    assert step == {
        "step": "retry",
        "task": "check_certificate_status",
        "at": "TIME",
        "stands_behind": None,
        "last_error": None,
        "request_id": "req-1",
        **COUNTS,
    }
    worker = f"{busy.alive.host}:{busy.alive.pid}"
    nothing = {"task_id": None, "worker": None, "seconds": None, "detail": None}
    assert shown == {
        "id": "polls",
        "status": "PENDING",
        "sub_status": None,
        "sub_status_message": None,
        "type": "certificate",
        "project_id": "p1",
        "request_id": "req-1",
        "created_at": "TIME",
        "updated_at": "TIME",
        "error_status_code": None,
        "error_reason": None,
        "last_error": None,
        "plugin_name": None,
        "meta": {"name": "polls"},
        "plugin_state": None,
        "history": [
            {
                "at": "TIME",
                "last_at": "TIME",
                "count": 1,
                "event": "submitted",
                "task": "process_type_order",
                **nothing,
            },
            {
                "at": "TIME",
                "last_at": "TIME",
                "count": 1,
                "event": "polling",
                "task": "process_type_order",
                "task_id": "t1",
                "worker": worker,
                "seconds": 0.25,
                "detail": "the authority thinks",
            },
        ],
        "result": None,
        "certificate": None,
        "chain": None,
    }


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ("waits", "waits for a worker since"),
        ("runs", "runs on"),
        ("lost", "was lost with node7:4711 (gone); a scheduler takes it up now"),
        ("polls", "is due in 1h"),
        ("stuck", "none: it is stuck"),
    ],
)
def test_people_are_told_what_happens_next(retryflow: Command, busy: Busy, order: str, told: str) -> None:
    assert told in retryflow("order", "show", order, "-c", "next_step", database=busy.url).out


def test_an_ended_order_has_its_result_and_its_certificate(retryflow: Command, busy: Busy, tmp_path: Path) -> None:
    shown = retryflow("order", "show", "done", "-f", "json", database=busy.url).json
    assert (shown["result"], shown["certificate"], shown["chain"]) == ({"serial": "1f"}, "PEM C", "PEM A")
    assert retryflow("order", "show", "done", "-f", "value", "-c", "certificate", database=busy.url).out == "PEM C\n"
    files = [tmp_path / "certificate", tmp_path / "chain"]
    answer = retryflow("order", "show", "done", "--certificate", files[0], "--chain", files[1], database=busy.url)
    assert answer.status == 0
    assert [file.read_text() for file in files] == ["PEM C", "PEM A"]


def test_people_are_spared_empty_fields_unless_they_ask_for_them(retryflow: Command, busy: Busy) -> None:
    show = ["order", "show", "waits"]
    assert "error_reason" not in retryflow(*show, database=busy.url).out
    assert "error_reason" in retryflow(*show, "--print-empty", database=busy.url).out
    assert "error_reason" in retryflow(*show, "-c", "error_reason", database=busy.url).out
    assert retryflow(*show, "-f", "json", database=busy.url).json["error_reason"] is None


def test_a_failed_order_says_why_and_has_no_certificate(retryflow: Command, busy: Busy, tmp_path: Path) -> None:
    shown = retryflow("order", "show", "failed", "-f", "json", database=busy.url).json
    assert (shown["error_status_code"], shown["error_reason"], shown["last_error"]) == (
        "400",
        "bad request",
        "bad request",
    )
    answer = retryflow("order", "show", "failed", "--certificate", tmp_path / "file", database=busy.url)
    answer.assert_refused("order failed has no certificate")
    assert not (tmp_path / "file").exists()


def test_an_order_that_there_is_not_is_one_line(retryflow: Command, busy: Busy) -> None:
    retryflow("order", "show", "nobody", database=busy.url).assert_refused("no order nobody", "retryflow order list")


def test_secrets_in_meta_are_masked(retryflow: Command, busy: Busy) -> None:
    transact(busy.engine, lambda connection: orders.update_pending(connection, "stuck", meta={"password": "geheim"}))
    for form in ("json", "table"):
        answer = retryflow("order", "show", "stuck", "-f", form, database=busy.url)
        assert answer.status == 0
        assert "geheim" not in answer.out


def test_secrets_are_masked_however_deep_and_in_the_result(retryflow: Command, busy: Busy) -> None:
    deep = {
        "backend": {"login": {"user": "me", "pin": "geheim"}, "hosts": [{"api_key": "geheim", "port": 1}]},
        "listed": [["shown", {"db_password": "geheim"}], "password=geheim"],
        "where": "mysql://me:geheim@host/name",
        "pinned": "shown",
        "token": None,
    }
    transact(
        busy.engine,
        lambda connection: (
            orders.update_pending(connection, "stuck", meta=deep),
            orders.update_pending(connection, "polls", status="ACTIVE", result={"secret": "geheim", "serial": "2a"}),
        ),
    )
    shown = retryflow("order", "show", "stuck", "-f", "json", database=busy.url)
    meta = shown.json["meta"]
    assert (meta["backend"]["hosts"], meta["pinned"], meta["token"]) == ([{"api_key": "***", "port": 1}], "shown", None)
    assert retryflow("order", "show", "polls", "-f", "json", database=busy.url).json["result"] == {
        "secret": "***",
        "serial": "2a",
    }
    for order_id in ("stuck", "polls"):
        for form in ("json", "table", "yaml", "value"):
            assert "geheim" not in retryflow("order", "show", order_id, "-f", form, database=busy.url).out


def test_the_error_of_a_row_that_was_set_aside_is_the_last_error(retryflow: Command, busy: Busy) -> None:
    """No line of the history tells it: nothing has happened to the order."""

    def set_aside(connection: sa.Connection) -> None:
        row_id = connection.execute(sa.text("SELECT id FROM order_retry_tasks WHERE order_id = 'polls'")).scalar_one()
        retry_rows.push_out(connection, row_id, after_seconds=60.0, error="no such order type: retired")
        connection.execute(sa.text("UPDATE order_task_leases SET expires_at = '2020-01-01 00:00:00.000000'"))
        leases.push_out(connection, "lease-waits", after_seconds=60.0, error="its clock cannot be read")

    transact(busy.engine, set_aside)
    for order_id, error in (("polls", "no such order type: retired"), ("waits", "its clock cannot be read")):
        shown = retryflow("order", "show", order_id, "-f", "json", database=busy.url).json
        assert (shown["last_error"], shown["next_step"][0]["last_error"]) == (error, error)
        assert error in retryflow("order", "show", order_id, "-c", "last_error", database=busy.url).out


def test_create_writes_order_and_lease_and_leaves_the_ticket_to_the_scheduler(retryflow: Command, empty: str) -> None:
    shown = plain(retryflow("order", "create", "--type", "probe", "--project", "p2", "-f", "json", database=empty).json)
    order_id = shown.pop("id")
    [step] = shown.pop("next_step")
    assert (step["step"], step["sent_count"]) == ("waits for a worker", 0)
    request_id = f"req-{order_id}"
    assert (step["request_id"], shown.pop("request_id")) == (request_id, request_id)
    assert shown == {"status": "PENDING", "type": "probe", "project_id": "p2", "created_at": "TIME"}
    [row] = retryflow("order", "list", "-f", "json", database=empty).json
    assert row["id"] == order_id


def test_create_twice_with_one_id_makes_one_order(retryflow: Command, empty: str) -> None:
    for _ in range(2):
        assert retryflow("order", "create", "--type", "probe", "--id", "mine", database=empty).status == 0
    assert len(retryflow("order", "list", "-f", "json", database=empty).json) == 1


def test_create_puts_meta_together(retryflow: Command, empty: str, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(json.dumps({"a": 1, "b": 2}))
    request = new_csr()
    (tmp_path / "csr.pem").write_text(pem(request))
    create = ["order", "create", "--type", "certificate", "--id", "mine"]
    pairs = ["--meta-file", tmp_path / "meta.json", "--meta", "b=x=y", "--meta", "c:=[1, null]"]
    assert retryflow(*create, *pairs, "--csr", tmp_path / "csr.pem", database=empty).status == 0
    meta = retryflow("order", "show", "mine", "-f", "json", database=empty).json["meta"]
    assert meta == {"a": 1, "b": "x=y", "c": [1, None], "csr": pem(request)}


def test_create_sends_a_der_request_as_base64(retryflow: Command, empty: str, tmp_path: Path) -> None:
    der = new_csr().public_bytes(serialization.Encoding.DER)
    (tmp_path / "csr.der").write_bytes(der)
    create = ["order", "create", "--type", "certificate", "--id", "mine", "--csr", tmp_path / "csr.der"]
    assert retryflow(*create, database=empty).status == 0
    meta = retryflow("order", "show", "mine", "-f", "json", database=empty).json["meta"]
    assert base64.b64decode(meta["csr"]) == der


def test_create_reads_standard_input(retryflow: Command, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
    assert retryflow("order", "create", "--type", "t", "--meta-file", "-", "--id", "mine", database=empty).status == 0
    assert retryflow("order", "show", "mine", "-f", "json", database=empty).json["meta"] == {"from": "stdin"}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--csr", "/no/such/file"], "/no/such/file"),
        (["--meta", "novalue"], "KEY=TEXT"),
        (["--meta", "=x"], "KEY=TEXT"),
        (["--meta", "a:=}"], "no JSON"),
        (["--meta", 'a:="\\ud800"'], "whole characters; '\\ud800' is half of one"),
        (["--meta", "a=\udcff"], "whole characters; '\\udcff' is half of one"),
        (["--csr", "/dev/null"], "/dev/null is empty"),
        (["--meta-file", "/dev/null"], "no JSON"),
        (["--id", "x" * 37], "1 to 36 characters"),
        (["--project", ""], "1 to 64 characters"),
    ],
)
def test_create_refuses_bad_input_in_one_line_and_writes_nothing(
    retryflow: Command, empty: str, options: list[str], word: str
) -> None:
    retryflow("order", "create", "--type", "t", *options, database=empty).assert_refused(word)
    assert retryflow("order", "list", "-f", "json", database=empty).json == []


def test_create_with_a_broker_password_that_cannot_be_used_leaves_no_order_behind(
    retryflow: Command, empty: str, tmp_path: Path
) -> None:
    file = tmp_path / "slash.conf"
    file.write_text("[DEFAULT]\ntransport_url = rabbit://me:ge%2Fheim@127.0.0.1:1//\n")
    answer = retryflow("order", "create", "--type", "t", "--config-file", file, database=empty)
    answer.assert_refused("[DEFAULT] transport_url", "slash")
    assert "heim" not in answer.err
    assert retryflow("order", "list", "-f", "json", database=empty).json == []


def test_wait_tells_each_change_as_it_happens(busy: Busy) -> None:
    changes = iter(
        [
            lambda connection: events.add(connection, "stuck", events.POLLING, task="t", detail="not yet"),
            lambda connection: events.add(connection, "stuck", events.POLLING, task="t", detail="not yet"),
            lambda connection: orders.update_pending(connection, "stuck", status="ACTIVE"),
        ]
    )
    register_all(CONF)
    CONF([], project="retryflow", default_config_files=[], default_config_dirs=[])
    CONF.set_override("connection", busy.url, "database")
    seen: list[str] = []
    try:
        progress = Progress(
            Store(CONF), "stuck", say=seen.append, sleep=lambda seconds: transact(busy.engine, next(changes))
        )
        assert progress.until_ended(None) == "ACTIVE"
    finally:
        CONF.clear_override("connection", "database")
    told = [line.partition(" ")[2] for line in seen]
    assert told[:2] == ["submitted, process_type_order", "polling, t: not yet"]
    assert told[2].startswith("polling, 2 times, last ")
    assert len(told) == 3


def test_wait_gives_up_when_time_has_run_out_and_the_order_goes_on(retryflow: Command, empty: str) -> None:
    answer = retryflow("order", "create", "--type", "t", "--wait", "--timeout", "0", "-f", "json", database=empty)
    assert answer.status == 3
    assert json.loads(answer.out)["status"] == "PENDING"
    assert "still PENDING" in answer.err
    assert "submitted, process_type_order" in answer.err


def test_wait_returns_the_order_s_end_as_exit_status(retryflow: Command, busy: Busy) -> None:
    for order_id, status in (("done", 0), ("failed", 1)):
        answer = retryflow("order", "create", "--type", "certificate", "--id", order_id, "--wait", database=busy.url)
        assert answer.status == status
    assert read(busy.engine, lambda connection: orders.get(connection, "done")).status == "ACTIVE"
