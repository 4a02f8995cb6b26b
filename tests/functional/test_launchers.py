"""The launchers of the daemons in ``bin/``: what they need they find, or make, or ask for in one line."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

BIN = Path(__file__).parents[2] / "bin"
DAEMONS = ["barbican-worker", "barbican-task-scheduler"]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment}
    )


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter without any of the libraries, as the system's is."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False, symlinks=True)
    return place / "bin" / "python"


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize(("argument", "status", "says"), [("-h", 0, "usage: {}"), ("--nonsense", 2, "--nonsense")])
def test_a_launcher_passes_arguments_on_and_gives_the_exit_status_back(
    daemon: str, argument: str, status: int, says: str
) -> None:
    done = run(BIN / f"{daemon}.sh", argument, RETRYFLOW_VENV=sys.prefix)
    assert (done.returncode, says.format(daemon) in done.stdout + done.stderr) == (status, True), done


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_python_without_the_libraries_is_replaced_by_the_environment_s(daemon: str, bare_python: Path) -> None:
    done = run(bare_python, BIN / f"{daemon}.py", "-h", RETRYFLOW_VENV=sys.prefix)
    assert (done.returncode, f"usage: {daemon}" in done.stdout) == (0, True), done


@pytest.mark.parametrize("daemon", DAEMONS)
def test_without_an_environment_and_a_python_to_make_it_one_line_says_so(daemon: str, tmp_path: Path) -> None:
    done = run(BIN / f"{daemon}.sh", "-h", RETRYFLOW_VENV=str(tmp_path / "none"), PYTHON=str(tmp_path / "python3"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert "needs Python 3.11" in done.stderr
