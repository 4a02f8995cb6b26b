"""What a process says of itself: what decides which answer, and how the world is told."""

import contextlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from retryflow.conf import register_all
from retryflow.errors import ConfigurationError
from retryflow.service.base import BaseService
from retryflow.service.group import ServiceGroup
from retryflow.service.health import ALIVE, EVERYTHING, READY, WORKING, Check, Health, age
from retryflow.service.health_broker import BrokerChecks
from retryflow.service.health_file import write_whole
from retryflow.service.health_http import HealthServer, application
from retryflow.service.health_place import Place
from retryflow.service.health_process import MAIN_THREAD_SECONDS, ProcessHealth
from retryflow.service.health_systemd import Supervisor


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    register_all(made)
    made([], default_config_files=[], default_config_dirs=[])
    return made


def bad(*decides: str) -> Check:
    return Check(name="x", good=False, says="broken", decides=frozenset(decides))


@pytest.mark.parametrize("question", [ALIVE, READY, WORKING])
def test_a_bad_check_turns_only_the_answers_that_it_decides(question: str) -> None:
    health = Health([bad(question), Check(name="y", good=True, says="fine", decides=EVERYTHING)])
    assert {each: health.answer(each) for each in (ALIVE, READY, WORKING)} == {
        each: each != question for each in (ALIVE, READY, WORKING)
    }
    assert [fault.name for fault in health.faults(question)] == ["x"]


def test_an_age_is_good_up_to_its_limit_and_never_when_there_was_nothing() -> None:
    assert age("tick", seconds=30.0, limit_seconds=30.0, what="the last tick").good
    late = age("tick", seconds=30.1, limit_seconds=30.0, what="the last tick")
    assert (late.good, late.says, late.seconds) == (False, "the last tick was 30.1 s ago (limit 30 s)", 30.1)
    never = age("tick", seconds=float("inf"), limit_seconds=30.0, what="the last tick")
    assert (never.good, never.seconds) == (False, None)


# --- where ---


@pytest.mark.parametrize(
    ("template", "several", "expected"),
    [
        ("/run/health.json", False, "/run/health.json"),
        ("/run/health.json", True, "/run/health.json.3"),
        ("/run/{prog}.json", True, "/run/worker.json.3"),
        ("/run/{number}.json", True, "/run/3.json"),
        ("/run/{pid}.json", True, "/run/PID.json"),
    ],
)
def test_each_process_has_a_file_of_its_own(template: str, several: bool, expected: str) -> None:
    assert Place(prog="worker", number=3, several=several).file(template) == Path(
        expected.replace("PID", str(os.getpid()))
    )


def test_each_process_has_an_address_of_its_own() -> None:
    third = Place(prog="worker", number=2, several=True)
    assert third.address("127.0.0.1:9080") == ("127.0.0.1", 9082)
    assert third.address("[::1]:9080") == ("::1", 9082)
    assert third.address("/run/{prog}.sock") == "/run/worker.sock.2"
    assert Place(prog="worker").address(":9080") == ("", 9080)


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:http", "localhost:0", "h:65536", "h:²", "9"])
def test_an_address_that_is_none_is_refused_in_one_line(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[health\] address .* neither host:port nor") as caught:
        Place(prog="worker").address(address)
    assert "\n" not in str(caught.value)


def test_a_port_above_the_last_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="neither"):
        Place(prog="worker", number=1, several=True).address("h:65535")


# --- file ---


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    write_whole(path, "one")
    write_whole(path, "two")
    assert (path.read_text(), names(tmp_path)) == ("two", ["health.json"])
    with pytest.raises(OSError, match="No such file"):
        write_whole(tmp_path / "missing" / "health.json", "three")
    full = tmp_path / "directory"
    (full / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_whole(full, "four")
    assert names(tmp_path) == ["directory", "health.json"]


# --- HTTP ---


def ask(app: Any, path: str, method: str = "GET") -> tuple[str, Any]:
    said: list[str] = []

    def start_response(status: str, _headers: Any, _exc: Any = None) -> Any:
        said.append(status)

    body = b"".join(app({"PATH_INFO": path, "REQUEST_METHOD": method}, start_response))
    return said[0], json.loads(body) if body else None


def test_yes_is_200_and_no_is_503_with_the_reason() -> None:
    app = application(lambda: Health([bad(READY)]))
    assert ask(app, "/alive")[0] == "200 OK"
    status, document = ask(app, "/ready")
    assert (status, document["reasons"], document["alive"], document["ready"]) == (
        "503 Service Unavailable",
        ["x: broken"],
        True,
        False,
    )


def test_a_probe_may_ask_for_the_head_alone_and_for_nothing_else() -> None:
    app = application(lambda: Health([]))
    assert ask(app, "/ready", "HEAD") == ("200 OK", None)
    assert ask(app, "/ready", "POST")[0] == "405 Method Not Allowed"
    status, document = ask(app, "/metrics")
    assert (status, document) == ("404 Not Found", {"paths": ["/alive", "/ready", "/working"]})


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # cheroot's, of a socket it could not bind
def test_an_address_in_use_is_refused_in_one_line_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} cannot be used .*in use") as caught:
            HealthServer(("127.0.0.1", port), application(lambda: Health([])))
    assert "barbican-worker.conf" in str(caught.value)


def test_a_file_in_the_place_of_the_socket_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(ConfigurationError, match="is a file, not a UNIX socket"):
        HealthServer(str(tmp_path / "precious"), application(lambda: Health([])))
    assert (tmp_path / "precious").read_text() == "data"


def assert_answers(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30.0)
        client.connect(path)
        client.sendall(b"GET /alive HTTP/1.0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_a_unix_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "probe.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    server = HealthServer(path, application(lambda: Health([])))
    assert_answers(path)
    server.stop()
    assert not Path(path).exists()


def test_a_unix_socket_that_is_served_is_not_taken_away(tmp_path: Path) -> None:
    path = str(tmp_path / "probe.sock")
    first = HealthServer(path, application(lambda: Health([])))
    with pytest.raises(ConfigurationError, match=r"is in use by another process; put \{prog\} or \{pid\} into it"):
        HealthServer(path, application(lambda: Health([])))
    assert_answers(path)
    first.stop()


def test_a_server_that_ends_leaves_the_socket_of_its_successor(tmp_path: Path) -> None:
    path = str(tmp_path / "probe.sock")
    first = HealthServer(path, application(lambda: Health([])))
    Path(path).rename(tmp_path / "moved.sock")
    second = HealthServer(path, application(lambda: Health([])))
    first.stop()
    assert_answers(path)
    second.stop()
    assert not Path(path).exists()


@pytest.fixture
def served() -> Iterator[int]:
    """The port of a server whose answer is always yes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    server = HealthServer(("127.0.0.1", port), application(lambda: Health([])))
    yield port
    server.stop()


def assert_answered(port: int, *, within_seconds: float) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=within_seconds) as client:
        client.sendall(b"GET /alive HTTP/1.0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_a_probe_is_answered_beside_connections_that_send_nothing_or_half_a_request(served: int) -> None:
    with contextlib.ExitStack() as held:
        for number in range(12):
            client = held.enter_context(socket.create_connection(("127.0.0.1", served), timeout=10.0))
            client.sendall(b"GET /alive HTTP/1.1\r\nHost:" if number % 2 else b"")
        assert_answered(served, within_seconds=10.0)


def test_clients_that_send_a_byte_now_and_then_do_not_keep_a_probe_out(served: int) -> None:
    """More of them than there are threads: each would have its own for as long as it likes."""
    answered = threading.Event()
    with contextlib.ExitStack() as held:
        slow = [held.enter_context(socket.create_connection(("127.0.0.1", served), timeout=10.0)) for _ in range(20)]

        def drip() -> None:
            while not answered.wait(0.2):
                for client in slow:
                    with contextlib.suppress(OSError):
                        client.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert_answered(served, within_seconds=60.0)
        finally:
            answered.set()
            thread.join()


def test_a_request_that_has_no_end_is_refused(served: int) -> None:
    answer = b"HTTP/1.1 413"
    with socket.create_connection(("127.0.0.1", served), timeout=60.0) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET /alive HTTP/1.1\r\n" + b"X-Filler: 0123456789\r\n" * 1000)
        # Where the server has closed the connection with something unread, its answer may be lost.
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413")


def test_several_requests_on_one_connection_are_answered(served: int) -> None:
    """Each has the whole time for itself."""
    client = http.client.HTTPConnection("127.0.0.1", served, timeout=60.0)
    try:
        for path in ("/alive", "/ready", "/working"):
            client.request("GET", path)
            answer = client.getresponse()
            assert (answer.status, json.loads(answer.read())["question"]) == (200, path[1:])
    finally:
        client.close()


# --- systemd ---


@pytest.fixture
def notifications(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(10.0)
        yield path, receiver


def test_systemd_is_told_and_no_program_below_us_can_tell_it(notifications: tuple[str, socket.socket]) -> None:
    path, receiver = notifications
    environ = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000", "HOME": "/h"}
    supervisor = Supervisor(environ)
    assert (environ, supervisor.watchdog_seconds) == ({"HOME": "/h"}, 1.5)
    supervisor.ready()
    supervisor.alive()
    supervisor.stopping("SIGTERM")
    words = [receiver.recv(512).decode().partition("\n")[0] for _ in range(3)]
    assert words == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


@pytest.mark.parametrize(
    "more",
    [{}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}],
)
def test_no_watchdog_is_fed_that_is_not_for_this_process(
    notifications: tuple[str, socket.socket], more: dict[str, str]
) -> None:
    path, receiver = notifications
    supervisor = Supervisor({"NOTIFY_SOCKET": path, **more})
    supervisor.alive()
    supervisor.ready()
    assert supervisor.watchdog_seconds is None
    assert receiver.recv(512).startswith(b"READY=1")


def test_a_supervisor_that_does_not_read_holds_nobody_up(notifications: tuple[str, socket.socket]) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": notifications[0]})
    for _ in range(2000):
        supervisor.ready()
    Supervisor({"NOTIFY_SOCKET": "@nobody-listens-here"}).ready()
    Supervisor({}).ready()


# --- broker ---


class Consumer:
    def __init__(self, *, consuming: bool = True) -> None:
        self.consuming = consuming
        self.answered_at = float("-inf")
        self.asked = 0

    def ask(self) -> None:
        self.asked += 1


def test_a_broker_that_hangs_is_found_by_the_age_of_its_last_answer(conf: cfg.ConfigOpts) -> None:
    clock, consumer = Clock(), Consumer()
    checks = BrokerChecks(conf, clock=clock)
    assert checks.check(consumer).good, "where nobody asks, the connection's own word counts"
    checks.ask(consumer)
    consumer.answered_at = clock.now
    clock.now += 12.5
    assert checks.check(consumer).good
    clock.now += 0.1
    assert not checks.check(consumer).good
    consumer.answered_at = clock.now
    assert checks.check(consumer).good


def test_a_broker_that_is_away_is_no_reason_to_restart(conf: cfg.ConfigOpts) -> None:
    for consumer in (None, Consumer(consuming=False)):
        check = BrokerChecks(conf).check(consumer)
        assert (check.good, check.decides) == (False, {READY, WORKING})


# --- process ---


class Service(BaseService):
    checks: tuple[Check, ...] = ()
    broken = False

    def health_checks(self) -> tuple[Check, ...]:
        if self.broken:
            raise RuntimeError("no")
        return self.checks


def answers(process: ProcessHealth) -> tuple[bool, bool, bool]:
    health = Health(process.checks())
    return health.answer(ALIVE), health.answer(READY), health.answer(WORKING)


def test_the_answers_over_the_life_of_a_process(conf: cfg.ConfigOpts) -> None:
    process = ProcessHealth(conf, number=0, several=False, ask_main=lambda: None)
    assert answers(process) == (True, False, False)
    process.serve(Service(conf))
    process.started()
    assert answers(process) == (True, True, True)
    process.stopping("SIGTERM")
    assert answers(process) == (True, False, True), "a drain is work"
    process.stop()


def test_only_a_main_thread_that_hangs_makes_a_process_dead(conf: cfg.ConfigOpts) -> None:
    clock = Clock()
    process = ProcessHealth(conf, number=0, several=False, ask_main=lambda: None, clock=clock)
    process.started()
    clock.now += MAIN_THREAD_SECONDS + 1
    assert answers(process) == (False, False, False)
    process.turned()
    assert answers(process) == (True, True, True)


def test_a_service_whose_health_cannot_be_told_is_not_ready_and_alive(conf: cfg.ConfigOpts) -> None:
    process = ProcessHealth(conf, number=0, several=False, ask_main=lambda: None)
    service = Service(conf)
    service.broken = True
    process.serve(service)
    process.started()
    assert answers(process) == (True, False, False)


def test_a_group_is_as_healthy_as_each_member(conf: cfg.ConfigOpts) -> None:
    good, ill = Service(conf), Service(conf)
    ill.checks = (bad(WORKING),)
    health = Health(ServiceGroup(conf, [good, ill]).health_checks())
    assert (health.answer(READY), [fault.name for fault in health.faults(WORKING)]) == (True, ["Service-2.x"])


def test_members_of_one_class_are_told_apart(conf: cfg.ConfigOpts) -> None:
    class Other(Service):
        pass

    members = [Service(conf), Other(conf), Service(conf)]
    for number, member in enumerate(members):
        member.checks = (bad(WORKING),)
        member.report_sections = lambda number=number: {"Tasks": lambda: str(number)}  # type: ignore[method-assign]
    group = ServiceGroup(conf, members)
    assert [check.name for check in group.health_checks()] == ["Service-1.x", "Other.x", "Service-2.x"]
    sections = {title: section() for title, section in group.report_sections().items()}
    assert sections == {"Tasks": "0", "Tasks (Other)": "1", "Tasks (Service-2)": "2"}
