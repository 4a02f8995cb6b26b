"""From a task's end to what is written: the state table, row by row."""

import dataclasses
import datetime
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryflow.model import events
from retryflow.model.orders import ACTIVE, ERROR
from retryflow.model.task_state import TaskState
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.plan import End, FollowOn, GoOn, plan_crash, plan_outcome
from retryflow.retry.policy import Limits, RetryPolicy

LIMITS = Limits(policy=RetryPolicy(initial_interval_seconds=10.0, jitter=0.0), default_poll_seconds=300.0)
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
FRESH = TaskState(order_id="o", task="process_type_order")
WORN = TaskState(
    order_id="o",
    task="process_type_order",
    args="[1]",
    kwargs="{broken",
    retry_count=3,
    poll_count=5,
    crash_count=2,
    retry_since=NOW,
    poll_since=NOW,
    step=7,
    last_error="before",
    request_id="req",
)


def _plan(
    outcome: Outcome, state: TaskState = FRESH, limits: Limits = LIMITS, **seconds: float
) -> End | FollowOn | GoOn:
    return plan_outcome(outcome, state, limits=limits, random=random.Random(1), **seconds)


def _follow_on(outcome: Outcome, state: TaskState = FRESH, limits: Limits = LIMITS, **seconds: float) -> FollowOn:
    plan = _plan(outcome, state, limits, **seconds)
    assert isinstance(plan, FollowOn)
    return plan


def _end(outcome: Outcome, state: TaskState = FRESH, limits: Limits = LIMITS, **seconds: float) -> End:
    plan = _plan(outcome, state, limits, **seconds)
    assert isinstance(plan, End)
    return plan


def test_done_is_active_with_its_result_and_no_word_of_waiting_left() -> None:
    end = _end(Done(result={"a": 1}, plugin_name="p", state={"k": "v"}))
    assert end.event == events.DONE
    assert end.order_values == {
        "status": ACTIVE,
        "result": {"a": 1},
        "plugin_name": "p",
        "sub_status": None,
        "sub_status_message": None,
    }


def test_fail_is_error_with_code_and_reason() -> None:
    end = _end(Fail(code="400", reason="bad CSR", sub_status="refused"))
    assert end.event == events.FAILED
    assert end.order_values == {
        "status": ERROR,
        "error_status_code": "400",
        "error_reason": "bad CSR",
        "sub_status": "refused",
    }


def test_a_poll_counts_as_a_poll_and_ends_a_run_of_failures() -> None:
    """T7: three counters; a poll is no fault, and a step of its own."""
    plan = _follow_on(Poll(after_seconds=42.0, task="check_certificate_status", sub_status_message="wait"), WORN)
    assert (plan.event, plan.after_seconds, plan.starts_poll_clock) == (events.POLLING, 42.0, False)
    assert plan.order_values == {"sub_status_message": "wait"}
    assert plan.state == dataclasses.replace(
        WORN,
        task="check_certificate_status",
        poll_count=6,
        retry_count=0,
        crash_count=0,
        retry_since=None,
        step=8,
        last_error=None,
    )


def test_the_first_poll_starts_the_waiting_clock_and_takes_the_default_delay() -> None:
    plan = _follow_on(Poll())
    assert (plan.starts_poll_clock, plan.after_seconds, plan.state.task) == (True, 300.0, FRESH.task)


def test_a_retry_counts_as_a_retry_and_waits_longer_each_time() -> None:
    """T7: retry count raised, backoff, plugin's delay and method honoured; the step stays, and with it the key."""
    plan = _follow_on(Retry(reason="CA down"), WORN)
    assert (plan.event, plan.after_seconds, plan.starts_retry_clock) == (events.RETRYING, 80.0, False)
    assert plan.state == dataclasses.replace(WORN, retry_count=4, crash_count=0, last_error="CA down")
    plan = _follow_on(Retry(reason="CA down", after_seconds=5.0, task="other"))
    assert (plan.after_seconds, plan.state.task, plan.state.step) == (5.0, "other", 1)
    assert plan.starts_retry_clock


def test_a_retry_that_is_not_counted_leaves_the_count_and_not_the_clock() -> None:
    """D11, and an unknown task name that newer workers may know."""
    plan = _follow_on(Retry(reason="stopping", after_seconds=0.0, counted=False), WORN)
    assert (plan.state.retry_count, plan.after_seconds) == (3, 0.0)
    limits = dataclasses.replace(LIMITS, give_up_after_seconds=100.0)
    assert _end(Retry(reason="unknown", counted=False), WORN, limits, retrying_seconds=101.0).event == events.FAILED
    limits = dataclasses.replace(LIMITS, policy=RetryPolicy(maximum_attempts=1))
    assert _follow_on(Retry(reason="unknown", counted=False), WORN, limits)


@pytest.mark.parametrize(
    ("outcome", "limits", "seconds", "code", "words"),
    [
        (
            Retry(reason="CA down"),
            dataclasses.replace(LIMITS, give_up_after_seconds=100.0),
            {"retrying_seconds": 101.0},
            "503",
            ["101 seconds", "give_up_after_seconds", "CA down"],
        ),
        (
            Retry(reason="CA down"),
            dataclasses.replace(LIMITS, policy=RetryPolicy(maximum_attempts=4)),
            {},
            "503",
            ["4 attempts", "maximum_attempts", "CA down"],
        ),
        (
            Poll(),
            dataclasses.replace(LIMITS, poll_give_up_after_seconds=86_400.0),
            {"polling_seconds": 90_000.0},
            "504",
            ["25.0 hours", "6 looks", "poll_give_up_after_seconds"],
        ),
    ],
)
def test_each_limit_ends_in_error_with_a_reason_that_says_which(
    outcome: Outcome, limits: Limits, seconds: dict[str, float], code: str, words: list[str]
) -> None:
    """T7."""
    end = _end(outcome, WORN, limits, **seconds)
    assert end.order_values["status"] == ERROR
    assert end.order_values["error_status_code"] == code
    for word in words:
        assert word in end.order_values["error_reason"]


def test_no_limit_is_reached_one_short_of_it() -> None:
    limits = dataclasses.replace(
        LIMITS, give_up_after_seconds=100.0, poll_give_up_after_seconds=100.0, policy=RetryPolicy(maximum_attempts=5)
    )
    assert _follow_on(Retry(reason="x"), WORN, limits, retrying_seconds=100.0)
    assert _follow_on(Poll(), WORN, limits, polling_seconds=100.0)


@pytest.mark.parametrize(
    ("wanted", "given"), [(float("nan"), 300.0), (float("inf"), 366 * 86_400.0), (-5.0, 0.0), (7.5, 7.5)]
)
def test_a_delay_that_no_clock_can_show_is_replaced(wanted: float, given: float) -> None:
    assert _follow_on(Poll(after_seconds=wanted)).after_seconds == given


def test_a_clock_that_has_not_started_ends_nothing() -> None:
    assert _follow_on(Retry(reason="x"), FRESH, retrying_seconds=10.0**9)
    assert _follow_on(Poll(), FRESH, polling_seconds=10.0**9)


def test_continue_goes_on_with_the_rows_there_are_or_counts_as_a_retry() -> None:
    plan = _plan(Continue(), WORN)
    assert isinstance(plan, GoOn)
    assert plan.event == events.CONTINUED
    assert isinstance(plan.otherwise, FollowOn)
    assert plan.otherwise.state.retry_count == 4
    assert "without a next step" in str(plan.otherwise.state.last_error)


def test_a_crash_is_retried_at_once_then_with_backoff_and_at_the_cap_no_more() -> None:
    """T5: a task that kills its worker does not take down one worker after the other for ever."""
    limits = dataclasses.replace(LIMITS, max_crashes=4)
    delays = []
    state = FRESH
    for crashes in range(1, 4):
        plan = plan_crash(state, limits=limits, random=random.Random(1))
        assert isinstance(plan, FollowOn)
        state = plan.state
        assert state.crash_count == crashes
        delays.append(plan.after_seconds)
    assert delays == [0.0, 10.0, 20.0]
    end = plan_crash(state, limits=limits, random=random.Random(1))
    assert isinstance(end, End)
    assert end.order_values["status"] == ERROR
    assert "died 4 times in a row" in end.order_values["error_reason"]


def test_a_crash_changes_nothing_else() -> None:
    plan = plan_crash(dataclasses.replace(WORN, crash_count=0), limits=LIMITS, random=random.Random(1))
    assert isinstance(plan, FollowOn)
    assert dataclasses.replace(plan.state, crash_count=2, last_error="before") == WORN


texts = st.text() | st.just("a\x00b\ud800")
outcomes = st.one_of(
    st.builds(Done, sub_status=texts, sub_status_message=texts, plugin_name=texts),
    st.builds(Fail, code=texts, reason=texts),
    st.builds(Poll, after_seconds=st.none() | st.floats(), task=st.none() | st.sampled_from(["a", "b"])),
    st.builds(Retry, reason=texts, after_seconds=st.none() | st.floats(), counted=st.booleans()),
    st.builds(Continue),
)
states = st.builds(
    TaskState,
    order_id=st.just("o"),
    task=st.just("a"),
    retry_count=st.integers(0, 10**6),
    poll_count=st.integers(0, 10**6),
    crash_count=st.integers(0, 10),
    retry_since=st.none() | st.just(NOW),
    poll_since=st.none() | st.just(NOW),
    step=st.integers(0, 10**6),
)


@given(outcomes, states, st.floats(0, 10**8), st.floats(0, 10**8))
def test_whatever_a_task_says_the_plan_can_be_stored(
    outcome: Outcome, state: TaskState, retrying: float, polling: float
) -> None:
    """P1, P8, S15: a finite delay, texts that every database takes, and the step goes up only with progress."""
    plan = _plan(outcome, state, retrying_seconds=retrying, polling_seconds=polling)
    values = dict(plan.order_values)
    if isinstance(plan, GoOn):
        plan = plan.otherwise
        values |= plan.order_values
    lengths = {"sub_status": 36, "sub_status_message": 255, "plugin_name": 255, "error_status_code": 16}
    for name, value in values.items():
        if isinstance(value, str):
            assert "\x00" not in value
            value.encode()
            assert len(value) <= lengths.get(name, len(value))
    if isinstance(plan, FollowOn):
        assert 0 <= plan.after_seconds <= 366 * 86_400
        assert plan.state.step - state.step == (1 if isinstance(outcome, Poll) else 0)
        assert plan.state.crash_count == 0
