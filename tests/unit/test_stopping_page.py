"""The operator's page on the stop explains each line that a stop logs, in the words in which it is logged."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "doc" / "source" / "stopping.rst").read_text().split())
LEVELS = {"info", "warning", "error", "exception"}
#: A mistake of whoever writes a service, which an operator never meets.
NOT_FOR_OPERATORS = {"Cannot start: several worker processes must be launched before any thread is started"}


def logged(module: str) -> Iterator[str]:
    tree = ast.parse((ROOT / "retryflow" / "service" / f"{module}.py").read_text())
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        words = {node.attr for node in ast.walk(call.func) if isinstance(node, ast.Attribute)}
        bounded = isinstance(call.func, ast.Name) and call.func.id == "log_bounded"
        if words & LEVELS or bounded:
            texts = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
            yield from texts[:1]


@pytest.mark.parametrize("module", ["drain", "report", "runner", "master", "worker", "scheduler"])
def test_each_line_of_a_stop_is_explained(module: str) -> None:
    lines = [line for line in logged(module) if line not in NOT_FOR_OPERATORS]
    if module in ("worker", "scheduler"):
        lines = [line for line in lines if line.startswith("Graceful shutdown")]
    assert lines
    missing = [line for line in lines if not re.search(_pattern(line), PAGE)]
    assert missing == []


def _pattern(line: str) -> str:
    """The line with anything in place of what varies."""
    return ".{1,99}?".join(re.escape(part) for part in re.split(r"%(?:\.\d)?[sdf]", line))
