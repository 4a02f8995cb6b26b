"""Signals to real processes: at any moment, any number of them, to one process, to its group, and through a master."""

import os
import signal

import pytest

from tests.fixtures.processes import gone
from tests.fixtures.toy import Toy


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_imports_ends_the_process_with_0(toy: Toy, number: int) -> None:
    daemon = toy.start(behaviour="slow-import", ready=False)
    daemon.wait_for_log("early")
    daemon.send(signal.SIGHUP)
    daemon.send(number)
    assert daemon.wait() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_during_a_start_that_hangs_ends_the_process_with_0(toy: Toy, workers: int) -> None:
    daemon = toy.start(behaviour="start-hangs", ready=False, workers=workers)
    daemon.wait_for_log("init_host", count=workers)
    daemon.terminate()
    assert daemon.wait() == 0


def test_a_signal_while_the_last_step_of_the_start_hangs_drains_what_was_taken_in(toy: Toy) -> None:
    daemon = toy.start(behaviour="post-start-hangs", ready=False)
    daemon.wait_for_log("post_start")
    toy.run(daemon, "sleep", "order-1", seconds=2)
    daemon.terminate()
    assert daemon.wait() == 0
    assert toy.done("order-1")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_that_refuses_to_start_ends_with_1_and_one_line(toy: Toy, workers: int) -> None:
    daemon = toy.start(behaviour="start-refused", ready=False, workers=workers)
    assert daemon.wait() == 1
    assert "Cannot start: the toy does not want to; give it another behaviour" in daemon.log()
    assert "Traceback" not in daemon.log()


def test_a_process_that_refuses_while_another_already_serves_ends_the_whole_with_1(toy: Toy) -> None:
    daemon = toy.start(behaviour="second-refused", ready=False, workers=2)
    assert daemon.wait() == 1
    assert daemon.log().count("Cannot start: the toy does not want to be two") == 1
    assert "exit status 0" in daemon.log()


def test_a_failure_late_in_the_start_ends_with_1_after_a_drain(toy: Toy) -> None:
    daemon = toy.start(behaviour="post-start-fails", ready=False)
    assert daemon.wait() == 1
    assert "Cannot start: the toy fails late" in daemon.log()
    assert "drain_started" in daemon.log()


def test_the_first_sigint_drains(toy: Toy) -> None:
    daemon = toy.start()
    toy.run(daemon, "sleep", "order-1", seconds=1.5)
    daemon.send(signal.SIGINT)
    assert daemon.wait() == 0
    assert toy.done("order-1")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_second_sigint_interrupts_at_once(toy: Toy, workers: int) -> None:
    daemon = toy.start(manager_timeout=0, graceful_timeout=0, workers=workers)
    pid = toy.serving(daemon)[0]
    toy.run(daemon, "sleep", "order-1", pid=pid, seconds=3600)
    daemon.send_group(signal.SIGINT)
    daemon.wait_for_log("Graceful shutdown: in progress")
    assert "not waiting any longer" not in daemon.log()
    daemon.send(signal.SIGINT)
    assert daemon.wait() == 3
    report = toy.report(pid if workers > 1 else None)
    assert [task["detail"] for task in report["tasks"]] == ["returned to the toy box"]


@pytest.mark.parametrize("workers", [1, 2])
def test_d9_sighup_reloads_options_and_replaces_no_process(toy: Toy, workers: int) -> None:
    """D9: SIGHUP restarted the workers, or left default handlers so that the next SIGTERM killed."""
    daemon = toy.start(workers=workers)
    before = toy.serving(daemon)
    toy.run(daemon, "sleep", "order-1", pid=before[0], seconds=2)
    toy.configure(debug=True)
    daemon.send(signal.SIGHUP)
    daemon.wait_for_log("reset debug=True", count=workers)
    daemon.wait_for_log("end order-1")
    toy.run(daemon, "sleep", "order-2", pid=before[0], seconds=1)
    daemon.terminate()
    assert daemon.wait() == 0
    assert toy.done("order-2")
    assert toy.serving(daemon) == before


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("text", ["this is not a configuration file", "[DEFAULT]\nmanager_shutdown_timeout = soon"])
def test_d9_a_broken_configuration_at_sighup_is_one_line_and_the_service_goes_on(
    toy: Toy, text: str, workers: int
) -> None:
    """D9: an operator's slip of the pen is no reason to die, neither at once nor at the next SIGTERM."""
    daemon = toy.start(workers=workers)
    toy.run(daemon, "sleep", "order-1", pid=toy.serving(daemon)[0], seconds=2)
    toy.config.write_text(text + "\n")
    daemon.send(signal.SIGHUP)
    daemon.wait_for_log("Cannot reload the configuration: .*; going on with the old one", count=workers)
    daemon.terminate()
    assert daemon.wait() == 0
    assert "Traceback" not in daemon.log()
    assert toy.done("order-1")


def test_d12_a_storm_of_signals_while_every_thread_logs_deadlocks_nothing(toy: Toy) -> None:
    """D12: logging inside a signal handler met the log's own lock."""
    daemon = toy.start()
    for number in range(4):
        toy.run(daemon, "chatter", f"order-{number}", seconds=4)
    for _ in range(200):
        daemon.send(signal.SIGHUP)
        daemon.idle(0.01)
    for _ in range(200):
        daemon.terminate()
        daemon.send(signal.SIGHUP)
    assert daemon.wait() == 0


def test_d7_an_interrupted_task_shows_in_the_masters_exit_status(toy: Toy) -> None:
    """D7: the worker ended with 1, the master with 0."""
    daemon = toy.start(manager_timeout=2, graceful_timeout=60, workers=2)
    first, second = toy.serving(daemon)
    toy.run(daemon, "ignore", "order-1", pid=first)
    toy.run(daemon, "sleep", "order-2", pid=second, seconds=0.5)
    daemon.terminate()
    assert daemon.wait() == 3
    assert [task["became"] for task in toy.report(first)["tasks"]] == ["interrupted"]
    assert toy.report(second)["exit_status"] == 0


def test_d8_sigterm_to_the_group_again_and_again_lets_all_workers_finish(toy: Toy) -> None:
    """D8: it killed the drain."""
    daemon = toy.start(workers=2)
    for number, pid in enumerate(toy.serving(daemon)):
        toy.run(daemon, "sleep", f"order-{number}", pid=pid, seconds=2)
    daemon.send_group(signal.SIGTERM)
    daemon.wait_for_log("drain_started", count=2)
    for _ in range(20):
        daemon.send_group(signal.SIGTERM)
    assert daemon.wait() == 0
    assert toy.done("order-0")
    assert toy.done("order-1")


def test_ctrl_c_in_a_terminal_counts_once_for_each_worker(toy: Toy) -> None:
    daemon = toy.start(workers=2)
    toy.run(daemon, "sleep", "order-1", pid=toy.serving(daemon)[0], seconds=2)
    daemon.send_group(signal.SIGINT)
    assert daemon.wait() == 0
    assert toy.done("order-1")


def test_workers_of_a_killed_master_drain_each_by_itself(toy: Toy) -> None:
    daemon = toy.start(workers=2)
    earlier, later = sorted(toy.serving(daemon))
    toy.run(daemon, "sleep", "order-1", pid=later, seconds=4)
    daemon.kill()
    assert gone(earlier)
    assert not toy.done("order-1")
    assert gone(later)
    assert toy.done("order-1")
    assert toy.report(later)["reason"] == "death of the master process"


def test_a_killed_worker_is_replaced_and_the_status_stays_0(toy: Toy) -> None:
    daemon = toy.start(workers=2)
    first, second = toy.serving(daemon)
    os.kill(first, signal.SIGKILL)
    daemon.wait_for_log("serving", count=3)
    daemon.wait_for_log(f"Worker process {first} ended by itself, killed by SIGKILL")
    third = toy.serving(daemon)[2]
    toy.run(daemon, "sleep", "order-1", pid=third, seconds=0)
    assert sorted(daemon.children()) == sorted([second, third])
    daemon.terminate()
    assert daemon.wait() == 0


def test_a_worker_killed_during_the_drain_makes_it_3(toy: Toy) -> None:
    daemon = toy.start(workers=2)
    first, second = toy.serving(daemon)
    toy.run(daemon, "sleep", "order-1", pid=first, seconds=3600)
    toy.run(daemon, "sleep", "order-2", pid=second, seconds=2)
    daemon.terminate()
    daemon.wait_for_log("drain_started", count=2)
    os.kill(first, signal.SIGKILL)
    assert daemon.wait() == 3
    assert toy.done("order-2")


def test_a_worker_that_cannot_run_is_killed_by_its_master(toy: Toy) -> None:
    daemon = toy.start(manager_timeout=1, graceful_timeout=2, workers=2)
    first = toy.serving(daemon)[0]
    os.kill(first, signal.SIGSTOP)
    daemon.terminate()
    assert daemon.wait() == 3
    assert f"Worker process {first} did not end in time; killing it" in daemon.log()


@pytest.mark.slow
def test_workers_that_die_while_starting_end_the_master_with_4(toy: Toy) -> None:
    daemon = toy.start(workers=2, behaviour="start-dies", ready=False)
    assert daemon.wait(120) == 4
    assert "could not be replaced" in daemon.log()


def test_a_worker_that_gives_up_is_replaced(toy: Toy) -> None:
    daemon = toy.start(workers=2)
    first = toy.serving(daemon)[0]
    toy.cast(daemon, "give_up", "order-1", pid=first)
    daemon.wait_for_log("serving", count=3)
    daemon.terminate()
    assert daemon.wait() == 0


def test_sigterm_to_one_worker_drains_it_and_it_is_replaced(toy: Toy) -> None:
    daemon = toy.start(workers=2)
    first = toy.serving(daemon)[0]
    toy.run(daemon, "sleep", "order-1", pid=first, seconds=1)
    os.kill(first, signal.SIGTERM)
    daemon.wait_for_log("serving", count=3)
    assert toy.done("order-1")
    daemon.terminate()
    assert daemon.wait() == 0
