"""The stop of a service on a real broker: the examples, their callers, and what they had not begun."""

import contextlib
import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import amqp
import oslo_messaging
import pytest

from retryflow.queue.transport import get_transport
from tests.fixtures.processes import Daemon, Daemons
from tests.fixtures.rabbit import Rabbit, overriding

EXAMPLES = Path(__file__).parents[2] / "examples"
TOPICS = ("greetings", "builders", "checkers")
TIRED = """
import sys
from retryflow.service.plain import Manager, expose, serve

class Tired(Manager):
    @expose
    def greet(self, context, name, seconds):
        self.end(f"fatigue after {name}")
        return f"Good night {name}"

serve(Tired, topic="greetings", argv=sys.argv[1:])
"""
TIDY = """
import sys
from retryflow.service.plain import Manager, periodic_task, serve

class Tidy(Manager):
    @periodic_task(spacing=3600, run_immediately=True)
    def tidy(self, context):
        print("tidied", flush=True)

    def periodic_tasks(self, context, raise_on_error=False):
        super().periodic_tasks(context)
        print("looked", flush=True)
        return 3600.0

serve(Tidy, topic="greetings", argv=sys.argv[1:], periodic_interval_seconds=0.1)
"""


class Greeters:
    """Starts an example, under names that no other test uses, and calls it."""

    def __init__(self, directory: Path, daemons: Daemons, rabbit: Rabbit) -> None:
        self.directory = directory
        self._daemons = daemons
        self._rabbit = rabbit
        self._count = 0
        self.threads = ThreadPoolExecutor(8)

    def start(self, *, script: str = "", workers: int = 1, ready: bool = True, **options: Any) -> Daemon:
        """Start one more, and wait until it consumes."""
        self._count += 1
        text = script or (EXAMPLES / "greeter.py").read_text()
        for topic in TOPICS:
            text = text.replace(f'"{topic}"', repr(self.topic(topic)))
        path = self.directory / f"greeter-{self._count}.py"
        path.write_text(text.replace("argv=sys.argv[1:]", f"argv=sys.argv[1:], workers={workers}"))
        settings = {"shutdown_report_file": f"{self.directory}/report-{self._count}.json", **options}
        own = [f"{name} = {value}" for name, value in settings.items() if "." not in name]
        queue = [f"{name[6:]} = {value}" for name, value in settings.items() if name.startswith("queue.")]
        config = self.directory / f"greeter-{self._count}.conf"
        # The last of two equal options counts.
        config.write_text("\n".join([self._rabbit.settings, "[DEFAULT]", *own, "[queue]", *queue, ""]))
        daemon = self._daemons.start(["python", str(path), "--config-file", str(config)])
        if ready:
            daemon.wait_for_log("connected to rabbit", count=workers)
        return daemon

    def report(self, number: int = 1) -> Any:
        return json.loads((self.directory / f"report-{number}.json").read_text())

    def topic(self, name: str) -> str:
        return f"{self._rabbit.topic}.{name}"

    def call(self, name: str, seconds: float) -> "Future[str]":
        """Call it as any oslo.messaging client would."""
        return self.submit("greetings", "greet", name, name=name, seconds=seconds)

    def submit(self, topic: str, method: str, request: str, **arguments: Any) -> "Future[str]":
        """Call any method; its answer is that of the future."""
        client = oslo_messaging.get_rpc_client(
            self.transport, oslo_messaging.Target(topic=self.topic(topic)), timeout=60
        )
        return self.threads.submit(client.call, {"request_id": f"req-{request}"}, method, **arguments)


@pytest.fixture
def greeters(tmp_path: Path, daemons: Daemons, rabbit: Rabbit) -> Iterator[Greeters]:
    with overriding(rabbit.overrides) as conf:
        several = Greeters(tmp_path, daemons, rabbit)
        several.transport = get_transport(conf)
        yield several
        several.threads.shutdown()
        several.transport.cleanup()
    for queue in [name for topic in TOPICS for name in (several.topic(topic), f"{several.topic(topic)}.worker")]:
        with rabbit.channel() as channel, contextlib.suppress(amqp.NotFound):
            channel.queue_delete(queue)
    for exchange in [f"{several.topic(topic)}_fanout" for topic in TOPICS]:
        with rabbit.channel() as channel, contextlib.suppress(amqp.NotFound):
            channel.exchange_delete(exchange)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_caller_in_the_middle_of_a_call_gets_its_answer(greeters: Greeters, workers: int) -> None:
    """The example drains, without orders and without a database; and the reply goes out before the connection does."""
    daemon = greeters.start(workers=workers)
    answer = greeters.call("Ada", 3)
    daemon.wait_for_log("Greeting Ada")
    daemon.send_group(signal.SIGTERM)
    assert answer.result(60) == "Hello Ada"
    assert daemon.wait() == 0
    assert "task completed: greet (request_id: req-Ada" in daemon.log()


def test_d10_what_was_not_begun_is_run_by_another_worker_while_this_one_drains(greeters: Greeters) -> None:
    """D10: it was run one after the other during the stop, or lost."""
    # And [queue] read_ahead, which is not set, is no more than that.
    options = {"executor_thread_pool_size": 1}
    first = greeters.start(**options)
    slow = greeters.call("Slow", 4)
    first.wait_for_log("Greeting Slow")
    waiting = [greeters.call(name, 0) for name in ("Bob", "Cy", "Dee")]
    second = greeters.start(**options)
    # One of the three went to the second; another is in the first one's hands, or will be.
    first.terminate()
    assert sorted(answer.result(60) for answer in waiting) == ["Hello Bob", "Hello Cy", "Hello Dee"]
    assert not slow.done()
    assert slow.result(60) == "Hello Slow"
    assert first.wait() == 0
    assert "Greeting Slow" not in second.log()
    report = greeters.report(1)
    assert report["counts"]["finished"] == 1
    assert set(report["counts"]) <= {"finished", "handed back"}


def test_a_service_whose_broker_is_away_stops_when_it_is_told_to(greeters: Greeters) -> None:
    daemon = greeters.start(ready=False, transport_url="rabbit://guest:guest@127.0.0.1:1/")
    daemon.wait_for_log("cannot consume from")
    daemon.terminate()
    assert daemon.wait() == 0
    assert greeters.report()["seconds"] < 30


def test_a_manager_that_can_work_no_longer_ends_its_process_with_4(greeters: Greeters) -> None:
    daemon = greeters.start(script=TIRED)
    assert greeters.call("Ada", 0).result(60) == "Good night Ada"
    assert daemon.wait() == 4
    assert "Graceful shutdown: stopping because of fatigue after Ada" in daemon.log()
    assert greeters.report()["reason"] == "fatigue after Ada"


def test_a_master_replaces_a_process_whose_manager_can_work_no_longer(greeters: Greeters) -> None:
    daemon = greeters.start(script=TIRED, workers=2)
    assert greeters.call("Ada", 0).result(60) == "Good night Ada"
    daemon.wait_for_log("connected to rabbit", count=3)
    daemon.terminate()
    assert daemon.wait() == 0


def test_the_example_of_two_services_stops_as_one(greeters: Greeters) -> None:
    daemon = greeters.start(script=(EXAMPLES / "two_services.py").read_text(), ready=False)
    daemon.wait_for_log("connected to rabbit", count=2)
    built = greeters.submit("builders", "build", "1", order_id="order-1", seconds=2)
    checked = greeters.submit("checkers", "check", "2", order_id="order-2", seconds=2)
    daemon.wait_for_log("Building order-1")
    daemon.wait_for_log("Checking order-2")
    daemon.terminate()
    assert (built.result(60), checked.result(60)) == ("order-1 is built", "order-2 is right")
    assert daemon.wait() == 0
    report = greeters.report()
    assert (report["service"], report["counts"]) == ("Builder, Checker", {"finished": 2})
    assert [(task["service"], task["entity_id"]) for task in report["tasks"]] == [
        ("Builder", "order-1"),
        ("Checker", "order-2"),
    ]
    assert daemon.log().count("Graceful shutdown finished") == 2


def test_the_example_of_two_services_refuses_a_contradiction_in_one_line(greeters: Greeters) -> None:
    script = (EXAMPLES / "two_services.py").read_text()
    daemon = greeters.start(script=script, ready=False, graceful_shutdown_timeout=5)
    assert daemon.wait() == 1
    assert daemon.log().startswith("two-services: [DEFAULT] graceful_shutdown_timeout (5")
    assert len(daemon.lines()) == 1


def test_a_signal_while_the_example_of_two_services_waits_for_its_broker_ends_it(greeters: Greeters) -> None:
    script = (EXAMPLES / "two_services.py").read_text()
    daemon = greeters.start(script=script, ready=False, transport_url="rabbit://guest:guest@127.0.0.1:1/")
    daemon.wait_for_log("cannot consume from", count=2)
    daemon.terminate()
    assert daemon.wait() == 0


def test_serve_looks_at_periodic_tasks_as_often_as_it_is_told(greeters: Greeters) -> None:
    daemon = greeters.start(script=TIDY)
    daemon.wait_for_log("looked", count=3)
    assert daemon.log().count("tidied") == 1
    daemon.terminate()
    assert daemon.wait() == 0
