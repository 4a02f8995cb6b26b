"""The documentation builds without a warning, and what it says of options and dependencies is true."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from retryflow.conf.library import MESSAGING_DEFAULTS
from retryflow.conf.opts import list_opts

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "doc" / "source"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(SOURCE), str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return target


def test_the_site_builds_without_a_warning_and_shows_every_option(site: Path) -> None:
    text = (site / "configuration.html").read_text()
    for group, options in list_opts():
        section = group.name if group else "DEFAULT"
        missing = [option.dest for option in options if f"{section}.{option.dest}" not in text]
        assert (section, missing) == (section, [])


def test_the_configuration_page_names_each_default_that_is_not_the_library_s() -> None:
    text = (SOURCE / "configuration.rst").read_text()
    for group, defaults in MESSAGING_DEFAULTS.items():
        for name, value in defaults.items():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            assert re.search(rf"^{group or 'DEFAULT'} +{name} +{shown} ", text, re.MULTILINE), name


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (SOURCE / "dependencies.rst").read_text()
    names = [re.split(r"[\[>=<~]", requirement)[0] for requirement in project["dependencies"]]
    assert [name for name in names if not re.search(rf"^{re.escape(name)} ", text, re.MULTILINE)] == []
    explained = re.findall(r"^([A-Za-z][\w.]+)   ", text.partition("By choice")[0], re.MULTILINE)
    assert sorted(set(explained) - {"package"}, key=str.lower) == sorted(names, key=str.lower)
    assert [extra for extra in project["optional-dependencies"] if f"``{extra}``" not in text] == []


def test_every_program_is_in_the_documentation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "".join(path.read_text() for path in SOURCE.glob("*.rst"))
    assert [name for name in project["scripts"] if f"``{name}" not in text] == []


def test_every_example_is_shown_as_it_is_run() -> None:
    text = "".join(path.read_text() for path in SOURCE.glob("*.rst"))
    examples = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in examples if f"literalinclude:: ../../examples/{name}" not in text] == []


@pytest.mark.parametrize("unit", ["barbican-worker", "barbican-task-scheduler"])
def test_the_units_of_systemd_leave_the_stop_its_time(unit: str) -> None:
    """D8: SIGTERM must not go to the whole group; D7: SIGKILL must not come before the last time-out."""
    text = (ROOT / "etc" / "systemd" / f"{unit}.service").read_text()
    assert "KillMode=mixed" in text
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop is not None
    graceful = next(option for _, options in list_opts() for option in options if option.dest.startswith("graceful"))
    assert int(stop[1]) > graceful.default + 10
