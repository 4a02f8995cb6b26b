"""From a task's end to what is written: one table, free of any database, that reads like the state table it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from retryflow.model import events
from retryflow.model.orders import ACTIVE, ERROR
from retryflow.model.task_state import TaskState
from retryflow.retry.outcome import LONGEST_DELAY_SECONDS, Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.retry.policy import Limits, RandomSource


@dataclass(frozen=True, slots=True)
class End:
    """The order is over.

    :param order_values: columns of ``orders`` to write.
    """

    event: str
    order_values: Mapping[str, Any]
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class FollowOn:
    """The task goes back to the retry list.

    :param starts_retry_clock: its run of failures begins now.
    :param starts_poll_clock: its waiting begins now.
    """

    event: str
    state: TaskState
    after_seconds: float
    starts_retry_clock: bool = False
    starts_poll_clock: bool = False
    order_values: Mapping[str, Any] = field(default_factory=dict)
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class GoOn:
    """The order goes on with the rows it has.

    :param otherwise: what to do when it has none.
    """

    event: str
    order_values: Mapping[str, Any]
    otherwise: End | FollowOn


Plan = End | FollowOn | GoOn


def plan_outcome(
    outcome: Outcome,
    state: TaskState,
    *,
    limits: Limits,
    random: RandomSource,
    retrying_seconds: float = 0.0,
    polling_seconds: float = 0.0,
) -> Plan:
    """What to do after a task said how it ended.

    :param retrying_seconds: since ``state.retry_since``, by the database's clock.
    :param polling_seconds: since ``state.poll_since``, likewise.
    """
    told = _told(outcome)
    match outcome:
        case Done():
            values = {**told, "status": ACTIVE, "result": dict(outcome.result)}
            return End(events.DONE, {"sub_status": None, "sub_status_message": None, **values})
        case Fail():
            return _failed(outcome.code, outcome.reason, told)
        case Poll():
            if state.poll_since is not None and polling_seconds > limits.poll_give_up_after_seconds:
                reason = (
                    f"gave up waiting after {_span(polling_seconds)} and {state.poll_count + 1} looks "
                    "([retry] poll_give_up_after_seconds)"
                )
                return _failed("504", reason, told)
            return FollowOn(
                events.POLLING,
                replace(
                    state,
                    task=outcome.task or state.task,
                    poll_count=state.poll_count + 1,
                    retry_count=0,
                    crash_count=0,
                    retry_since=None,
                    step=state.step + 1,
                    last_error=None,
                ),
                _delay(outcome.after_seconds, limits.default_poll_seconds),
                starts_poll_clock=state.poll_since is None,
                order_values=told,
                detail=told.get("sub_status_message"),
            )
        case Retry():
            return _retry(outcome, state, told, limits=limits, random=random, retrying_seconds=retrying_seconds)
        case Continue():
            reason = "the task ended without a next step"
            otherwise = _retry(
                Retry(reason=reason), state, told, limits=limits, random=random, retrying_seconds=retrying_seconds
            )
            return GoOn(events.CONTINUED, told, otherwise)


def plan_crash(state: TaskState, *, limits: Limits, random: RandomSource) -> End | FollowOn:
    """What to do with a task whose worker died: at once, then with backoff, and at the cap no more (Dramatiq #213)."""
    crashes = state.crash_count + 1
    if crashes >= limits.max_crashes:
        reason = f"the task's worker died {crashes} times in a row while running it ([retry] max_crashes)"
        return _failed("500", reason, {})
    after = 0.0 if crashes == 1 else limits.policy.delay_seconds(crashes - 1, random)
    error = f"the worker died while running it (crash {crashes} of at most {limits.max_crashes})"
    return FollowOn(events.CRASHED, replace(state, crash_count=crashes, last_error=error), after, detail=error)


def _retry(
    outcome: Retry,
    state: TaskState,
    told: Mapping[str, Any],
    *,
    limits: Limits,
    random: RandomSource,
    retrying_seconds: float,
) -> End | FollowOn:
    attempts = state.retry_count + (1 if outcome.counted else 0)
    if state.retry_since is not None and retrying_seconds > limits.give_up_after_seconds:
        span = _span(retrying_seconds)
        return _failed(
            "503", f"gave up retrying after {span} ([retry] give_up_after_seconds); last: {outcome.reason}", told
        )
    if outcome.counted and limits.policy.is_exhausted(attempts):
        reason = f"gave up after {attempts} attempts ([retry] maximum_attempts); last: {outcome.reason}"
        return _failed("503", reason, told)
    changed = outcome.task is not None and outcome.task != state.task
    return FollowOn(
        events.RETRYING,
        replace(
            state,
            task=outcome.task or state.task,
            retry_count=attempts,
            crash_count=0,
            step=state.step + (1 if changed else 0),
            last_error=clean_text(outcome.reason),
        ),
        _delay(outcome.after_seconds, limits.policy.delay_seconds(max(attempts, 1), random)),
        starts_retry_clock=state.retry_since is None,
        order_values=told,
        detail=clean_text(outcome.reason),
    )


def _failed(code: str, reason: str, told: Mapping[str, Any]) -> End:
    reason = clean_text(reason)
    values = {**told, "status": ERROR, "error_status_code": clean_text(str(code))[:16], "error_reason": reason}
    return End(events.FAILED, values, detail=reason)


def _told(outcome: Outcome) -> dict[str, Any]:
    """What the outcome says about the order besides its end; ``None`` means: leave it."""
    told: dict[str, Any] = {}
    if outcome.plugin_name is not None:
        told["plugin_name"] = clean_text(outcome.plugin_name)[:255]
    if outcome.sub_status is not None:
        told["sub_status"] = clean_text(outcome.sub_status)[:36]
    if outcome.sub_status_message is not None:
        told["sub_status_message"] = clean_text(outcome.sub_status_message)[:255]
    return told


def clean_text(text: str) -> str:
    """:returns: ``text`` without what PostgreSQL refuses to store: NUL and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def clean_line(text: str) -> str:
    """:returns: ``text`` as one line of printable characters, so that it cannot pass for lines of a log."""
    return " ".join("".join(char if char.isprintable() else " " for char in clean_text(text)).split())


def _delay(wanted: float | None, otherwise: float) -> float:
    if wanted is None or math.isnan(wanted):
        return otherwise
    return min(max(wanted, 0.0), LONGEST_DELAY_SECONDS)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
