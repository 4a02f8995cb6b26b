"""Health of real daemons: what a probe sees while broker or database are cut off, what systemd is told, and reports."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.fixtures.deployment import Deployment
from tests.fixtures.processes import Daemon, Daemons
from tests.fixtures.rabbit import eventually
from tests.fixtures.tcp_proxy import TcpProxy

GREEN = {"alive": True, "ready": True, "working": True}
RED = {"alive": True, "ready": False, "working": False}


def free_port(count: int = 1) -> int:
    """A port that is free, and so are those above it."""
    while True:
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with contextlib.suppress(OSError):
                for number in range(1, count):
                    held.enter_context(socket.create_server(("127.0.0.1", first + number)))
                return int(first)


def probe(port: int, path: str) -> tuple[int, Any]:
    """What an HTTP probe gets; status 0 if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except OSError:
        return 0, None
    finally:
        connection.close()


def answers(path: Path) -> dict[str, Any]:
    """What the file says."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {question: document[question] for question in ("alive", "ready", "working")}


class Probed:
    """A daemon under test with a file and a port."""

    def __init__(
        self, deployment: Deployment, kind: str, options: dict[tuple[str | None, str], Any], *, number: int = 0
    ) -> None:
        several = kind == "worker" and number > 0
        self.file = deployment.directory / (f"{kind}.json.{number}" if several else f"{kind}.json")
        first = free_port(number + 1)
        self.port = first + number if several else first
        self.daemon = deployment.start(
            kind,
            {
                ("health", "file"): deployment.directory / f"{kind}.json",
                ("health", "address"): f"127.0.0.1:{first}",
                ("health", "interval_seconds"): 0.2,
                **options,
            },
            ready=False,
        )

    def turns(self, wanted: dict[str, bool]) -> None:
        """Wait until file and probes give these answers."""
        eventually(lambda: answers(self.file) == wanted, f"the file says {wanted}", timeout_seconds=90.0)
        for question, yes in wanted.items():
            eventually(
                lambda question=question, yes=yes: probe(self.port, f"/{question}")[0] == (200 if yes else 503),
                f"/{question} is {yes}",
            )

    def always_alive(self) -> None:
        assert probe(self.port, "/alive")[0] == 200


KINDS = ("worker", "scheduler")


@pytest.fixture
def cut(
    make_deployment: Callable[[str], Deployment], tcp_proxies: list[TcpProxy]
) -> Callable[[str], tuple[Deployment, TcpProxy, dict[tuple[str | None, str], Any]]]:
    """A deployment on PostgreSQL that reaches its broker or its database through a proxy."""

    def make(what: str) -> tuple[Deployment, TcpProxy, dict[tuple[str | None, str], Any]]:
        deployment = make_deployment("postgresql")
        rabbit = deployment.rabbit
        rabbit.declare()
        if what == "broker":
            proxy = TcpProxy(rabbit.host(), rabbit.port())
            options = dict(rabbit.through(proxy.port).overrides)
        else:
            url = sa.make_url(deployment.database)
            proxy = TcpProxy(url.host or "127.0.0.1", url.port or 5432)
            through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
            options = {("database", "connection"): through}
        tcp_proxies.append(proxy)
        return deployment, proxy, options

    return make


@pytest.mark.parametrize("what", ["broker", "database"])
@pytest.mark.slow
def test_ready_and_working_turn_red_and_green_again_and_alive_stays_green(cut: Any, what: str) -> None:
    """A probe must not restart a fleet because the broker or the database is away."""
    deployment, proxy, options = cut(what)
    several = [Probed(deployment, kind, options) for kind in KINDS]
    for probed in several:
        probed.turns(GREEN)
    proxy.refuse()
    for probed in several:
        probed.turns(RED)
        reasons = probe(probed.port, "/ready")[1]["reasons"]
        assert reasons
    proxy.resume()
    for probed in several:
        probed.turns(GREEN)
    deployment.submit()
    assert deployment.wait_until_ended() == {"ACTIVE": 1}
    for probed in several:
        probed.daemon.terminate()
        assert probed.daemon.wait() == 0
        assert not probed.file.exists()


@pytest.mark.slow
def test_a_broker_that_hangs_without_a_word_turns_red_as_well(cut: Any) -> None:
    """No connection is lost, nothing comes: only asking for a sign of life finds it."""
    deployment, proxy, options = cut("broker")
    options["oslo_messaging_rabbit", "heartbeat_timeout_threshold"] = 3600
    several = [Probed(deployment, kind, options) for kind in KINDS]
    for probed in several:
        probed.turns(GREEN)
    proxy.stall()
    for probed in several:
        probed.turns(RED)
        probed.always_alive()
    proxy.resume()
    for probed in several:
        probed.turns(GREEN)


def test_each_worker_process_answers_for_itself(make_deployment: Callable[[str], Deployment]) -> None:
    deployment = make_deployment("sqlite")
    port = free_port(2)
    daemon = deployment.start(
        "worker",
        {
            ("queue", "asynchronous_workers"): 2,
            ("health", "file"): deployment.directory / "health.json",
            ("health", "address"): f"127.0.0.1:{port}",
            ("health", "interval_seconds"): 0.2,
        },
        ready=False,
    )
    pids = set()
    for number in (0, 1):
        eventually(lambda number=number: probe(port + number, "/working")[0] == 200, f"process {number} works")
        document = json.loads((deployment.directory / f"health.json.{number}").read_text())
        assert document["pid"] == probe(port + number, "/alive")[1]["pid"]
        pids.add(document["pid"])
    assert pids == set(daemon.children())
    before = probe(port, "/alive")[1]["pid"]
    # A replacement takes over its predecessor's place.
    os.kill(before, signal.SIGKILL)
    eventually(lambda: (probe(port, "/working")[1] or {}).get("pid") not in (None, before), "the next one answers")
    assert probe(port + 1, "/alive")[1]["pid"] in pids


@pytest.mark.parametrize(("kind", "processes"), [("worker", 1), ("worker", 2), ("scheduler", 1)])
def test_a_daemon_that_starts_while_the_database_is_away_is_alive_and_waits(
    cut: Any, kind: str, processes: int
) -> None:
    """A probe that restarts it would not bring the database back, only delay the start."""
    deployment, proxy, options = cut("database")
    proxy.refuse()
    probed = Probed(deployment, kind, {**options, ("queue", "asynchronous_workers"): processes}, number=processes - 1)
    probed.daemon.wait_for_log("out of reach; waiting for it")
    probed.turns(RED)
    proxy.resume()
    probed.turns(GREEN)
    probed.daemon.terminate()
    assert probed.daemon.wait() == 0


# --- systemd ---


class Systemd:
    """Listens as systemd does."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def words(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append(self._socket.recv(512).decode().partition("\n")[0])
        return self.heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_systemd_hears_ready_once_the_consumer_is_up_and_stopping_at_the_drain(
    cut: Any, systemd: Systemd, processes: int
) -> None:
    deployment, proxy, options = cut("broker")
    proxy.refuse()
    daemon = deployment.start(
        "worker", {**options, ("queue", "asynchronous_workers"): processes}, env=systemd.env, ready=False
    )
    daemon.wait_for_log("cannot consume from", count=processes)
    assert systemd.words() == []
    proxy.resume()
    eventually(lambda: systemd.words(), "systemd is told")
    assert systemd.words() == ["READY=1"]
    eventually(lambda: deployment.consumers() == processes, "it consumes")
    hold = deployment.directory / "hold"
    hold.touch()
    deployment.start("scheduler")
    deployment.submit(steps=[f"hold {hold}"])
    eventually(lambda: deployment.runs("start"), "the task runs")
    daemon.terminate()
    eventually(lambda: systemd.words()[1:], "systemd is told of the drain")
    assert (systemd.words(), daemon.process.poll()) == (["READY=1", "STOPPING=1"], None)
    hold.unlink()
    assert daemon.wait() == 0


def test_systemd_hears_of_a_scheduler_too(make_deployment: Callable[[str], Deployment], systemd: Systemd) -> None:
    deployment = make_deployment("sqlite")
    daemon = deployment.start("scheduler", env=systemd.env, ready=False)
    eventually(lambda: systemd.words() == ["READY=1"], "ready")
    daemon.terminate()
    assert daemon.wait() == 0
    assert systemd.words() == ["READY=1", "STOPPING=1"]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_watchdog_is_fed_while_alive_and_broker_and_all_are_away(
    cut: Any, systemd: Systemd, processes: int
) -> None:
    deployment, proxy, options = cut("broker")
    daemon = deployment.start(
        "worker",
        {**options, ("queue", "asynchronous_workers"): processes},
        env={**systemd.env, "WATCHDOG_USEC": "400000"},
        ready=False,
    )
    eventually(lambda: "READY=1" in systemd.words(), "ready")
    proxy.refuse()
    daemon.wait_for_log("cannot consume from")
    before = systemd.words().count("WATCHDOG=1")
    eventually(lambda: systemd.words().count("WATCHDOG=1") >= before + 5, "the watchdog is fed")
    daemon.send(signal.SIGSTOP)
    stopped = len(systemd.words())
    with pytest.raises(pytest.fail.Exception):
        eventually(lambda: len(systemd.words()) > stopped + 1, timeout_seconds=3.0)
    daemon.send(signal.SIGCONT)
    eventually(lambda: len(systemd.words()) > stopped + 1, "it is fed again")


# --- Guru Meditation ---


def sections(log: str) -> dict[str, str]:
    """The parts of the last report in a log."""
    parts = re.split(r"^={72}\n====\s+(.*?)\s+====\n={72}$", log, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_report_tells_tasks_leases_and_the_lock_and_disturbs_nothing(
    make_deployment: Callable[[str], Deployment], processes: int
) -> None:
    deployment = make_deployment("postgresql")
    worker = deployment.start("worker", {("queue", "asynchronous_workers"): processes})
    scheduler = deployment.start("scheduler")
    hold = deployment.directory / "hold"
    hold.touch()
    (order_id,) = deployment.submit(steps=[f"hold {hold}"], password="hunter2")
    run = eventually(lambda: deployment.runs("start"), "the task runs")[0]

    worker.send(signal.SIGUSR2)
    worker.wait_for_log(r"====\s+Lock on the retry list", count=processes)
    worker.wait_for_log(r"^holder = nobody", count=processes)
    told = worker.log()
    assert order_id in sections(told[told.index("Guru Meditation") :])["Tasks in progress"] or processes > 1
    assert f"      order = {order_id}" in told or f"    order = {order_id}" in told
    assert (run.task_id in told, "hunter2" in told) == (True, False)

    scheduler.send(signal.SIGUSR2)
    scheduler.wait_for_log(r"====\s+Scheduler")
    scheduler.wait_for_log(r"^last tick, seconds ago = ")

    hold.unlink()
    assert deployment.wait_until_ended() == {"ACTIVE": 1}
    for daemon in (worker, scheduler):
        daemon.terminate()
        assert daemon.wait() == 0


def test_one_signal_to_the_whole_group_makes_one_report_of_each_process(
    make_deployment: Callable[[str], Deployment],
) -> None:
    deployment = make_deployment("sqlite")
    worker: Daemon = deployment.start("worker", {("queue", "asynchronous_workers"): 2})
    eventually(lambda: deployment.consumers() == 2, "both consume")
    worker.send_group(signal.SIGUSR2)
    worker.wait_for_log(r"====\s+Lock on the retry list", count=2)
    worker.terminate()
    assert worker.wait() == 0
    assert len(re.findall(r"====\s+Guru Meditation", worker.log())) == 2


def test_a_report_goes_into_a_file_of_its_own_where_a_directory_is_set(
    make_deployment: Callable[[str], Deployment],
) -> None:
    deployment = make_deployment("sqlite")
    scheduler = deployment.start("scheduler", {("oslo_reports", "log_dir"): deployment.directory})
    scheduler.send(signal.SIGUSR2)
    eventually(lambda: list(deployment.directory.glob(f"*{scheduler.pid}_gurumeditation_*")), "the file is there")


def test_touching_the_configured_file_makes_a_report(make_deployment: Callable[[str], Deployment]) -> None:
    deployment = make_deployment("sqlite")
    trigger = deployment.directory / "trigger"
    trigger.touch()
    scheduler = deployment.start("scheduler", {("oslo_reports", "file_event_handler"): trigger})
    os.utime(trigger, (2e9, 2e9))
    scheduler.wait_for_log(r"====\s+Scheduler")


# --- what cannot be ---


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (("health", "address"), "somewhere", "neither host:port nor"),
        (("health", "address"), "127.0.0.1:{taken}", "Address already in use"),
        (("oslo_reports", "file_event_handler"), "/nonexistent/trigger", "cannot be watched"),
    ],
)
def test_a_daemon_refuses_what_it_cannot_tell_its_health_with(
    make_deployment: Callable[[str], Deployment],
    processes: int,
    option: tuple[str | None, str],
    value: str,
    words: str,
) -> None:
    deployment = make_deployment("sqlite")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = {
            option: value.format(taken=taken.getsockname()[1] - (processes - 1)),
            ("queue", "asynchronous_workers"): processes,
        }
        daemon = deployment.start("worker", options, ready=False)
        assert daemon.wait() == 1
    assert words in daemon.log()
    assert "Traceback" not in daemon.log()


def asked(path: Path, question: str) -> tuple[int, int | None]:
    """The status that a UNIX socket answers with, and the pid of who answers; status 0 if nobody does."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30.0)
        try:
            client.connect(str(path))
        except OSError:
            return 0, None
        client.sendall(f"GET /{question} HTTP/1.0\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["pid"]


def test_a_socket_that_another_process_serves_is_left_to_it_and_a_dead_one_s_is_taken_over(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """A second daemon with the same configuration would turn the probes of the first away from it."""
    deployment = make_deployment("sqlite")
    path = deployment.directory / "probe.sock"
    options = {("health", "address"): path, ("health", "interval_seconds"): 0.2}
    first = deployment.start("worker", options)
    eventually(lambda: asked(path, "working") == (200, first.pid), "the first answers")
    second = deployment.start("scheduler", options, ready=False)
    assert second.wait() == 1
    assert f"[health] address {path} is in use by another process" in second.log()
    assert "Traceback" not in second.log()
    assert asked(path, "working") == (200, first.pid)
    first.send(signal.SIGKILL)
    first.wait()
    assert (path.exists(), asked(path, "alive")) == (True, (0, None))
    third = deployment.start("worker", options)
    eventually(lambda: asked(path, "working") == (200, third.pid), "the third has taken the socket over")
    third.terminate()
    assert (third.wait(), path.exists()) == (0, False)


def test_a_health_file_that_cannot_be_written_keeps_nobody_from_working(
    make_deployment: Callable[[str], Deployment],
) -> None:
    deployment = make_deployment("sqlite")
    options = {("health", "file"): deployment.directory / "missing" / "health.json"}
    several = [deployment.start(kind, options) for kind in KINDS]
    for daemon in several:
        daemon.wait_for_log("ERROR .* Cannot tell the health of this process .*missing/health.json")
    deployment.submit()
    assert deployment.wait_until_ended() == {"ACTIVE": 1}
    for daemon in several:
        assert "Traceback" not in daemon.log()


def test_the_standalone_daemon_answers_for_both_of_its_parts(daemons: Daemons, tmp_path: Path) -> None:
    socket_path, file = tmp_path / "probe.sock", tmp_path / "retryflow-standalone.json"
    config = tmp_path / "standalone.conf"
    config.write_text(
        f"[DEFAULT]\nstate_path = {tmp_path}/state\n"
        f"[health]\nfile = {tmp_path}/{{prog}}.json\naddress = {socket_path}\ninterval_seconds = 0.2\n"
    )
    daemon = daemons.start([sys.executable, "-m", "retryflow.cmd.standalone", "--config-file", str(config)])
    eventually(lambda: answers(file) == GREEN, "it works", timeout_seconds=60.0)
    names = {check["name"] for check in json.loads(file.read_text())["checks"]}
    assert {"WorkerService.renewal", "TaskSchedulerService.tick", "main_thread"} <= names
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30.0)
        client.connect(str(socket_path))
        client.sendall(b"GET /working HTTP/1.0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
    daemon.terminate()
    assert daemon.wait() == 0
    assert (file.exists(), socket_path.exists()) == (False, False)
