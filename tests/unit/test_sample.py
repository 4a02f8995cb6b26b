"""The sample configuration is what the generator writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from retryflow.conf.opts import list_opts

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "etc" / "retryflow" / "retryflow.conf.sample"


def blocks(text: str) -> dict[tuple[str, str], str]:
    """Each option with its comment, by section and name."""
    found: dict[tuple[str, str], str] = {}
    section, lines = "", []
    for line in text.splitlines():
        if line.startswith("["):
            section, lines = line.strip("[]"), []
        elif not line:
            lines = []
        else:
            lines.append(line)
            if line.startswith("#") and line[1:2].isalpha() and " = " in line:
                found[section, line[1:].partition(" = ")[0]] = "\n".join(lines)
    return found


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("sample") / "retryflow.conf.sample"
    done = subprocess.run(
        [sys.executable, "-m", "retryflow.conf.sample", "--output-file", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return target.read_text()


def test_the_sample_is_not_stale(generated: str) -> None:
    """Only our own options: a new release of a library that changes its help must not turn the tests red."""
    ours = {(group.name if group else "DEFAULT", option.dest) for group, options in list_opts() for option in options}
    fresh, kept = blocks(generated), blocks(SAMPLE.read_text())
    remedy = "stale: run 'tox -e genconfig' or 'python -m retryflow.conf.sample'"
    assert {key: kept.get(key) for key in ours} == {key: fresh[key] for key in ours}, remedy
    sections = {section for section, _ in ours} - {"DEFAULT"}
    assert {key for key in kept if key[0] in sections} == {key for key in ours if key[0] in sections}, remedy


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("oslo_messaging_rabbit", "rabbit_quorum_queue", "true"),
        ("oslo_messaging_rabbit", "rabbit_transient_quorum_queue", "true"),
        ("DEFAULT", "control_exchange", "retryflow"),
        ("DEFAULT", "executor_thread_pool_size", "16"),
        ("DEFAULT", "graceful_shutdown_timeout", "180"),
        ("DEFAULT", "manager_shutdown_timeout", "160.0"),
        ("DEFAULT", "state_path", "$XDG_STATE_HOME/retryflow"),
        ("scheduler", "schedule_period_seconds", "15.0"),
        ("scheduler", "retry_lock_timeout_seconds", "60.0"),
        ("simple_certificate", "delay_before_update_seconds", "5.0"),
    ],
)
def test_the_sample_shows_the_defaults_that_are_in_force(section: str, name: str, value: str) -> None:
    assert blocks(SAMPLE.read_text())[section, name].splitlines()[-1] == f"#{name} = {value}"


def test_the_sample_names_nothing_of_the_machine_it_was_made_on() -> None:
    assert str(Path.home()) not in SAMPLE.read_text().replace("~", "")
