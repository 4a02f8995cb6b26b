"""The request id of log lines: that of the order which a line speaks of, and of no other line."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from oslo_context.context import RequestContext, get_current

from retryflow.retry.log_context import about, speak_of


def on_a_thread(work: Callable[[], Any]) -> Any:
    """Run ``work`` where no context has been made yet."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def test_what_is_said_of_one_order_leaves_the_lines_after_it_alone() -> None:
    def work() -> tuple[str, RequestContext | None]:
        return about("o1", "req-1")["context"].request_id, get_current()

    assert on_a_thread(work) == ("req-1", None)


def test_a_task_is_spoken_of_until_the_next_one() -> None:
    def work() -> list[str]:
        said = []
        for order_id, request_id in (("o1", "req-1"), ("o2", None)):
            speak_of(order_id, request_id)
            about("o3", "req-3")
            said.append(get_current().request_id)
        return said

    assert on_a_thread(work) == ["req-1", "req-o2"]


@pytest.mark.parametrize("request_id", ["req-1\n2026-12-01 00:00:00 CRITICAL", "req-1\x1b[2J", "req-1\r\x85"])
def test_nobody_can_write_lines_of_his_own(request_id: str) -> None:
    def work() -> list[str]:
        speak_of("o1", request_id)
        return [get_current().request_id, about("o1", request_id)["context"].request_id]

    said = on_a_thread(work)
    assert all(each.isprintable() and each.startswith("req-1") for each in said)
    assert on_a_thread(lambda: about("o\n1", None)["context"].request_id) == "req-o 1"


@pytest.mark.parametrize("request_id", [" ", "\n", ""])
def test_one_that_is_blank_is_none(request_id: str) -> None:
    def work() -> list[str]:
        speak_of("o1", request_id)
        return [get_current().request_id, about("o1", request_id)["context"].request_id]

    assert on_a_thread(work) == ["req-o1", "req-o1"]
