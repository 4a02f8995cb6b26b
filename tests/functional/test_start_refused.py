"""A daemon that cannot work says so in one line and exits 1; one that need only wait, waits."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from retryflow.model import schema
from retryflow.model.engine import create_engine
from tests.fixtures.databases import new_database
from tests.fixtures.servers import need

DAEMONS = ["worker", "scheduler", "standalone"]
OF_MANY = ["worker", "scheduler"]
PROGS = {
    "worker": "barbican-worker",
    "scheduler": "barbican-task-scheduler",
    "standalone": "retryflow-standalone",
}
BIN = Path(sys.executable).parent


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"retryflow.cmd.{name}", *arguments]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nothing is configured, so that no file of this machine is read or written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL)


def configured(home: Path, text: str) -> list[str]:
    file = home / "retryflow-test.conf"
    file.write_text(text)
    return ["--config-file", str(file)]


def assert_refused(done: subprocess.CompletedProcess[str], name: str, *words: str) -> None:
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines), done.stdout) == (1, 1, ""), done.stderr
    assert lines[0].startswith(f"{PROGS[name]}: ")
    assert [word for word in words if word not in lines[0]] == []


@pytest.mark.parametrize("prog", [*PROGS.values()])
def test_help_exits_0_and_starts_nothing(home: Path, prog: str) -> None:
    done = run(str(BIN / prog), "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {prog}" in done.stdout
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("prog", [*PROGS.values()])
def test_an_unknown_option_exits_2(home: Path, prog: str) -> None:
    done = run(str(BIN / prog), "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("script", ["barbican-worker", "barbican-task-scheduler"])
@pytest.mark.parametrize("suffix", [".py", ".sh"])
def test_the_launchers_of_the_specification_pass_arguments_and_status_on(home: Path, script: str, suffix: str) -> None:
    launcher = Path(__file__).resolve().parents[2] / "bin" / f"{script}{suffix}"
    start = [sys.executable, str(launcher)] if suffix == ".py" else [str(launcher)]
    environment = {**os.environ, "RETRYFLOW_VENV": str(BIN.parent)}
    done = subprocess.run(
        [*start, "--no-such-option"], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert (done.returncode, "--no-such-option" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("worker", "[lease]\nrenew_seconds = 9\n", ("renew_seconds (9)", "lease_seconds (20)")),
        ("scheduler", "[scheduler]\nbatch_size = many\n", ("batch_size",)),
        ("standalone", "[scheduler\n", ("retryflow-test.conf",)),
        ("worker", "[DEFAULT]\ntransport_url = rabit://u:geheim@host/\n", ("transport_url", "no driver for rabit")),
    ],
    ids=["contradiction", "value", "syntax", "transport"],
)
def test_a_bad_configuration_is_refused_with_one_line(home: Path, name: str, text: str, words: tuple[str, ...]) -> None:
    assert_refused(run(*command(name, *configured(home, text))), name, *words)


@pytest.mark.parametrize("name", DAEMONS)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[health]\naddress = somewhere\n", ("[health] address 'somewhere'", "neither host:port nor")),
        ("[certificate]\nenabled_certificate_plugins = nonesuch\n", ("cannot load nonesuch", "no installed package")),
        # A transport of kombu's whose library nobody here has installed.
        (
            "[DEFAULT]\ntransport_url = kombu+redis://u:geheim@127.0.0.1:1/\n",
            ("transport_url", "library for kombu+redis"),
        ),
        ("[DEFAULT]\ntransport_url = rabbit://u:ge%2Fheim@127.0.0.1:1/\n", ("transport_url", "with a slash in it")),
    ],
    ids=["health", "plugin", "library", "slash"],
)
def test_what_a_service_could_not_work_with_is_refused_before_it_is_started(
    home: Path, sqlite_url: str, name: str, text: str, words: tuple[str, ...]
) -> None:
    if "redis" in text and importlib.util.find_spec("redis"):
        pytest.skip("the library is there")
    engine = create_engine(sqlite_url)
    schema.upgrade(engine)
    engine.dispose()
    done = run(*command(name, *configured(home, f"{text}[database]\nconnection = {sqlite_url}\n")))
    assert_refused(done, name, *words)
    assert "heim" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[DEFAULT]\ntransport_url = rabbit://u:ge%2Fheim@127.0.0.1:1/\n",
        "[health]\naddress = somewhere\n",
        "[certificate]\nenabled_certificate_plugins = nonesuch\n",
    ],
    ids=["slash", "health", "plugin"],
)
def test_a_standalone_daemon_that_is_refused_has_made_no_database(home: Path, text: str) -> None:
    assert_refused(run(*command("standalone", *configured(home, text))), "standalone")
    assert list(home.rglob("*.sqlite")) == []


@pytest.mark.parametrize("name", DAEMONS)
def test_a_missing_configuration_file_is_refused_with_its_name(home: Path, name: str) -> None:
    assert_refused(run(*command(name, "--config-file", "/nonexistent/r.conf")), name, "/nonexistent/r.conf")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("worker", "log_file = /nonexistent/dir/x.log", ("/nonexistent/dir/x.log", "No such file", "log_file")),
        ("scheduler", "log_dir = /proc/nonesuch", ("/proc/nonesuch/", "No such file", "log_dir")),
        ("standalone", "log_file = /tmp", ("/tmp", "Is a directory", "log_file")),
        ("worker", "use_syslog = true\nsyslog_log_facility = bogus", ("logging", "facility")),
    ],
)
def test_a_log_that_cannot_be_written_is_refused_with_its_name(
    home: Path, name: str, text: str, words: tuple[str, ...]
) -> None:
    assert_refused(run(*command(name, *configured(home, f"[DEFAULT]\n{text}\n"))), name, *words)


@pytest.mark.parametrize("option", ["--config-file", "--config-dir"])
def test_a_configuration_file_in_another_encoding_is_refused_with_its_name_and_line(home: Path, option: str) -> None:
    file = home / "latin.conf"
    file.write_bytes("[DEFAULT]\n# für alle\n".encode("latin-1"))
    named = file if option == "--config-file" else home
    done = run(*command("worker", option, str(named)))
    assert_refused(done, "worker", f"line 2 of {file}", "not UTF-8")


@pytest.mark.parametrize("name", OF_MANY)
@pytest.mark.parametrize("url", ["fake://", "kombu+memory://"])
def test_an_in_process_transport_is_refused_and_the_standalone_daemon_named(home: Path, name: str, url: str) -> None:
    done = run(*command(name, *configured(home, f"[DEFAULT]\ntransport_url = {url}\n")))
    assert_refused(done, name, "transport_url", "retryflow-standalone")


@pytest.mark.parametrize("name", OF_MANY)
def test_a_missing_sqlite_database_is_refused_and_not_created(home: Path, name: str) -> None:
    assert_refused(run(*command(name)), name, "retryflow db upgrade")
    assert list(home.iterdir()) == []


def test_a_missing_schema_is_refused_and_not_created(home: Path, database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    with engine.connect():
        pass
    done = run(*command("worker", *configured(home, f"[database]\nconnection = {database_url}\n")))
    assert_refused(done, "worker", "no retryflow tables", "retryflow db upgrade")
    assert sqlalchemy.inspect(engine).get_table_names() == []
    engine.dispose()


def test_a_schema_of_a_version_not_known_here_is_refused(home: Path, database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE retryflow_alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO retryflow_alembic_version VALUES ('a-newer-one')")
    engine.dispose()
    done = run(*command("worker", *configured(home, f"[database]\nconnection = {database_url}\n")))
    assert_refused(done, "worker", "a-newer-one", "install")


@pytest.mark.parametrize(("name", "kind"), [("worker", "postgresql"), ("scheduler", "mysql"), ("standalone", "mysql")])
def test_a_database_that_does_not_exist_is_refused_without_its_password(home: Path, name: str, kind: str) -> None:
    with new_database(kind, home) as url:
        wrong = sqlalchemy.make_url(url).set(database="retryflow_no_such", password="geheim")
    text = f"[database]\nconnection = {wrong.render_as_string(hide_password=False)}\n"
    done = run(*command(name, *configured(home, text)))
    assert_refused(done, name, "[database] connection")
    assert "geheim" not in done.stderr


@pytest.mark.parametrize(
    ("name", "kind"),
    [("worker", "postgresql"), ("scheduler", "postgresql"), ("standalone", "postgresql"), ("worker", "mysql")],
)
def test_a_user_whom_the_server_does_not_let_in_is_refused_and_not_waited_for(home: Path, name: str, kind: str) -> None:
    url = sqlalchemy.make_url(need(kind)).set(username="retryflow_nobody", password="geheim", database="x")
    text = f"[database]\nconnection = {url.render_as_string(hide_password=False)}\n"
    done = run(*command(name, *configured(home, text)))
    assert_refused(done, name, "refuses the user of [database] connection", "retryflow_nobody", "mend its user")
    assert "geheim" not in done.stderr


@pytest.mark.parametrize(
    ("name", "url", "words"),
    [
        ("worker", "garbage", "is not a database URL"),
        ("scheduler", "sqlite", "is not a database URL"),
        ("worker", "mysql+pymysql://u:g@geheim:heim@127.0.0.1/x", "%40"),
        ("scheduler", "mysql+pymysql://root:geheim@127.0.0.1", "names no database"),
        ("worker", "mysql+pymysql://root:geheim@127.0.0.1:1/x?bogus=1", "'bogus'"),
        ("scheduler", "postgresql+psycopg://root:geheim@127.0.0.1:1/x?bogus=1", '"bogus"'),
        ("standalone", "postgresql+psycopg://root:geheim@127.0.0.1:1/x?sslmode=bogus", '"bogus"'),
    ],
)
def test_a_url_of_a_database_that_can_never_work_is_refused_with_one_line_without_its_password(
    home: Path, name: str, url: str, words: str
) -> None:
    done = run(*command(name, *configured(home, f"[database]\nconnection = {url}\n")))
    assert_refused(done, name, "[database] connection", words)
    assert "heim" not in done.stderr


@contextlib.contextmanager
def waiting(name: str, home: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon whose database is out of reach; its standard output and error in one pipe."""
    arguments = configured(home, f"[database]\nconnection = {url}\n")
    with subprocess.Popen(
        command(name, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def assert_obeys_sigterm(process: subprocess.Popen[str]) -> None:
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert process.stdout is not None
    assert "Traceback" not in process.stdout.read()


@pytest.mark.parametrize(
    ("name", "driver"),
    [*((name, "postgresql+psycopg") for name in DAEMONS), ("worker", "mysql+pymysql")],
)
def test_while_the_database_refuses_connections_the_daemon_waits_says_so_and_obeys_sigterm(
    home: Path, name: str, driver: str
) -> None:
    with socket.socket() as owner:
        # Bound and not listening: nobody else gets this port, and connections to it are refused.
        owner.bind(("127.0.0.1", 0))
        with waiting(name, home, f"{driver}://u:geheim@127.0.0.1:{owner.getsockname()[1]}/x") as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            # The first line is the service's own, where there is one that waits: not said twice in ten seconds.
            assert ("not reachable, waiting for it" if name == "standalone" else "out of reach; waiting for it") in line
            assert "geheim" not in line
            assert_obeys_sigterm(process)


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_database_that_never_answers_does_not_keep_the_daemon_from_obeying_sigterm(home: Path, driver: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        with waiting("worker", home, f"{driver}://u@127.0.0.1:{silent.getsockname()[1]}/x") as process:
            connection, _ = silent.accept()
            with connection:
                assert_obeys_sigterm(process)
