"""``bin/demo``: works from start to end, and leaves neither a process nor a file behind, whatever happens to it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "bin" / "demo.py"
HANG_SECONDS = 240


class RunningDemo:
    """The demonstration as a process; what it prints is read line by line."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(directory), **environment},
        )
        # A demonstration that hangs would hang the reading of its lines.
        self._hanging = threading.Timer(HANG_SECONDS, self.process.kill)
        self._hanging.start()
        self._read: list[str] = []

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read on until a line fits."""
        assert self.process.stdout
        for line in self.process.stdout:
            self._read.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended before {pattern!r}:\n{''.join(self._read)}\n{self.end()}")

    def end(self) -> tuple[int, str, str]:
        """Exit status, output and errors, once it has ended."""
        rest, errors = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, "".join(self._read) + rest, errors

    def close(self) -> None:
        self._hanging.cancel()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=HANG_SECONDS)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[RunningDemo]:
    running = RunningDemo(tmp_path)
    yield running
    running.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("path", [os.environ.get("PATH", ""), "/nonexistent"], ids=["as it is", "without openssl"])
def test_the_demonstration_works_from_start_to_end(tmp_path: Path, path: str) -> None:
    demo = RunningDemo(tmp_path, PATH=path)
    try:
        daemon = int(demo.read_until(r"It is process (\d+)")[1])
        status, output, errors = demo.end()
    finally:
        demo.close()
    assert status == 0, output + errors
    assert errors == ""
    verified = re.findall(r"(\w+)\.example\.org +certificate (\w+)\.\.\., verified by cryptography", output)
    assert [name for name, _ in verified] == ["www", "api", "mail"]
    assert len({serial for _, serial in verified}) == 3
    assert re.search(r"weak\.example\.org +refused with 400: The RSA key .* has 1024 bits", output)
    # Each change was shown in its order: the outage and its end; and the end of a task after SIGTERM.
    outage = [r"api +PENDING: authority out of service", r"the authority is back", r"api +ACTIVE"]
    stop = [
        r"mail +task check_certificate_status is running",
        r"SIGTERM is sent",
        r"mail +ACTIVE",
        r"stopped with exit status 0",
    ]
    for told in (outage, stop):
        places = [found.start() for pattern in told if (found := re.search(pattern, output))]
        assert len(places) == len(told), output
        assert places == sorted(places), output
    assert not is_alive(daemon)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demonstration_leaves_nothing_behind(
    demo: RunningDemo, tmp_path: Path, number: signal.Signals
) -> None:
    daemon = int(demo.read_until(r"It is process (\d+)")[1])
    demo.read_until("www +PENDING")
    demo.process.send_signal(number)
    status, _output, errors = demo.end()
    assert status == 128 + number
    assert "Traceback" not in errors
    assert not is_alive(daemon)
    assert list(tmp_path.iterdir()) == []


def test_a_demonstration_that_fails_says_what_and_where(demo: RunningDemo, tmp_path: Path) -> None:
    daemon = int(demo.read_until(r"It is process (\d+)")[1])
    demo.read_until("www +PENDING")
    os.kill(daemon, signal.SIGKILL)
    status, output, errors = demo.end()
    assert status == 1
    assert "The demonstration failed: the daemon ended with status -9" in errors
    assert "Traceback" not in errors
    (left,) = tmp_path.iterdir()
    assert f"Everything is in {left}" in output
    assert (left / "daemon.log").exists()
