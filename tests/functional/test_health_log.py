"""What the logs say: the request id in every line about an order, and no secret anywhere."""

import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.retry.submit import NewOrder, submit
from tests.fixtures.deployment import Deployment
from tests.fixtures.processes import Daemon
from tests.fixtures.rabbit import Rabbit, eventually
from tests.fixtures.tcp_proxy import TcpProxy

DEBUG: dict[tuple[str | None, str], Any] = {(None, "debug"): "true"}
SECRET = "hunter2secret"


def lines_about(words: set[str], *daemons: Daemon) -> list[str]:
    """Log lines (not those of a traceback) in which one of the words stands."""
    return [
        line.text
        for daemon in daemons
        for line in daemon.lines()
        if any(word in line.text for word in words) and re.match(r"\d{4}-\d\d-\d\d ", line.text)
    ]


def submit_one(deployment: Deployment, steps: list[str], request_id: str | None, **meta: Any) -> str:
    new = NewOrder(
        type="probe",
        meta={"trace": str(deployment.trace), "steps": steps, **meta},
        project_id="p1",
        request_id=request_id,
    )
    return submit(deployment.engine, [new], settings=deployment.settings)[0]


@pytest.mark.parametrize("request_id", ["req-6f1c2a52-0000-4000-8000-c0ffee000001", None])
def test_each_line_about_an_order_bears_its_request_id_through_every_retry(
    make_deployment: Callable[[str], Deployment], request_id: str | None
) -> None:
    """From submit through failures, a poll, the worker's death and its recovery, on whatever thread it is logged."""
    deployment = make_deployment("postgresql")
    scheduler = deployment.start("scheduler", DEBUG)
    first = deployment.start("worker", DEBUG)
    hold = deployment.directory / "hold"
    hold.touch()
    order_id = submit_one(deployment, ["unavailable|unavailable|poll 0", f"hold {hold}", "raise"], request_id)
    eventually(lambda: len(deployment.runs("start")) >= 4, "the order has come to its second step")
    first.kill()
    second = deployment.start("worker", DEBUG)
    eventually(lambda: len(deployment.runs("start")) >= 5, "it runs again")
    hold.unlink()
    deployment.wait_until_ended()

    wanted = request_id or f"req-{order_id}"
    words = {order_id, *(run.task_id for run in deployment.runs())}
    about = lines_about(words, scheduler, first, second)
    assert [line for line in about if "unavailable" in line or "will be tried again" in line], "the retries are there"
    assert [line for line in about if "failed" in line]
    assert [line for line in about if f"[{wanted}]" not in line] == []


def test_what_the_lease_keeper_says_of_a_task_bears_its_request_id(
    make_deployment: Callable[[str], Deployment],
) -> None:
    deployment = make_deployment("postgresql")
    deployment.start("scheduler", DEBUG)
    worker = deployment.start("worker", DEBUG)
    hold = deployment.directory / "hold"
    hold.touch()
    order_id = submit_one(deployment, [f"hold {hold}"], "req-of-the-lost-lease")
    eventually(lambda: deployment.runs("start"), "it runs")
    with deployment.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM order_task_leases"))
    worker.wait_for_log(rf"\[req-of-the-lost-lease\] order {order_id}: task .* has lost its lease")
    hold.unlink()
    worker.wait_for_log(r"\[req-of-the-lost-lease\] .*(fence|lost|outcome)", count=2)


# --- secrets ---


def everything(*daemons: Daemon) -> str:
    return "\n".join(daemon.log() for daemon in daemons)


def with_password(rabbit: Rabbit, port: int) -> dict[tuple[str | None, str], Any]:
    """The way through a proxy with a password that the broker does not know."""
    options = dict(rabbit.through(port).overrides)
    options[None, "transport_url"] = f"rabbit://somebody:{SECRET}@127.0.0.1:{port}//"
    return options


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
@pytest.mark.parametrize("broken", ["refusing", "wrong password"])
def test_a_broker_s_password_is_in_no_log(
    make_deployment: Callable[[str], Deployment], tcp_proxies: list[TcpProxy], kind: str, broken: str
) -> None:
    deployment = make_deployment("sqlite")
    proxy = TcpProxy(deployment.rabbit.host(), deployment.rabbit.port())
    tcp_proxies.append(proxy)
    if broken == "refusing":
        proxy.refuse()
    options = {**DEBUG, **with_password(deployment.rabbit, proxy.port)}
    daemon = deployment.start(kind, options, ready=False)
    daemon.wait_for_log("cannot consume from")
    deployment.submit()
    if kind == "scheduler":
        daemon.wait_for_log("not confirmed|not sent")
    daemon.send(signal.SIGUSR2)
    daemon.wait_for_log("Lock on the retry list")
    daemon.wait_for_log("^holder = ")
    daemon.terminate()
    assert daemon.wait() == 0
    assert "transport_url = ***" in daemon.log()
    assert SECRET not in daemon.log()


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_database_s_password_is_in_no_log(
    make_deployment: Callable[[str], Deployment], tcp_proxies: list[TcpProxy], driver: str
) -> None:
    deployment = make_deployment("sqlite")
    proxy = TcpProxy("127.0.0.1", 1)
    tcp_proxies.append(proxy)
    url = f"{driver}://somebody:{SECRET}@127.0.0.1:{proxy.port}/x"
    several = [
        deployment.start(kind, {**DEBUG, ("database", "connection"): url}, ready=False)
        for kind in ("worker", "scheduler")
    ]
    for daemon in several:
        daemon.wait_for_log("out of reach; waiting for it")
        daemon.send(signal.SIGUSR2)
        daemon.wait_for_log("the database does not answer")
        daemon.terminate()
        assert daemon.wait() == 0
        assert "connection = ***" in daemon.log()
    assert SECRET not in everything(*several)


def test_what_stands_in_an_order_is_in_no_log(make_deployment: Callable[[str], Deployment]) -> None:
    """Through success, failure, an exception, damage in the database, and a statement that the database refuses."""
    deployment = make_deployment("postgresql")
    several = [deployment.start(kind, DEBUG) for kind in ("scheduler", "worker")]
    for steps in (["done"], ["raise"], ["fail"], ["unavailable|done"], ["garbage"], [f"checkpoint {SECRET}=x\x00y"]):
        submit_one(deployment, steps, None, password=SECRET)
    damaged = submit_one(deployment, ["done"], None, password=SECRET)
    with deployment.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE order_task_leases SET kwargs = :damage WHERE order_id = :id"),
            {"damage": f'{{"password": "{SECRET}"', "id": damaged},
        )
    deployment.wait_until_ended()
    for daemon in several:
        daemon.send(signal.SIGUSR2)
        daemon.wait_for_log("Lock on the retry list")
        daemon.wait_for_log("^holder = ")
    assert SECRET not in everything(*several)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("transport_url", f"rabbit://somebody:{SECRET}@127.0.0.1:1//"),
        ("transport_url", f"rabbit://somebody:{SECRET}@[broken"),
        ("transport_url", f"nonsense://somebody:{SECRET}@host/"),
        ("connection", f"postgresql+psycopg://somebody:{SECRET}@127.0.0.1:1/x"),
        ("connection", f"mysql+pymysql://somebody:{SECRET}@127.0.0.1:1/x"),
        ("connection", f"postgresql+psycopg://somebody:{SECRET}@127.0.0.1:notaport/x"),
        ("connection", f"nonsense://somebody:{SECRET}@host/x"),
    ],
)
@pytest.mark.parametrize(
    "command", [["doctor"], ["order", "list"], ["stats"], ["order", "create", "--wait"], ["--debug", "stats"]]
)
def test_no_command_prints_a_password(
    make_deployment: Callable[[str], Deployment], option: str, value: str, command: list[str]
) -> None:
    deployment = make_deployment("sqlite")
    group = "database" if option == "connection" else None
    arguments = deployment.config({(group, option): value})
    daemon = deployment.daemons.start([sys.executable, "-m", "retryflow.cli.main", *arguments, *command])
    daemon.wait()
    assert SECRET not in daemon.log()


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("transport_url", f"rabbit://somebody:{SECRET}@[broken"),
        ("transport_url", f"nonsense://somebody:{SECRET}@host/"),
        ("connection", f"postgresql+psycopg://somebody:{SECRET}@127.0.0.1:notaport/x"),
        ("connection", f"nonsense://somebody:{SECRET}@host/x"),
    ],
)
def test_no_daemon_that_refuses_its_configuration_prints_a_password(
    make_deployment: Callable[[str], Deployment], kind: str, option: str, value: str
) -> None:
    deployment = make_deployment("sqlite")
    group = "database" if option == "connection" else None
    daemon = deployment.start(kind, {**DEBUG, (group, option): value}, ready=False)
    assert daemon.wait() == 1
    assert SECRET not in daemon.log()
