"""The table from a plugin's status to the outcome of the task, row by row."""

import pytest

from retryflow.plugin.interface import CertificateResult, ResultStatus
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.tasks.base import CHECK_CERTIFICATE_STATUS, PROCESS_TYPE_ORDER, TASKS, UPDATE_ORDER
from retryflow.tasks.certificate_outcomes import outcome_of_result

ISSUE_OR_CHECK = (PROCESS_TYPE_ORDER, CHECK_CERTIFICATE_STATUS)


def outcome(result: CertificateResult, task: str) -> Outcome:
    return outcome_of_result(result, task=task, plugin_name="theirs", state={"request": "17"})


@pytest.mark.parametrize("task", ISSUE_OR_CHECK)
def test_waiting_for_the_ca_is_a_poll_of_the_status(task: str) -> None:
    polled = outcome(CertificateResult(status=ResultStatus.WAITING_FOR_CA), task)
    assert isinstance(polled, Poll)
    assert (polled.task, polled.after_seconds) == (CHECK_CERTIFICATE_STATUS, None)
    assert polled.sub_status == "cert_request_pending"


@pytest.mark.parametrize("task", TASKS)
def test_the_plugin_s_delay_and_method_are_honoured(task: str) -> None:
    """FAILURES T7: the plugin's delay was ignored."""
    waiting = CertificateResult(
        status=ResultStatus.WAITING_FOR_CA, retry_after_seconds=259200.0, retry_method=UPDATE_ORDER
    )
    polled = outcome(waiting, task)
    assert isinstance(polled, Poll)
    assert (polled.after_seconds, polled.task) == (259200.0, UPDATE_ORDER)

    away = CertificateResult(
        status=ResultStatus.CA_UNAVAILABLE_FOR_REQUEST, retry_after_seconds=7.0, retry_method=PROCESS_TYPE_ORDER
    )
    retried = outcome(away, task)
    assert isinstance(retried, Retry)
    assert (retried.after_seconds, retried.task) == (7.0, PROCESS_TYPE_ORDER)


@pytest.mark.parametrize("task", TASKS)
def test_an_unreachable_ca_is_a_retry_of_the_same_task_with_backoff(task: str) -> None:
    retried = outcome(CertificateResult(status=ResultStatus.CA_UNAVAILABLE_FOR_REQUEST), task)
    assert isinstance(retried, Retry)
    assert (retried.task, retried.after_seconds, retried.counted) == (None, None, True)
    assert retried.reason
    assert retried.sub_status
    assert retried.sub_status.startswith("cert_ca_unavail")


@pytest.mark.parametrize("task", TASKS)
def test_a_certificate_ends_the_order_well(task: str) -> None:
    result = CertificateResult(
        status=ResultStatus.CERTIFICATE_GENERATED, certificate="PEM", chain="ROOT", details={"serial": "a1"}
    )
    done = outcome(result, task)
    assert isinstance(done, Done)
    assert done.result == {"certificate": "PEM", "chain": "ROOT", "intermediates": "", "serial": "a1"}
    assert done.sub_status == "cert_generated"


@pytest.mark.parametrize("task", ISSUE_OR_CHECK)
@pytest.mark.parametrize(
    ("status", "sub_status"),
    [
        (ResultStatus.CLIENT_DATA_ISSUE_SEEN, "cert_data_invalid"),
        (ResultStatus.INVALID_OPERATION, "cert_invalid_operation"),
    ],
)
def test_what_the_ca_can_never_serve_is_the_client_s_fault(task: str, status: ResultStatus, sub_status: str) -> None:
    failed = outcome(CertificateResult(status=status, status_message="The key is too short."), task)
    assert isinstance(failed, Fail)
    assert (failed.code, failed.reason, failed.sub_status) == ("400", "The key is too short.", sub_status)


@pytest.mark.parametrize("status", [ResultStatus.CLIENT_DATA_ISSUE_SEEN, ResultStatus.INVALID_OPERATION])
def test_a_refused_update_does_not_end_the_order_and_the_user_is_told(status: ResultStatus) -> None:
    went_on = outcome(CertificateResult(status=status, status_message="The key is too short."), UPDATE_ORDER)
    assert isinstance(went_on, Continue)
    assert went_on.sub_status == "update_refused"
    assert went_on.sub_status_message
    assert went_on.sub_status_message.endswith("The key is too short.")


def test_an_accepted_update_leaves_the_next_look_where_it_is() -> None:
    assert isinstance(outcome(CertificateResult(status=ResultStatus.WAITING_FOR_CA), UPDATE_ORDER), Continue)


@pytest.mark.parametrize("task", TASKS)
def test_a_request_cancelled_at_the_ca_ends_as_cancelled(task: str) -> None:
    failed = outcome(CertificateResult(status=ResultStatus.REQUEST_CANCELLED), task)
    assert isinstance(failed, Fail)
    assert failed.sub_status == "cancelled"
    assert failed.reason


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("status", ResultStatus)
def test_every_outcome_keeps_the_state_and_the_owner(status: ResultStatus, task: str) -> None:
    """FAILURES T8: the follow-on result was dropped on the way."""
    kept = outcome(CertificateResult(status=status, certificate="PEM", status_message="word\n" * 200), task)
    assert kept.state == {"request": "17"}
    assert kept.plugin_name == "theirs"
    assert kept.sub_status
    assert kept.sub_status_message
    # The columns' lengths.
    assert len(kept.sub_status) <= 36
    assert len(kept.sub_status_message) <= 255
    assert "\n" not in kept.sub_status_message
