"""The page on the commands names each of them, and nothing that there is not."""

import re
from pathlib import Path

from retryflow.cli.commands import COMMANDS, Commands
from tests.fixtures.command import Command

PAGE = Path(__file__).resolve().parents[2] / "doc" / "source" / "commands.rst"
DOCTOR = Path(__file__).resolve().parents[2] / "retryflow" / "cli" / "checks"


def test_each_command_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert [name for name in COMMANDS if name not in text] == []


def test_each_command_line_on_the_page_can_be_parsed(retryflow: Command) -> None:
    lines = re.findall(r"^   \$ retryflow (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        words = re.sub(r"--config-file \S+ ", "", line).replace('"ordered twice"', "twice").split()
        if words[0] == "help":
            continue
        command, _, arguments = Commands().find_command(words)
        options = {word for word in arguments if word.startswith("--")}
        help_text = retryflow(*words[: len(words) - len(arguments)], "--help").out
        assert [option for option in options if option not in help_text] == [], (command, line)


def test_each_check_of_the_doctor_is_on_the_page() -> None:
    source = "".join(path.read_text() for path in DOCTOR.glob("*.py"))
    names = set(re.findall(r'check="([a-z-]+)"', source)) | set(
        re.findall(r'^        "([a-z-]+)": \(', source, re.MULTILINE)
    )
    assert {"schema", "expired-leases", "stuck-lock"} < names
    assert [name for name in names if f"``{name}``" not in PAGE.read_text()] == []
