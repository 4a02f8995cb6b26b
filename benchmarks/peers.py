"""Other systems of the kind, by a harness of their own.

``RETRYFLOW_BENCH_PEERS`` names its folder, whose ``run.py WORKLOAD PEER...`` is called for the workloads and peers that
``RETRYFLOW_BENCH_WORKLOADS`` and ``RETRYFLOW_BENCH_PEER_NAMES`` list. It writes ``results/WORKLOAD.json``; each number
of its summary becomes a figure. Without the variable there is nothing to compare with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Sample


def run(*, quick: bool) -> Iterator[Sample]:
    """One run of the harness."""
    folder = os.environ.get("RETRYFLOW_BENCH_PEERS")
    if not folder:
        return
    names = os.environ.get("RETRYFLOW_BENCH_PEER_NAMES", "retryflow").split()
    for workload in os.environ.get("RETRYFLOW_BENCH_WORKLOADS", "W1").split():
        command = [sys.executable, str(Path(folder) / "run.py"), workload, *names]
        subprocess.run([*command, *(["--n", "100", "--repeat", "1"] if quick else [])], check=True, stdout=sys.stderr)
        summary = json.loads((Path(folder) / "results" / f"{workload}.json").read_text())
        yield from _numbers(workload, summary.get("summary", summary))


def _numbers(case: str, value: Any, unit: str = "") -> Iterator[Sample]:
    if isinstance(value, dict):
        if "median" in value:
            yield Sample(case, unit or "value", float(value["median"]))
            return
        for name, inner in value.items():
            yield from _numbers(f"{case} {unit}".strip(), inner, str(name))
