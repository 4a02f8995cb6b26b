"""Samples, their median and spread, and the conditions they were taken under."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

LIBRARIES = ("SQLAlchemy", "psycopg", "PyMySQL", "oslo.messaging", "oslo.service", "amqp")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value.

    :param case: what was measured, such as ``postgresql, 1000 rows``.
    :param unit: such as ``rows/s``; a case may have several.
    :param baseline: the same without retryflow, taken in the same run; ``None`` without one.
    :param against: what the baseline is.
    """

    case: str
    unit: str
    value: float
    baseline: float | None = None
    against: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """What several samples of the same case and unit come to."""

    benchmark: str
    case: str
    unit: str
    median: float
    lowest: float
    highest: float
    runs: int
    baseline: float | None
    ratio: float | None
    against: str


def figures(benchmark: str, samples: Iterable[Sample]) -> list[Figure]:
    """Medians with their spread, in the order in which the cases came; a ratio is taken within each run."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.case, sample.unit), []).append(sample)
    made = []
    for (case, unit), group in groups.items():
        values = [sample.value for sample in group]
        beside = [sample for sample in group if sample.baseline]
        made.append(
            Figure(
                benchmark=benchmark,
                case=case,
                unit=unit,
                median=statistics.median(values),
                lowest=min(values),
                highest=max(values),
                runs=len(values),
                baseline=statistics.median(sample.baseline or 0.0 for sample in beside) if beside else None,
                ratio=statistics.median(sample.value / (sample.baseline or 1.0) for sample in beside)
                if beside
                else None,
                against=group[0].against,
            )
        )
    return made


def conditions() -> dict[str, Any]:
    """The machine and what runs on it; the load tells whether others were at work."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": len(os.sched_getaffinity(0)),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def as_json(found: Iterable[Figure]) -> list[dict[str, Any]]:
    """The figures as plain values."""
    return [asdict(figure) for figure in found]


def table(found: Iterable[Figure]) -> str:
    """The figures for people."""
    lines = [("benchmark", "case", "median", "lowest", "highest", "unit", "baseline", "ratio", "against")]
    for figure in found:
        lines.append(
            (
                figure.benchmark,
                figure.case,
                _short(figure.median),
                _short(figure.lowest),
                _short(figure.highest),
                figure.unit,
                _short(figure.baseline),
                _short(figure.ratio),
                figure.against,
            )
        )
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    numbers = {2, 3, 4, 6, 7}
    return "\n".join(
        "  ".join(
            text.rjust(width) if n in numbers else text.ljust(width)
            for n, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
