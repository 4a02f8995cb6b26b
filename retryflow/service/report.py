"""The final report of a stop: each task that was in progress or received, and what became of it."""

import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oslo_log import log as logging

from retryflow.service.status import worst
from retryflow.tracking import TaskEnd, TaskRecord

LOG = logging.getLogger(__name__)

FINISHED = "finished"
FAILED = "failed"
HANDED_BACK = "handed back"
INTERRUPTED = "interrupted"
ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition:
    """What became of one task.

    :param became: finished, failed (it ended, with an exception), handed back (received, not started) or interrupted.
    :param detail: for an interrupted one, where it went.
    :param seconds: how long it ran; ``None`` if it never started.
    :param service: whose task it was, in the report of several.
    """

    name: str
    request_id: str | None
    entity_id: str | None
    kind: str
    became: str
    detail: str | None = None
    seconds: float | None = None
    service: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The task as JSON has it."""
        own = asdict(self)
        if self.service is None:
            del own["service"]
        return own


def of_end(end: TaskEnd) -> Disposition:
    """The disposition of a task that ended during the drain."""
    record = end.record
    return Disposition(
        name=record.name,
        request_id=record.request_id,
        entity_id=record.entity_id,
        kind=record.kind,
        became=FAILED if end.failed else FINISHED,
        seconds=round(end.seconds, 3),
    )


def of_interrupted(record: TaskRecord, seconds: float, detail: str | None) -> Disposition:
    """The disposition of a task that was left at the deadline."""
    return Disposition(
        name=record.name,
        request_id=record.request_id,
        entity_id=record.entity_id,
        kind=record.kind,
        became=INTERRUPTED,
        detail=detail or ABANDONED,
        seconds=round(seconds, 3),
    )


def of_handed_back(item: object) -> Disposition:
    """The disposition of a message that was received and not started.

    :param item: what the server's ``stop_intake`` says of it: a request id, a mapping, or an object with such
        attributes.
    """

    def member(*names: str) -> str | None:
        for name in names:
            value = item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
            if value is not None:
                return str(value)
        return None

    if isinstance(item, str):
        return Disposition(name="?", request_id=item, entity_id=None, kind="sync", became=HANDED_BACK)
    return Disposition(
        name=member("method", "name") or "?",
        request_id=member("request_id"),
        entity_id=member("order_id", "entity_id"),
        kind="sync",
        became=HANDED_BACK,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of the stop of one service, or of several in one process, see :func:`together`."""

    service: str
    reason: str
    seconds: float
    exit_status: int
    tasks: tuple[Disposition, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks became what."""
        return dict(Counter(task.became for task in self.tasks))

    def log(self) -> None:
        """One line for each task, then the counts."""
        for task in self.tasks:
            LOG.info("Graceful shutdown report: %s", _line(task))
        counts = ", ".join(f"{count} {became}" for became, count in sorted(self.counts.items())) or "no tasks"
        LOG.info("Graceful shutdown finished after %.1f s: %s; exit status %d", self.seconds, counts, self.exit_status)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "service": self.service,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "stopped_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "exit_status": int(self.exit_status),
            "counts": self.counts,
            "tasks": [task.as_dict() for task in self.tasks],
        }

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all. A failure is logged: the stop goes on."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                json.dump(self.as_dict(), file, indent=2)
                file.write("\n")
            beside.replace(path)
        except OSError as error:
            LOG.error("Cannot write the shutdown report to %s: %s; the log has it", path, error)
            with contextlib.suppress(OSError):
                beside.unlink()


def together(reports: Sequence[Report]) -> Report:
    """One report for those of several services of one process, with all of their tasks; that of one stays as it is."""
    if len(reports) == 1:
        return reports[0]
    return Report(
        service=", ".join(each.service for each in reports),
        reason=reports[0].reason,
        seconds=max(each.seconds for each in reports),
        exit_status=worst(each.exit_status for each in reports),
        tasks=tuple(replace(task, service=task.service or each.service) for each in reports for task in each.tasks),
    )


def report_path(template: str, *, several_processes: bool) -> Path:
    """Where this process's report goes: ``{pid}`` is replaced; where several would write one file, the pid is added."""
    if "{pid}" in template:
        return Path(template.replace("{pid}", str(os.getpid())))
    return Path(f"{template}.{os.getpid()}" if several_processes else template)


def interrupted(tasks: Iterable[Disposition]) -> bool:
    """Whether any task did not come to its own end, and was not handed back."""
    return any(task.became == INTERRUPTED for task in tasks)


def _line(task: Disposition) -> str:
    became = f"{task.became}: {task.detail}" if task.detail else task.became
    ran = "" if task.seconds is None else f", ran {task.seconds:.1f} s"
    return f"{task.name} (request_id: {task.request_id}, entity: {task.entity_id}{ran}): {became}"
