"""The backoff: a pure function, clamped, of any number of attempts (S15)."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryflow.retry.policy import Limits, RetryPolicy

policies = st.builds(
    RetryPolicy,
    initial_interval_seconds=st.floats(0.001, 86_400.0),
    backoff_coefficient=st.floats(1.0, 1000.0),
    maximum_interval_seconds=st.floats(0.001, 10_000_000.0),
    maximum_attempts=st.integers(0, 10**6),
    jitter=st.floats(0.0, 1.0),
)
attempts = st.integers(0, 10**6)


@given(policies, attempts, st.integers())
def test_s15_every_attempt_has_a_finite_delay_within_the_bounds(policy: RetryPolicy, attempt: int, seed: int) -> None:
    """S15: overflows after many attempts killed the scheduler elsewhere (Procrastinate #1462)."""
    delay = policy.delay_seconds(attempt, random.Random(seed))
    assert math.isfinite(delay)
    assert 0 <= delay <= policy.maximum_interval_seconds * (1 + policy.jitter) * (1 + 1e-9)


@pytest.mark.parametrize("attempt", [10**3, 10**6, 10**100])
def test_s15_no_number_of_attempts_overflows(attempt: int) -> None:
    policy = RetryPolicy(backoff_coefficient=1000.0, jitter=0.0)
    assert policy.delay_seconds(attempt, random.Random(1)) == policy.maximum_interval_seconds


@given(policies, attempts, st.integers())
def test_s15_the_delay_is_a_pure_function_of_policy_attempt_and_random_source(
    policy: RetryPolicy, attempt: int, seed: int
) -> None:
    """S15: a shared policy object was mutated elsewhere (Celery #10456)."""
    before = dataclasses.asdict(policy)
    first = policy.delay_seconds(attempt, random.Random(seed))
    assert policy.delay_seconds(attempt, random.Random(seed)) == first
    assert dataclasses.asdict(policy) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.jitter = 0.5  # type: ignore[misc]


@given(policies, st.integers(1, 1000))
def test_without_jitter_no_delay_is_shorter_than_the_one_before(policy: RetryPolicy, attempt: int) -> None:
    steady = dataclasses.replace(policy, jitter=0.0)
    source = random.Random(1)
    assert steady.delay_seconds(attempt, source) <= steady.delay_seconds(attempt + 1, source)


def test_the_intervals_are_those_that_the_options_promise() -> None:
    policy = RetryPolicy(
        initial_interval_seconds=15.0, backoff_coefficient=2.0, maximum_interval_seconds=100.0, jitter=0
    )
    assert [policy.delay_seconds(attempt, random.Random(1)) for attempt in range(1, 6)] == [15, 30, 60, 100, 100]


def test_jitter_spreads_to_both_sides() -> None:
    policy = RetryPolicy(initial_interval_seconds=100.0, jitter=0.2)
    source = random.Random(5)
    delays = [policy.delay_seconds(1, source) for _ in range(500)]
    assert min(delays) >= 80
    assert max(delays) <= 120
    assert min(delays) < 85
    assert max(delays) > 115


@pytest.mark.parametrize(
    ("maximum", "attempts", "exhausted"), [(0, 10**6, False), (3, 2, False), (3, 3, True), (3, 4, True), (1, 1, True)]
)
def test_attempts_are_counted_with_the_first_one(maximum: int, attempts: int, exhausted: bool) -> None:
    assert RetryPolicy(maximum_attempts=maximum).is_exhausted(attempts) is exhausted


def test_the_defaults_suit_an_authority_that_is_down_for_a_day_and_a_certificate_that_takes_a_week() -> None:
    limits = Limits()
    assert limits.give_up_after_seconds >= 86_400
    assert limits.poll_give_up_after_seconds >= 7 * 86_400
    assert limits.policy.maximum_attempts == 0
