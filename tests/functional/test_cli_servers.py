"""The operator's command on real servers: the same answers on each database, and a doctor who looks at the broker."""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import amqp
import pytest
import sqlalchemy as sa

from retryflow.model import processes
from retryflow.model.identity import ProcessIdentity
from retryflow.queue.connection import BrokerConnection
from tests.fixtures.busy import Busy, plain
from tests.fixtures.command import Command
from tests.fixtures.databases import new_database
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import Rabbit, eventually

READING = [
    "order list",
    "order list --status PENDING --status ERROR --limit 3",
    "order list --oldest-first --limit 2 --marker runs",
    "order list --status PENDING --type certificate --limit 2",
    "order list --status PENDING --type certificate --limit 2 --marker runs",
    "order list --type certificate --oldest-first --newer-than 11m30s",
    "order list --stuck",
    "order list --older-than 14m30s",
    "order list --newer-than 11m30s",
    "order list --newer-than 36500d",
    "stats --window 36500d",
    "order show polls",
    "order show lost",
    "order show done",
    "order show failed",
    "retry list",
    "retry list --due",
    "lease list",
    "lease list --running --limit 1 --marker lease-lost",
    "worker list",
    "lock show",
    "stats",
    "doctor",
]
STEERING = [
    ("order cancel polls", "order polls is cancelled"),
    ("order retry failed", "order failed is PENDING again"),
    ("order delete done --yes", "order done is deleted"),
    ("retry run-now lost2", "no order lost2"),
    ("lock break --yes", "the lock is broken"),
    ("db check", "as it should be"),
    ("db upgrade", "already"),
    ("db purge --older-than 1m --events-older-than 1s --dry-run", "of history would be removed"),
    ("db purge --older-than 1m --events-older-than 1s", "removed"),
]


@pytest.fixture(params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Busy]:
    """The busy database on a real server."""
    with new_database(request.param, tmp_path) as url:
        made = Busy(url)
        yield made
        made.close()


def comparable(value: Any) -> Any:
    """Without what differs from one second, or one process, to the next."""
    match value:
        case dict():
            return {key: comparable(member) for key, member in value.items() if key != "id" or len(str(member)) != 36}
        case list():
            return [comparable(member) for member in value]
        case float():
            return "SECONDS"
        case str() if value.startswith(("the database", "the clock")) or "durability" in value:
            return "SETTING"
    return plain(value)


def test_every_command_answers_the_same_on_each_database(retryflow: Command, busy: Busy, server: Busy) -> None:
    holders = {busy.alive.holder: "ALIVE", server.alive.holder: "ALIVE"}
    for words in READING:
        answers = []
        for url in (busy.url, server.url):
            answer = retryflow(*words.split(), "-f", "json", database=url)
            text = answer.out
            for holder, name in holders.items():
                text = text.replace(holder, name)
            rows = comparable(json.loads(text))
            if words == "doctor":
                rows = [row for row in rows if row["check"] not in ("durability", "clock", "broker")]
            answers.append((answer.status, rows))
        assert answers[0] == answers[1], words


def test_every_command_that_changes_something_works_on_each_database(retryflow: Command, server: Busy) -> None:
    server.lock("node7:4711:0123:abcd")
    for words, told in STEERING:
        answer = retryflow(*words.split(), database=server.url)
        assert told in answer.err, (words, answer)
    create = retryflow("order", "create", "--type", "t", "--id", "mine", "-f", "json", database=server.url)
    assert create.json["status"] == "PENDING"
    answer = retryflow("order", "create", "--type", "t", "--wait", "--timeout", "0", "-f", "json", database=server.url)
    assert answer.status == 3


def test_doctor_repairs_on_each_database(retryflow: Command, server: Busy) -> None:
    with server.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET updated_at = '2020-01-01 00:00:00' WHERE id = 'stuck'"))
        connection.execute(sa.text("UPDATE orders SET status = 'ERROR' WHERE id = 'polls'"))
    answer = retryflow("doctor", "--fix", "-f", "json", database=server.url)
    fixed = {row["check"]: row["fixed"] for row in json.loads(answer.out)}
    assert fixed["no-next-step"] == "1 order put on the retry list"
    assert fixed["leftovers"] == "1 row removed"
    after = {row["check"] for row in json.loads(retryflow("doctor", "-f", "json", database=server.url).out)}
    assert not after & {"no-next-step", "leftovers"}


def databases_findings(retryflow: Command, url: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and what doctor has found about the database itself."""
    answer = retryflow("doctor", "-f", "json", database=url)
    assert answer.err == ""
    return answer.status, [row for row in json.loads(answer.out) if row["check"] == "database"]


def test_doctor_finds_a_database_that_only_reads(retryflow: Command, server: Busy) -> None:
    """A standby, a replica, or what somebody has set to be: all that reads works there."""
    assert databases_findings(retryflow, server.url)[1] == []
    url = sa.make_url(server.url)
    if url.get_backend_name() == "postgresql":
        with server.engine.begin() as connection:
            connection.execute(sa.text(f'ALTER DATABASE "{url.database}" SET default_transaction_read_only = on'))
    else:
        # Of the server's own switch, others who use it would hear as well.
        url = url.update_query_dict({"init_command": "SET SESSION TRANSACTION READ ONLY"})
    status, [found] = databases_findings(retryflow, url.render_as_string(hide_password=False))
    assert (status, found["severity"]) == (1, "broken")
    assert "writes nothing at all, it is read-only or full: " in found["what"]
    assert "standby" in found["remedy"]


RIGHTS = {
    "select": ("SELECT", "INSERT INTO daemon_processes, "),
    "no events": ("SELECT, INSERT, UPDATE, DELETE", "use public.order_events_id_seq: permission denied for sequence"),
    "no delete": ("SELECT, INSERT, UPDATE", "DELETE FROM daemon_processes, "),
}


@pytest.mark.parametrize("rights", RIGHTS)
def test_doctor_finds_a_database_user_who_may_not_write(retryflow: Command, server: Busy, rights: str) -> None:
    url = sa.make_url(server.url)
    postgresql = url.get_backend_name() == "postgresql"
    if not postgresql and rights == "no events":
        pytest.skip("there are no sequences")
    name = f"rf_{uuid.uuid4().hex[:20]}"
    granted, told = RIGHTS[rights]
    tables = "ALL TABLES IN SCHEMA public" if postgresql else f"`{url.database}`.*"
    with server.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE {'ROLE' if postgresql else 'USER'} {name} {'LOGIN' if postgresql else ''}")
    try:
        with server.engine.begin() as connection:
            connection.exec_driver_sql(f"GRANT {granted} ON {tables} TO {name}")
        mine = url.set(username=name, password=None).render_as_string(hide_password=False)
        status, [found] = databases_findings(retryflow, mine)
        assert (status, found["severity"]) == (1, "broken")
        assert found["what"].startswith("the database user may not ")
        assert told in found["what"]
        assert "denied" in found["what"]
        assert "grant it SELECT, INSERT, UPDATE and DELETE" in found["remedy"]
    finally:
        with server.engine.begin() as connection:
            if postgresql:
                connection.exec_driver_sql(f"DROP OWNED BY {name}")
            connection.exec_driver_sql(f"DROP {'ROLE' if postgresql else 'USER'} {name}")


def test_doctor_warns_where_somebody_keeps_all_others_from_writing(retryflow: Command, server: Busy) -> None:
    limit, lock = ("idle_transaction_timeout", "LOCK TABLES orders READ")
    if server.engine.dialect.name == "postgresql":
        limit, lock = ("idle_in_transaction_session_timeout", "LOCK TABLE orders IN SHARE MODE")
    with server.engine.connect() as connection:
        connection.exec_driver_sql(f"SET {limit} = 0")
        connection.exec_driver_sql(lock)
        _, [found] = databases_findings(retryflow, server.url)
        connection.invalidate()
    assert found["severity"] == "warning"
    assert found["what"].startswith("somebody keeps all others from writing to the database: ")


def test_a_missing_schema_is_one_line_on_each_database(retryflow: Command, database_url: str, tmp_path: Path) -> None:
    if database_url.startswith("sqlite"):
        Path(database_url.removeprefix("sqlite:///")).touch()
    for words in ("order list", "stats", "order create --type t"):
        retryflow(*words.split(), database=database_url).assert_refused("retryflow db upgrade")


def test_a_password_in_the_query_of_the_url_is_not_shown_where_the_database_answers(
    retryflow: Command, postgresql_url: str
) -> None:
    made = Busy(postgresql_url)
    made.close()
    url = f"{postgresql_url}?application_name=retryflow&password=geheim"
    for words in ("top --count 1", "db current", "db upgrade", "db check"):
        answer = retryflow(*words.split(), database=url)
        assert (answer.status, str(sa.make_url(url).database) in answer.out + answer.err) == (0, True), words
        assert "geheim" not in answer.out + answer.err, words


def checks(retryflow: Command, deployment: Deployment, **options: Any) -> dict[str, Any]:
    overrides = {("queue", name): value for name, value in options.items()}
    answer = retryflow("doctor", "-f", "json", *deployment.config(overrides))
    return {row["check"]: row for row in json.loads(answer.out) if row["check"] not in ("clock", "durability")}


def test_doctor_is_silent_on_a_deployment_at_work_and_finds_what_is_wrong_with_its_queue(
    retryflow: Command, make_deployment: Callable[[str], Deployment]
) -> None:
    deployment = make_deployment("postgresql")
    assert "no worker has ever started" in checks(retryflow, deployment)["queue"]["what"]
    worker = deployment.start("worker")
    deployment.start("scheduler")
    deployment.submit()
    deployment.wait_until_ended()
    deployment.wait_until_nothing_is_left()
    assert checks(retryflow, deployment) == {}
    worker.terminate()
    assert worker.wait() == 0
    eventually(lambda: deployment.consumers() == 0, "nobody consumes")
    assert "nobody listens" in checks(retryflow, deployment)["queue"]["what"]


def test_doctor_warns_where_nobody_has_named_a_broker_unless_the_standalone_daemon_is_at_work(
    retryflow: Command, server: Busy
) -> None:
    """The others would each take the one on their own host, without a word."""

    def found() -> list[Any]:
        answer = retryflow("doctor", "-f", "json", database=server.url)
        return [row for row in json.loads(answer.out) if row["check"] == "broker"]

    [finding] = found()
    assert finding["severity"] == "warning"
    assert "transport_url is not set" in finding["what"]
    with server.engine.begin() as connection:
        alive = server.alive
        scheduler = ProcessIdentity(f"{alive.holder}0", alive.host, alive.pid, alive.boot_id, 1, 1)
        processes.see(connection, scheduler, kind="scheduler", version="1.0.0", topic=None)
    assert found() == []


def test_doctor_finds_a_queue_that_a_restart_of_the_broker_would_empty(
    retryflow: Command, make_deployment: Callable[[str], Deployment], rabbit: Rabbit
) -> None:
    deployment = make_deployment("sqlite")
    with rabbit.channel() as channel:
        channel.queue_declare(rabbit.topic, durable=True, auto_delete=False, arguments={"x-queue-type": "classic"})
        findings = checks(retryflow, deployment)
    assert "not of the kind that is configured" in findings["queue"]["what"]


def test_doctor_warns_of_a_queue_that_is_configured_not_to_be_durable(
    retryflow: Command, make_deployment: Callable[[str], Deployment], rabbit: Rabbit
) -> None:
    deployment = make_deployment("sqlite")
    # Whether the broker would still make a transient one depends on its version; what is configured does not.
    rabbit.declare()
    not_durable = {
        ("oslo_messaging_rabbit", "rabbit_quorum_queue"): False,
        ("oslo_messaging_rabbit", "amqp_durable_queues"): False,
    }
    told = []
    for options in (not_durable, {}):
        answer = retryflow("doctor", "-f", "json", *deployment.config(options))
        told.append({row["what"]: row["severity"] for row in json.loads(answer.out) if row["check"] == "queue"})
    [found] = [what for what in told[0] if "is configured not to be durable" in what]
    assert (told[0][found], rabbit.topic in found) == ("warning", True)
    assert not any("durable" in what for what in told[1])


@pytest.mark.parametrize("refused", ["everything", "the exchange"])
def test_a_broker_that_refuses_a_question_costs_one_finding_and_not_the_answer(
    retryflow: Command,
    make_deployment: Callable[[str], Deployment],
    rabbit: Rabbit,
    monkeypatch: pytest.MonkeyPatch,
    refused: str,
) -> None:
    deployment = make_deployment("postgresql")
    deployment.submit()
    with rabbit.channel() as channel:
        if refused == "everything":
            # The broker answers nobody else's question about a queue that belongs to one connection.
            channel.queue_declare(rabbit.topic, exclusive=True)
        else:
            # What a user without permissions gets, who may look at the queue all the same.
            rabbit.declare()
            refusal = amqp.AccessRefused("access to exchange refused for user 'me'", (40, 10), "Exchange.declare")
            monkeypatch.setattr(BrokerConnection, "declare_topic_consumer", Mock(side_effect=refusal))
        answer = retryflow("doctor", "-f", "json", *deployment.config())
    assert (answer.status, answer.err) == (1, "")
    rows = [row for row in json.loads(answer.out) if row["check"] not in ("clock", "durability", "queue")]
    assert [row["check"] for row in rows] == ["no-worker", "no-scheduler", "broker"]
    assert rows[-1]["what"].startswith("the broker refused a question: ")
    assert "permissions" in rows[-1]["remedy"]


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda url: f"{url}-nonesuch", "virtual host"),
        (lambda url: re.sub(r":[^:@/]+@", ":geheim@", url), "password"),
    ],
    ids=["virtual host", "password"],
)
def test_doctor_tells_a_broker_that_refuses_from_one_that_is_away(
    retryflow: Command,
    make_deployment: Callable[[str], Deployment],
    rabbit: Rabbit,
    change: Callable[[str], str],
    remedy: str,
) -> None:
    deployment = make_deployment("sqlite")
    options = {(None, "transport_url"): change(rabbit.url)}
    answer = retryflow("doctor", "-f", "json", *deployment.config(options))
    [found] = [row for row in json.loads(answer.out) if row["check"] == "broker"]
    assert "refuses this user" in found["what"]
    assert remedy in found["remedy"]
    assert "geheim" not in answer.out + answer.err


def test_run_now_wakes_a_scheduler_that_sleeps(
    retryflow: Command, make_deployment: Callable[[str], Deployment]
) -> None:
    deployment = make_deployment("postgresql")
    sleepy = {("scheduler", "schedule_period_seconds"): 3000.0}
    deployment.start("worker", sleepy)
    deployment.start("scheduler", sleepy)
    [order_id] = deployment.submit(steps=["poll 2000", "done"])
    # The ticket was left to the scheduler, which sleeps; there is nothing on the list yet, but it is woken.
    assert retryflow("retry", "run-now", order_id, *deployment.config()).status == 1
    eventually(lambda: "polling" in [event.event for event in deployment.history(order_id)], "it polls")
    assert retryflow("retry", "run-now", order_id, *deployment.config()).status == 0
    assert deployment.wait_until_ended(timeout_seconds=60) == {"ACTIVE": 1}


def test_a_cancelled_order_s_running_task_has_no_effect(
    retryflow: Command, make_deployment: Callable[[str], Deployment]
) -> None:
    """T12."""
    deployment = make_deployment("mysql")
    hold = deployment.directory / "hold"
    hold.touch()
    deployment.start("worker")
    deployment.start("scheduler")
    [order_id] = deployment.submit(steps=[f"hold {hold}"])
    eventually(lambda: deployment.runs("start"), "it runs")
    config = deployment.config()
    [lease] = retryflow("lease", "list", "-f", "json", *config).json
    assert (lease["state"], lease["worker_is"]) == ("running", "alive")
    assert retryflow("order", "cancel", order_id, *config).status == 0
    hold.unlink()
    eventually(lambda: deployment.runs("end"), "it ends")
    shown = retryflow("order", "show", order_id, "-f", "json", *config).json
    assert (shown["status"], shown["sub_status"], shown["next_step"]) == ("ERROR", "cancelled", None)
