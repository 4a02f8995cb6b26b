"""The benchmarks run; how fast anything is, is no matter of tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.servers import need

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["drain", "idle_tick", "tasks", "submit", "tracking", "stop", "start"])
@pytest.mark.slow
def test_a_benchmark_measures_something_in_a_quick_run(name: str, tmp_path: Path) -> None:
    need("rabbit")
    written = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--database", "sqlite", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    assert {figure["benchmark"] for figure in found["figures"]} == {name}
    assert all(figure["median"] >= 0 for figure in found["figures"])
    assert found["before"]["cpus"] >= 1
    assert name in done.stdout


def test_an_unknown_benchmark_is_named_together_with_those_that_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "drian"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 2
    assert "drian" in done.stderr
    assert "drain" in done.stderr
