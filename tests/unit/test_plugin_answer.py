"""Promise P8 for plugins: whatever one answers is either a good answer or one clear error."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retryflow.plugin.answer import MAXIMUM_RETRY_AFTER_SECONDS, InvalidPluginAnswer, checked_answer
from retryflow.plugin.interface import CertificateResult, ResultStatus
from retryflow.retry.outcome import Continue, Done, Fail, Poll, Retry
from retryflow.tasks.base import TASKS
from retryflow.tasks.certificate_outcomes import outcome_of_result

ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(),
    st.binary(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.text(), st.integers()), st.floats(allow_nan=True), max_size=3),
    st.sampled_from(list(ResultStatus)),
    st.sampled_from(TASKS),
)
GOOD_OR_NOT = st.builds(
    CertificateResult,
    status=st.one_of(st.sampled_from(list(ResultStatus)), ANYTHING),
    status_message=st.one_of(st.none(), st.text(), ANYTHING),
    retry_after_seconds=st.one_of(st.none(), st.floats(min_value=0, max_value=10**6), ANYTHING),
    retry_method=st.one_of(st.none(), st.sampled_from(TASKS), ANYTHING),
    certificate=st.one_of(st.just("a certificate"), ANYTHING),
    chain=st.one_of(st.none(), ANYTHING),
    intermediates=st.one_of(st.none(), ANYTHING),
    details=st.one_of(st.just({}), ANYTHING),
)


@given(answer=st.one_of(ANYTHING, GOOD_OR_NOT), task=st.sampled_from(TASKS))
def test_every_answer_is_an_outcome_or_one_clear_error(answer: object, task: str) -> None:
    try:
        result = checked_answer(answer, tasks=TASKS)
    except InvalidPluginAnswer as error:
        problem = str(error)
        assert 0 < len(problem) < 500
        assert "\n" not in problem
        return
    outcome = outcome_of_result(result, task=task, plugin_name="p", state={})
    assert isinstance(outcome, Done | Poll | Retry | Fail | Continue)
    assert outcome.sub_status_message
    assert len(outcome.sub_status_message) <= 255
    if isinstance(outcome, Poll | Retry) and outcome.after_seconds is not None:
        assert 0 <= outcome.after_seconds <= MAXIMUM_RETRY_AFTER_SECONDS


@pytest.mark.parametrize(
    "answer", [None, "certificate generated", {"status": "waiting for CA"}, ResultStatus.WAITING_FOR_CA]
)
def test_what_is_no_result_is_refused(answer: object) -> None:
    with pytest.raises(InvalidPluginAnswer, match="instead of a CertificateResult"):
        checked_answer(answer, tasks=TASKS)


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, -math.inf, 10**12, 10**400, "5", True, [5]])
def test_a_delay_that_is_no_delay_is_refused(seconds: Any) -> None:
    answer = CertificateResult(status=ResultStatus.WAITING_FOR_CA, retry_after_seconds=seconds)
    with pytest.raises(InvalidPluginAnswer, match="retry_after_seconds"):
        checked_answer(answer, tasks=TASKS)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"status": "ready"}, "status"),
        ({"status": None}, "status"),
        ({"retry_method": "drop_all"}, "retry_method"),
        ({"retry_method": []}, "retry_method"),
        ({"status": ResultStatus.CERTIFICATE_GENERATED}, "without a certificate"),
        ({"status": ResultStatus.CERTIFICATE_GENERATED, "certificate": " "}, "without a certificate"),
        ({"certificate": b"pem"}, "certificate"),
        ({"status_message": "a\0b"}, "status_message"),
        ({"status_message": "x" * (1024 * 1024 + 1)}, "status_message"),
        ({"details": []}, "details"),
        ({"details": {"x": object()}}, "details"),
        ({"details": {"x": math.nan}}, "details"),
        ({"details": {1: 2, "a": 3}}, "details"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(wrong: dict[str, Any], named: str) -> None:
    answer = CertificateResult(**({"status": ResultStatus.WAITING_FOR_CA} | wrong))
    with pytest.raises(InvalidPluginAnswer, match=named):
        checked_answer(answer, tasks=TASKS)


def test_an_error_does_not_repeat_what_may_be_secret() -> None:
    with pytest.raises(InvalidPluginAnswer) as caught:
        checked_answer({"private_key": "very secret"}, tasks=TASKS)
    assert "secret" not in str(caught.value)


def test_the_text_of_a_status_is_as_good_as_the_status() -> None:
    answer = CertificateResult(status="waiting for CA", retry_after_seconds=5)  # type: ignore[arg-type]
    result = checked_answer(answer, tasks=TASKS)
    assert result.status is ResultStatus.WAITING_FOR_CA
    assert result.retry_after_seconds == 5.0
