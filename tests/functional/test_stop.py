"""The stop of a real process: what it waits for, what it says, and its exit status (rows D of the failures list)."""

import contextlib
import json
import re
import signal
import socket
import time
from collections import Counter

import pytest

from tests.fixtures.processes import PATIENCE_SECONDS, Daemon
from tests.fixtures.toy import Toy

IN_TIME = r"Graceful shutdown finished after"


def became(report: dict) -> dict[str, str]:
    return {task["entity_id"]: task["became"] for task in report["tasks"]}


def answer(connection: socket.socket) -> str:
    connection.settimeout(60)
    return json.loads(connection.makefile().readline())


def test_an_idle_service_says_so_and_ends_with_0(toy: Toy) -> None:
    daemon = toy.start()
    daemon.terminate()
    assert daemon.wait() == 0
    assert "INFO retryflow.service.drain [-] Graceful shutdown: no tasks in progress" in daemon.log()
    assert "cleanup_host" in daemon.log()
    report = toy.report()
    assert (report["exit_status"], report["tasks"], report["reason"]) == (0, [], "SIGTERM")


def test_d2_running_tasks_finish_before_the_process_ends(toy: Toy) -> None:
    """D2: stop() without wait() lost the running task and still ended with 0."""
    daemon = toy.start()
    orders = [f"order-{number}" for number in range(4)]
    for order in orders:
        toy.run(daemon, "sleep", order, seconds=1.5)
    daemon.terminate()
    assert daemon.wait() == 0
    assert all(toy.done(order) for order in orders)
    assert became(toy.report()) == dict.fromkeys(orders, "finished")


@pytest.mark.parametrize("behaviour", ["", "slow-reply"])
def test_a_caller_gets_its_answer_from_a_service_that_is_stopping(toy: Toy, behaviour: str) -> None:
    daemon = toy.start(behaviour=behaviour)
    connection = toy.run(daemon, "sleep", "order-1", seconds=1.5)
    daemon.terminate()
    assert answer(connection) == "slept order-1"
    assert daemon.wait() == 0


@pytest.mark.slow
def test_each_line_of_a_stop_is_logged_and_none_before(toy: Toy) -> None:
    daemon = toy.start()
    toy.run(daemon, "sleep", "before", seconds=0)
    daemon.wait_for_log("end before")
    assert "retryflow.service.drain" not in daemon.log()
    toy.run(daemon, "sleep", "order-1", seconds=1)
    toy.run(daemon, "sleep", "order-2", seconds=12)
    daemon.terminate()
    assert daemon.wait() == 0
    stop = [line.text.split("[-] ")[1] for line in daemon.lines() if "Graceful shutdown" in line.text]
    task = r"sleep \(request_id: req-{0}, entity: {0}, elapsed: \d+\.\d s\)"
    expected = [
        r"Graceful shutdown: stopping because of SIGTERM",
        r"Graceful shutdown initiated with 2 in-progress tasks; waiting at most \d+\.\d s for them",
        r"Graceful shutdown: in progress: " + task.format("order-1"),
        r"Graceful shutdown: in progress: " + task.format("order-2"),
        r"Graceful shutdown: task completed: " + task.format("order-1") + ", remaining in-progress tasks: 1",
        r"Graceful shutdown still waiting for 1 in progress tasks: " + task.format("order-2"),
        r"Graceful shutdown: task completed: " + task.format("order-2") + ", remaining in-progress tasks: 0",
        r"Graceful shutdown report: sleep \(request_id: req-order-1, entity: order-1, ran \d+\.\d s\): finished",
        r"Graceful shutdown report: sleep \(request_id: req-order-2, entity: order-2, ran \d+\.\d s\): finished",
        r"Graceful shutdown finished after \d+\.\d s: 2 finished; exit status 0",
    ]
    assert len(stop) == len(expected), stop
    for line, pattern in zip(stop, expected, strict=True):
        assert re.fullmatch(pattern, line), line


def test_an_async_task_is_waited_for_until_its_future_is_done(toy: Toy) -> None:
    daemon = toy.start()
    assert answer(toy.run(daemon, "build", "order-1", seconds=1.5)) == "submitted"
    daemon.terminate()
    assert daemon.wait() == 0
    assert toy.done("order-1")
    (task,) = toy.report()["tasks"]
    assert (task["name"], task["kind"], task["became"]) == ("build", "async", "finished")


def test_an_untracked_method_is_not_waited_for_without_end(toy: Toy) -> None:
    daemon = toy.start(manager_timeout=600, graceful_timeout=700)
    toy.run(daemon, "background", "order-1", seconds=3600)
    daemon.terminate()
    assert daemon.wait() == 0


def test_d3_a_running_periodic_task_is_waited_for(toy: Toy) -> None:
    """D3: the timer got None in the shutdown, raised, and the process died in the middle of the drain, status 0."""
    daemon = toy.start(behaviour="periodic", TOY_TIDY_SECONDS="1.5")
    daemon.wait_for_log("begin tidy")
    daemon.terminate()
    assert daemon.wait() == 0
    assert toy.done("tidy")
    tidy = [task for task in toy.report()["tasks"] if task["name"] == "tidy"]
    assert [(task["kind"], task["became"]) for task in tidy] == [("periodic", "finished")]


def test_d3_no_periodic_task_begins_during_the_drain(toy: Toy) -> None:
    """D3: and the timer's thread survives its rounds while tasks are waited for."""
    daemon = toy.start(behaviour="periodic")
    daemon.wait_for_log("end tidy", count=3)
    toy.run(daemon, "sleep", "order-1", seconds=2)
    daemon.terminate()
    assert daemon.wait() == 0
    texts = [line.text for line in daemon.lines()]
    begun = max(index for index, text in enumerate(texts) if "drain_started" in text)
    assert not [text for text in texts[begun + 1 :] if "begin tidy" in text]
    assert "Traceback" not in daemon.log()
    assert toy.done("order-1")


def test_d4_a_task_that_ends_with_system_exit_does_not_hold_up_the_stop(toy: Toy) -> None:
    """D4: its record leaked, so each stop took the full time-out."""
    daemon = toy.start()
    toy.run(daemon, "leave", "order-1", seconds=0)
    toy.run(daemon, "leave", "order-2", seconds=1)
    daemon.terminate()
    assert daemon.wait() == 0
    assert became(toy.report()) == {"order-2": "failed"}


def test_d5_arguments_that_lead_to_no_id_fail_neither_the_call_nor_the_stop(toy: Toy) -> None:
    """D5: a dictionary or None where an object was expected failed the RPC in the look-up of its id."""
    daemon = toy.start()
    instances = [None, {"uuid": "vm-1"}, {"uuid": None}, ["vm-1"]]
    connections = [toy.send(daemon, "touch", None, instance=instance) for instance in instances]
    daemon.wait_for_log("begin touch", count=4)
    daemon.terminate()
    assert [answer(connection) for connection in connections] == ["touched"] * 4
    assert daemon.wait() == 0
    assert Counter(task["entity_id"] for task in toy.report()["tasks"]) == {None: 3, "vm-1": 1}


@pytest.mark.parametrize("hangs", ["interrupt-hangs", "close-hangs", "intake-hangs"])
def test_d6_no_step_of_the_stop_outlasts_the_deadline(toy: Toy, hangs: str) -> None:
    """D6: a wait without bound kept the process beyond the manager's time-out, until it was killed."""
    daemon = toy.start(manager_timeout=2, graceful_timeout=30, behaviour=hangs)
    toy.run(daemon, "ignore", "order-1")
    daemon.terminate()
    assert daemon.wait() == 3
    assert re.search(IN_TIME, daemon.log())
    assert "graceful_shutdown_timeout has passed" not in daemon.log()


def test_d6_a_stop_that_hangs_altogether_ends_at_the_graceful_time_out(toy: Toy) -> None:
    """D6: the last resort."""
    daemon = toy.start(manager_timeout=1, graceful_timeout=2, behaviour="shutdown-hangs")
    daemon.terminate()
    assert daemon.wait() == 3
    assert "graceful_shutdown_timeout has passed" in daemon.log()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_a_log_that_nobody_reads_does_not_keep_the_process(toy: Toy, workers: int) -> None:
    """A supervisor that hangs leaves the pipe full, and every log call hangs with it."""
    daemon = toy.start(manager_timeout=2, graceful_timeout=4, workers=workers)
    toy.fill_log(daemon, pid=toy.serving(daemon)[0])
    daemon.terminate()
    assert daemon.process.wait(PATIENCE_SECONDS) == 3


def test_d8_repeated_signals_change_nothing(toy: Toy) -> None:
    """D8: a second SIGTERM, or one to the whole group, killed the drain."""
    daemon = toy.start()
    toy.run(daemon, "sleep", "order-1", seconds=2)
    daemon.terminate()
    daemon.wait_for_log("drain_started")
    for _ in range(20):
        daemon.terminate()
        daemon.send_group(signal.SIGTERM)
    assert daemon.wait() == 0
    assert toy.done("order-1")


def test_d7_repeated_signals_do_not_move_the_deadline(toy: Toy) -> None:
    """D7: each further SIGTERM began the time-out anew."""
    daemon = toy.start(manager_timeout=2, graceful_timeout=3, behaviour="shutdown-hangs")
    asked = time.monotonic()
    while daemon.exited_at is None and time.monotonic() < asked + PATIENCE_SECONDS:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            daemon.terminate()
        daemon.idle(0.2)
    assert daemon.wait(0) == 3


def test_d10_messages_not_begun_are_handed_back_at_once(toy: Toy) -> None:
    """D10: they were run one after the other during the stop, or lost."""
    daemon = toy.start(threads=1)
    toy.run(daemon, "sleep", "order-1", seconds=1.5)
    for number in range(2, 6):
        toy.cast(daemon, "sleep", f"order-{number}", seconds=0)
    daemon.terminate()
    assert daemon.wait() == 0
    assert Counter(became(toy.report()).values()) == {"finished": 1, "handed back": 4}
    assert not any(toy.done(f"order-{number}") for number in range(2, 6))


def test_d13_the_report_names_each_task_and_what_became_of_it(toy: Toy) -> None:
    """D13: nobody knew which tasks had been killed."""
    daemon = toy.start(manager_timeout=4, graceful_timeout=30, threads=3)
    toy.run(daemon, "sleep", "quick", seconds=1)
    toy.run(daemon, "sleep", "long", seconds=3600)
    toy.run(daemon, "ignore", "deaf")
    toy.cast(daemon, "sleep", "waiting", seconds=0)
    daemon.terminate()
    assert daemon.wait() == 3
    report = toy.report()
    assert report["exit_status"] == 3
    assert report["counts"] == {"finished": 1, "handed back": 1, "interrupted": 2}
    tasks = {task["entity_id"]: task for task in report["tasks"]}
    assert tasks["long"]["detail"] == "returned to the toy box"
    assert tasks["deaf"]["detail"] == "abandoned"
    assert tasks["long"]["request_id"] == "req-long"
    assert tasks["long"]["seconds"] > 0
    assert tasks["waiting"]["seconds"] is None
    warnings = [line.text for line in daemon.lines() if " WARNING retryflow.service.drain" in line.text]
    assert len(warnings) == 2
    assert "entity: long, elapsed" in warnings[0]
    assert "report: sleep (request_id: req-long, entity: long" in daemon.log()


def test_d14_a_task_that_ignores_everything_is_gone_at_the_deadline(toy: Toy) -> None:
    """D14: it kept the process alive."""
    daemon = toy.start(manager_timeout=2, graceful_timeout=60)
    toy.run(daemon, "ignore", "order-1")
    daemon.terminate()
    assert daemon.wait() == 3
    assert became(toy.report()) == {"order-1": "interrupted"}


def test_d15_grace_periods_of_two_services_do_not_add_up(toy: Toy) -> None:
    """D15: each server of a process took its own grace period, one after the other."""
    daemon = toy.start(manager_timeout=6, graceful_timeout=60, behaviour="two-services")
    toy.run(daemon, "ignore", "order-1")
    daemon.terminate()
    assert daemon.wait() == 3
    finished = [line.at for line in daemon.lines() if re.search(IN_TIME, line.text)]
    assert len(finished) == 2
    assert finished[1] - finished[0] < 5
    assert [task["entity_id"] for task in toy.report()["tasks"]] == ["order-1", "second-1"]


def test_a_report_that_cannot_be_written_does_not_fail_the_stop(toy: Toy) -> None:
    daemon = toy.start()
    (toy.directory / "report.json").mkdir()
    toy.run(daemon, "sleep", "order-1", seconds=0.5)
    daemon.terminate()
    assert daemon.wait() == 0
    assert "Cannot write the shutdown report" in daemon.log()


def test_a_service_that_ends_by_itself_drains_and_ends_with_4(toy: Toy) -> None:
    daemon = toy.start()
    toy.run(daemon, "sleep", "order-1", seconds=1)
    toy.cast(daemon, "give_up", "order-2")
    assert daemon.wait() == 4
    assert toy.done("order-1")
    assert "lost all its marbles" in daemon.log()


def idle_seconds(daemon: Daemon) -> float:
    assert daemon.exited_at is not None
    return daemon.exited_at - daemon.time_of("Graceful shutdown: stopping")


def test_how_long_a_stop_takes_is_reported_not_asserted(toy: Toy, record_property) -> None:
    idle = toy.start()
    idle.terminate()
    assert idle.wait() == 0
    record_property("idle_sigterm_to_exit_seconds", round(idle_seconds(idle), 3))
    busy = toy.start()
    for number in range(4):
        toy.run(busy, "sleep", f"order-{number}", seconds=3)
    busy.terminate()
    assert busy.wait() == 0
    assert busy.exited_at is not None
    last = busy.exited_at - busy.time_of(r"toy \d+: end order")
    record_property("last_task_end_to_exit_seconds", round(last, 3))
    print(f"idle: SIGTERM to exit {idle_seconds(idle):.3f} s; busy: last task's end to exit {last:.3f} s")
