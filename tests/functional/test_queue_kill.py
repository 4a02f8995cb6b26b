"""Worker processes on a real RabbitMQ, killed with -9."""

from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg

from retryflow.queue.client import TaskClient
from retryflow.queue.transport import get_transport
from tests.fixtures.processes import Daemon, Daemons
from tests.fixtures.rabbit import Rabbit, eventually
from tests.functional.test_queue_burst import HANG_SECONDS, tickets

StartWorker = Callable[..., Daemon]


@pytest.fixture
def start_worker(daemons: Daemons, rabbit: Rabbit, tmp_path: Path) -> StartWorker:
    config = tmp_path / "queue.conf"
    config.write_text(rabbit.settings)

    def start(seconds: float, mode: str = "late") -> Daemon:
        command = ["python", "-m", "tests.fixtures.queue_worker", str(config), str(seconds), mode]
        worker = daemons.start(command)
        worker.wait_for_log("^ready$")
        return worker

    return start


def ended(worker: Daemon) -> list[str]:
    return [line.text.removeprefix("end ") for line in worker.lines() if line.text.startswith("end ")]


def begun(worker: Daemon) -> list[str]:
    return [line.text.removeprefix("begin ") for line in worker.lines() if line.text.startswith("begin ")]


def test_a_killed_worker_loses_no_ticket_that_it_had_not_claimed(
    start_worker: StartWorker, rabbit: Rabbit, rabbit_conf: cfg.ConfigOpts
) -> None:
    """T1, T6: all hundred are executed, and only those that were running are executed twice."""
    rabbit.declare()
    sent = tickets(100)
    TaskClient(get_transport(rabbit_conf), rabbit_conf).send(sent, timeout_seconds=HANG_SECONDS)
    first = start_worker(0.1, "never")
    first.wait_for_log("^end ", count=10)
    first.kill()
    first.wait()
    second = start_worker(0.0)
    everything = {ticket.task_id for ticket in sent}
    eventually(lambda: set(ended(first)) | set(ended(second)) == everything)
    eventually(lambda: rabbit.ready() == 0)
    twice = set(begun(first)) & set(begun(second))
    # Besides those that ran: acknowledgements of the last instant may not have left the process.
    assert len(twice) <= 2 + 4
    assert set(begun(first)) - set(ended(first)) <= set(begun(second))


def test_messages_acknowledged_early_are_not_run_again_after_a_kill(
    start_worker: StartWorker, rabbit: Rabbit, rabbit_conf: cfg.ConfigOpts
) -> None:
    rabbit.declare()
    sent = tickets(20, task="check_certificate_status")
    TaskClient(get_transport(rabbit_conf), rabbit_conf).send(sent, timeout_seconds=HANG_SECONDS)
    first = start_worker(0.2)
    first.wait_for_log("^begin ", count=6)
    first.kill()
    first.wait()
    second = start_worker(0.0)
    everything = {ticket.task_id for ticket in sent}
    eventually(lambda: set(begun(first)) | set(begun(second)) == everything)
    eventually(lambda: rabbit.ready() == 0)
    assert not set(begun(first)) & set(begun(second))
