"""A scheduler killed or paused at each step of its tick, on each database: the next one goes on as if nothing were."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from retryflow import faults
from retryflow.model import engine as engine_module
from retryflow.model import leases
from retryflow.model.transaction import transact
from retryflow.retry.sending import Ticket
from retryflow.retry.settings import Settings
from tests.fixtures.rabbit import eventually
from tests.fixtures.retry_list import SERVERS, Recorder, RetryList, child

pytestmark = pytest.mark.parametrize("retry_list", ["sqlite", *SERVERS], indirect=True)


class Queue:
    """A queue that survives its sender: a file with a line for each ticket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def send(self, tickets: Sequence[Ticket], *, timeout_seconds: float) -> set[str]:
        with self._path.open("a") as file:
            file.write("".join(f"{ticket.task_id}\n" for ticket in tickets))
        return set()

    def tickets(self) -> list[str]:
        return self._path.read_text().split()


def _scheduler(
    retry_list: RetryList, queue: Queue, *, fault: str = "", holder: str = "victim:1:token", **settings: float
) -> Callable[[], None]:
    def run() -> None:
        point, _, action = fault.partition("=")
        faults._POINTS.update({point: [action]} if fault else {})
        mine = RetryList(retry_list.url)
        mine.ticker(queue, Settings(batch_size=5, **settings), holder=holder).tick()  # type: ignore[arg-type]

    return run


def _time_passes(retry_list: RetryList) -> None:
    """Let the lock be stale, and the leases whose tickets nobody took be due for re-sending."""
    retry_list.age_lock(100.0)
    retry_list.sql("UPDATE order_task_leases SET expires_at = created_at WHERE holder IS NULL")


def _claims(retry_list: RetryList, task_ids: Sequence[str]) -> Counter[str]:
    """What workers would run of the tickets in the queue."""
    runs: Counter[str] = Counter()
    for task_id in task_ids:
        runs[task_id] += transact(
            retry_list.engine,
            lambda connection, task_id=task_id: leases.claim(
                connection, task_id, holder="worker:1:a", lease_seconds=600.0, also_crashed=True
            ),
        )
    return runs


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize(
    "point",
    ["tick.locked", "dispatch.before_delete", "dispatch.before_commit", "dispatch.after_commit", "send.after"],
)
def test_s4_killed_at_any_step_every_row_is_executed_once(
    retry_list: RetryList, tmp_path: Path, point: str, at: int
) -> None:
    """S4: executions == rows, none lost."""
    rows = retry_list.rows(15)
    queue = Queue(tmp_path / "queue")
    pid = child(_scheduler(retry_list, queue, fault=f"{point}=kill@{at}"))
    status = os.waitpid(pid, 0)[1]
    assert os.WIFEXITED(status) if (point, at) == ("tick.locked", 2) else os.WTERMSIG(status) == signal.SIGKILL
    _time_passes(retry_list)
    successor = retry_list.ticker(queue, Settings(batch_size=5), holder="successor:2:token")
    successor.tick()
    assert _claims(retry_list, queue.tickets()) == Counter(rows)
    _time_passes(retry_list)
    assert not successor.tick().did_something
    assert retry_list.lock_row() is None


@pytest.mark.parametrize("point", ["recover.after_fence", "recover.before_commit"])
def test_s4_killed_while_recovering_nothing_is_lost_and_one_crash_is_counted(
    retry_list: RetryList, tmp_path: Path, point: str
) -> None:
    """S4, T1: a dead worker's tasks survive the death of the scheduler that recovers them."""
    retry_list.leases(5, holder="worker:9:dead")
    queue = Queue(tmp_path / "queue")
    pid = child(_scheduler(retry_list, queue, fault=f"{point}=kill@3"))
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert len(retry_list.retry_rows()) == 2
    _time_passes(retry_list)
    retry_list.ticker(queue, Settings(batch_size=5)).tick()
    found = retry_list.lease_rows()
    assert sorted(queue.tickets()) == sorted(found)
    assert [row["crash_count"] for row in found.values()] == [1] * 5


def test_s6_a_scheduler_paused_in_a_transaction_holds_up_nobody_beyond_the_limits_and_commits_nothing(
    retry_list: RetryList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5, S6: SIGSTOP while it has locked the lock's row and the rows of its batch; the server ends its transaction."""
    if retry_list.kind == "sqlite":
        pytest.skip("SQLite knows no limit for an idle transaction; it is set on servers")
    # The limit itself is looked at in test_model_engine; this test is not to take its ten seconds.
    monkeypatch.setattr(engine_module, "IDLE_IN_TRANSACTION_SECONDS", 1)
    rows = retry_list.rows(15)
    queue, gate = Queue(tmp_path / "queue"), tmp_path / "gate"
    pid = child(_scheduler(retry_list, queue, fault=f"dispatch.before_commit=pause:{gate}"))
    eventually(gate.exists, "it is in the middle of its transaction")
    os.kill(pid, signal.SIGSTOP)
    gate.unlink()
    sender = Recorder()
    other = retry_list.ticker(sender, Settings(batch_size=5, retry_lock_timeout_seconds=0.1), holder="other:2:token")
    eventually(lambda: (other.tick(), retry_list.retry_rows() == {})[1], "another one works", timeout_seconds=60)
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "it has lost its lock, which is no error"
    assert sorted(sender.ids) == sorted(rows)
    assert queue.tickets() == []
    assert set(retry_list.lease_rows()) == set(rows)
