"""The operator's command as a process: installed script, Ctrl-C, a closed pipe, and what it does not load."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from retryflow.model import orders, schema
from retryflow.model.engine import create_engine
from retryflow.model.transaction import transact
from tests.fixtures.busy import Busy
from tests.fixtures.processes import Daemons

SCRIPT = str(Path(sys.executable).parent / "retryflow")


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(directory), "XDG_STATE_HOME": str(directory / "state")}


def configured(directory: Path, url: str) -> list[str]:
    file = directory / "process.conf"
    file.write_text(f"[database]\nconnection = {url}\n")
    return ["--config-file", str(file)]


def test_the_installed_command_answers_help_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [SCRIPT, *words], capture_output=True, text=True, check=False, timeout=60, env=environment(tmp_path)
        )
        return done.returncode, done.stdout, done.stderr

    status, out, err = run("-h")
    assert (status, "order create" in out, err) == (0, True, "")
    assert run("--no-such-option")[0] == run("nonsense")[0] == run("order", "list", "--nonsense")[0] == 2
    status, out, err = run("order", "list")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "retryflow db upgrade" in err
    assert run("--version")[:2] == (0, f"retryflow {__import__('retryflow').__version__}\n")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("words", "unloaded"),
    [
        (["-h"], ["sqlalchemy", "oslo_messaging", "cryptography", "alembic"]),
        (["order", "list"], ["oslo_messaging", "cryptography", "alembic", "cliff.interactive"]),
    ],
)
def test_a_command_loads_only_what_it_needs(busy: Busy, tmp_path: Path, words: list[str], unloaded: list[str]) -> None:
    program = (
        "import sys\n"
        "from retryflow.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words, *configured(tmp_path, busy.url)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment(tmp_path),
    )
    loaded = set(done.stderr.split())
    assert "retryflow.cli.app" in loaded
    assert [name for name in unloaded if name in loaded] == []


def test_ctrl_c_ends_the_waiting_and_not_the_order(tmp_path: Path, sqlite_url: str, daemons: Daemons) -> None:
    engine = create_engine(sqlite_url)
    schema.upgrade(engine)
    engine.dispose()
    create = ["order", "create", "--type", "t", "--id", "mine", "--wait", *configured(tmp_path, sqlite_url)]
    command = daemons.start([SCRIPT, *create], env=environment(tmp_path))
    command.wait_for_log("submitted, process_type_order")
    command.send(signal.SIGINT)
    assert command.wait() == 130
    assert "no longer waiting; the order goes on, see: retryflow order show mine" in command.log()
    assert "Traceback" not in command.log()


def test_a_reader_that_has_gone_is_no_error_to_talk_about(busy: Busy, tmp_path: Path) -> None:
    with subprocess.Popen(
        [SCRIPT, "order", "list", *configured(tmp_path, busy.url)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        told = command.stderr.read()
        assert (command.wait(60), told) == (141, b"")


def shell(directory: Path, url: str, redirection: str, *words: str, **variables: str) -> tuple[int, str, str]:
    """Run the command in a shell that redirects a stream; its exit status, standard output and standard error."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" "$@" {redirection}', SCRIPT, *words, *configured(directory, url)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=environment(directory) | {"PYTHONUNBUFFERED": ""} | variables,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", ["order list", "order show done -f json", "order retry failed", "top --count 1"])
def test_closed_output_is_output_that_nobody_reads(busy: Busy, tmp_path: Path, words: str) -> None:
    status, _, err = shell(tmp_path, busy.url, ">&-", *words.split())
    assert (status, [line for line in err.splitlines() if " is PENDING again" not in line]) == (0, [])
    assert shell(tmp_path, busy.url, "2>&- >&-", "order", "show", "nobody") == (1, "", "")


def test_closed_input_is_nobody_who_could_answer_and_empty(busy: Busy, tmp_path: Path) -> None:
    told = {
        "order delete done": "Nobody is here to answer; say --yes",
        "order create --type t --csr -": "standard input is empty",
        "order create --type t --meta-file -": "standard input is no JSON",
    }
    for words, answer in told.items():
        status, out, err = shell(tmp_path, busy.url, "<&-", *words.split())
        assert (status, out, len(err.splitlines()), answer in err) == (1, "", 1, True), err


@pytest.mark.parametrize(
    "words",
    ["-h", "--version", "order list", "order show done", "order show done -f json", "top --count 1", "order list -h"],
)
def test_output_that_cannot_be_written_is_one_line(busy: Busy, tmp_path: Path, words: str) -> None:
    told = (1, "", "retryflow: standard output: No space left on device\n")
    assert shell(tmp_path, busy.url, ">/dev/full", *words.split()) == told
    if words not in ("--version", "order list -h"):
        # What argparse prints itself is lost without a word where nothing is buffered.
        assert shell(tmp_path, busy.url, ">/dev/full", *words.split(), PYTHONUNBUFFERED="1") == told


def test_a_certificate_that_cannot_be_written_is_one_line(busy: Busy, tmp_path: Path) -> None:
    status, _, err = shell(tmp_path, busy.url, "", "order", "show", "done", "--certificate", "/dev/full")
    assert (status, err) == (1, "retryflow: /dev/full: No space left on device\n")


def test_a_character_that_standard_output_lacks_is_written_out(busy: Busy, tmp_path: Path) -> None:
    transact(busy.engine, lambda connection: orders.update_pending(connection, "stuck", sub_status_message="é"))
    show = ["order", "show", "stuck", "-c", "sub_status_message", "-f", "value"]
    assert shell(tmp_path, busy.url, "", *show, PYTHONIOENCODING="ascii") == (0, "\\xe9\n", "")


def test_a_purge_that_is_told_to_end_says_how_far_it_came(busy: Busy, tmp_path: Path) -> None:
    """The exit status stays that of a process that SIGTERM has ended."""
    with busy.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET updated_at = created_at"))
    # After the first batch; a signal from outside would have to hit that moment.
    program = (
        "import os, signal, sys\n"
        "from retryflow.cli import db_purge, main\n"
        "db_purge.time.sleep = lambda seconds: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    purge = ["db", "purge", "--older-than", "5m", *configured(tmp_path, busy.url)]
    done = subprocess.run(
        [sys.executable, "-c", program, *purge],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(tmp_path),
    )
    told = "retryflow: 1 order removed so far; run it again for the rest\n"
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", told)
