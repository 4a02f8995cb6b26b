"""What every test has: the threading backend, the fixtures of this folder, and a loud word on missing servers."""

import os
import pkgutil

import pytest

# Before anything imports oslo.messaging, which would settle on the other backend.
from retryflow.conf.backend import select_threading

select_threading()

# The fixture modules import each other; without this the one imported second would be loaded without its assertions.
pytest.register_assert_rewrite("tests.fixtures")

import tests.fixtures  # noqa: E402

pytest_plugins = [
    f"tests.fixtures.{module.name}"
    for module in pkgutil.iter_modules(tests.fixtures.__path__)
    if module.name != "servers"
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests to CI, unless they are asked for or named."""
    named = any("::" in argument for argument in config.args) or config.option.keyword or config.option.markexpr
    if named or os.environ.get("CI") or os.environ.get("RETRYFLOW_TEST_SLOW"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once more, at the very end, what was not tested because a server is missing."""
    from tests.fixtures.servers import UNREACHABLE

    reasons: dict[str, int] = {}
    for outcome in ("skipped", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if UNREACHABLE in text:
                reason = text[text.index(UNREACHABLE) :].splitlines()[0]
                reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("NOT TESTED: a server is missing", sep="!", red=True, bold=True)
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count} tests: {reason}", red=True)
