"""From the start of a worker process until it takes tickets, and what memory it holds then.

The baseline is the interpreter with oslo.messaging and SQLAlchemy imported, and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks import place
from benchmarks.measure import Sample


def run(*, quick: bool) -> Iterator[Sample]:
    """One run."""
    if not place.has_rabbit():
        return
    for kind in place.databases()[: 1 if quick else None]:
        for daemon in ("worker", "scheduler"):
            with place.deployment(kind) as made:
                began = time.monotonic()
                started = made.start(daemon, place.options(), ready=False)
                if daemon == "worker":
                    ready = place.wait_for(lambda made=made: made.consumers() > 0)
                else:
                    ready = place.wait_for(lambda made=made: made._processes("scheduler"))
                case = f"{daemon}, {kind}"
                yield Sample(case, "s to ready", ready - began, _imports(), "imports of the libraries")
                yield Sample(case, "MiB Pss", place.memory_mib(started.pid))
    yield Sample("command", "s for --version", _seconds("-m", "retryflow.cli.main", "--version"))


def _imports() -> float:
    return _seconds("-c", "import sqlalchemy, oslo_messaging")


def _seconds(*arguments: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-W", "ignore", *arguments], check=True, capture_output=True)
    return time.monotonic() - began
