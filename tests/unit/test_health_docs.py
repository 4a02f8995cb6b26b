"""The pages "Health" and "Failure modes" quote what the code logs, and name what there is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from retryflow.conf.opts import list_opts

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / "doc" / "source" / f"{name}.rst").read_text() for name in ("health", "failure-modes")}
NOT_OURS = {"request_id", "log_dir", "file_event_handler", "control_exchange"}
LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"}
QUOTED = [
    (name, *line.split(" ", 1))
    for name, text in PAGES.items()
    for literal in re.findall(r"``(.+?)``", text, re.DOTALL)
    if (line := " ".join(literal.split())).split(" ")[0] in LEVELS and " " in line
]


def pattern_of(node: ast.expr) -> str | None:
    """A text with gaps, as a regular expression; ``None`` for what is no text or has nothing but gaps."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts = re.split(r"(%[-.\d]*[a-z])", node.value)
        known = [part for part in parts if not part.startswith("%")]
        pattern = "".join(".+" if part.startswith("%") else re.escape(part) for part in parts)
    elif isinstance(node, ast.JoinedStr):
        known = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
        pattern = "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in node.values
        )
    else:
        return None
    return pattern if sum(map(len, known)) > 6 else None


def logged() -> Iterator[tuple[str, str]]:
    """Each text that is logged, with its level, and each text of an error, which any level may log."""
    for path in (ROOT / "retryflow").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                words = ast.unparse(node.func)
                arguments = node.args
                if words == "log_bounded":
                    words, arguments = ast.unparse(arguments[0]), arguments[1:]
                level = words.rpartition(".")[2].replace("exception", "error")
                if words.startswith("LOG.") and arguments and (pattern := pattern_of(arguments[0])):
                    yield level, pattern
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                if pattern := pattern_of(node.exc.args[0]):
                    yield "any", pattern
            elif isinstance(node, ast.Assign) and (pattern := pattern_of(node.value)):
                yield "any", pattern


LOGGED = sorted(set(logged()))


@pytest.mark.parametrize(("page", "level", "line"), QUOTED)
def test_a_quoted_line_is_one_that_the_code_logs(page: str, level: str, line: str) -> None:
    assert [
        pattern for known, pattern in LOGGED if known in (LEVELS[level], "any") and re.fullmatch(pattern, line)
    ] != []


def test_the_pages_quote_lines() -> None:
    assert len(QUOTED) > 25


@pytest.mark.parametrize("page", PAGES)
def test_each_option_that_is_named_exists(page: str) -> None:
    options = {option.dest for _, options in list_opts() for option in options} | NOT_OURS
    named = re.findall(r"``(?:\[\w+\] )?([a-z]+(?:_[a-z]+)+)``", PAGES[page])
    checks = set(re.findall(r'name="(\w+)"', "".join(p.read_text() for p in (ROOT / "retryflow").rglob("*.py"))))
    checks |= {"main_thread"}
    assert sorted(set(named) - options - checks) == []


def test_every_check_is_explained() -> None:
    sources = "".join(
        path.read_text()
        for path in (ROOT / "retryflow" / "service").glob("*.py")
        if path.name.startswith("health") or path.name == "order_manager.py"
    )
    names = set(re.findall(r'name="([a-z_]+)"|age\(\s*"([a-z_]+)"', sources))
    flat = {name for pair in names for name in pair if name} - {"health", "service", "retryflow"}
    missing = [name for name in sorted(flat) if not re.search(rf"^``{name}`` ", PAGES["health"], re.MULTILINE)]
    assert (missing, len(flat) >= 8) == ([], True)
