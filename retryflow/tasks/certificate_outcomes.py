"""The table from a certificate plugin's answer to the outcome of the task: here, and nowhere else.

| status | process_type_order, check_certificate_status | update_order |
|---|---|---|
| waiting for CA | poll ``check_certificate_status`` | go on with the rows there are |
| certificate generated | done | done |
| client data issue seen | fail, 400 | go on, the user is told that the update was refused |
| CA unavailable for request | retry the same task | retry the same task |
| request cancelled | fail, 499, sub_status ``cancelled`` | the same |
| invalid operation | fail, 400 | go on, the user is told that the update was refused |

A delay or a method that the plugin named wins over what stands here, for the two statuses that run again.

Why an update that is refused does not end its order: the request that the authority accepted before is still good, and
it may have been waiting there for days. The client sees the refusal in ``sub_status`` and ``sub_status_message``; who
wants the old request no longer cancels the order. An accepted update plans nothing of its own, since the order has a
row for its next look already.
"""

from collections.abc import Mapping

from retryflow.plugin.interface import CertificateResult, ResultStatus
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.tasks.base import CHECK_CERTIFICATE_STATUS, PROCESS_TYPE_ORDER, UPDATE_ORDER

_MAXIMUM_MESSAGE_CHARACTERS = 255

_SENTENCES = {
    ResultStatus.WAITING_FOR_CA: "The request is with the certificate authority; its certificate is awaited.",
    ResultStatus.CERTIFICATE_GENERATED: "The certificate has been generated.",
    ResultStatus.CLIENT_DATA_ISSUE_SEEN: "The certificate authority refuses the data of the request.",
    ResultStatus.CA_UNAVAILABLE_FOR_REQUEST: "The certificate authority cannot be reached; the request is tried again.",
    ResultStatus.REQUEST_CANCELLED: "The request was cancelled at the certificate authority.",
    ResultStatus.INVALID_OPERATION: "The certificate authority does not allow this operation.",
}

# The words that Barbican's orders have in this column.
_UNAVAILABLE = {
    PROCESS_TYPE_ORDER: "cert_ca_unavail_for_issue",
    CHECK_CERTIFICATE_STATUS: "cert_ca_unavail_for_status_check",
    UPDATE_ORDER: "cert_ca_unavail_for_update",
}


def outcome_of_result(  # noqa: PLR0911 - one return for each row of the table
    result: CertificateResult, *, task: str, plugin_name: str, state: Mapping[str, str]
) -> Outcome:
    """The outcome of ``task``.

    :param result: a checked answer (``retryflow.plugin.answer``).
    :param task: the task that asked the plugin.
    :param plugin_name: the plugin, which owns the order from now on.
    :param state: what the plugin changed in its state.
    """
    sentence = result.status_message or _SENTENCES[result.status]
    message = clipped(sentence)
    named = result.retry_method is not None or result.retry_after_seconds is not None
    is_update = task == UPDATE_ORDER
    match result.status:
        case ResultStatus.WAITING_FOR_CA if is_update and not named:
            return Continue(
                state=state, plugin_name=plugin_name, sub_status="cert_request_pending", sub_status_message=message
            )
        case ResultStatus.WAITING_FOR_CA:
            return Poll(
                after_seconds=result.retry_after_seconds,
                task=result.retry_method or CHECK_CERTIFICATE_STATUS,
                state=state,
                plugin_name=plugin_name,
                sub_status="cert_request_pending",
                sub_status_message=message,
            )
        case ResultStatus.CERTIFICATE_GENERATED:
            return Done(
                result={
                    **result.details,
                    "certificate": result.certificate,
                    "chain": result.chain or "",
                    "intermediates": result.intermediates or "",
                },
                state=state,
                plugin_name=plugin_name,
                sub_status="cert_generated",
                sub_status_message=message,
            )
        case ResultStatus.CA_UNAVAILABLE_FOR_REQUEST:
            return Retry(
                reason=sentence,
                after_seconds=result.retry_after_seconds,
                task=result.retry_method,
                state=state,
                plugin_name=plugin_name,
                sub_status=_UNAVAILABLE.get(task, "cert_ca_unavail"),
                sub_status_message=message,
            )
        case ResultStatus.CLIENT_DATA_ISSUE_SEEN | ResultStatus.INVALID_OPERATION if is_update:
            return Continue(
                state=state,
                plugin_name=plugin_name,
                sub_status="update_refused",
                sub_status_message=clipped(f"The update was refused, the request goes on as it was: {sentence}"),
            )
        case ResultStatus.CLIENT_DATA_ISSUE_SEEN:
            return _fail("400", "cert_data_invalid", sentence, plugin_name=plugin_name, state=state)
        case ResultStatus.INVALID_OPERATION:
            return _fail("400", "cert_invalid_operation", sentence, plugin_name=plugin_name, state=state)
        case ResultStatus.REQUEST_CANCELLED:
            return _fail("499", "cancelled", sentence, plugin_name=plugin_name, state=state)


def _fail(code: str, sub_status: str, sentence: str, *, plugin_name: str, state: Mapping[str, str]) -> Fail:
    return Fail(
        code=code,
        reason=sentence,
        state=state,
        plugin_name=plugin_name,
        sub_status=sub_status,
        sub_status_message=clipped(sentence),
    )


def clipped(sentence: str) -> str:
    """The sentence as one line that fits the column ``sub_status_message``."""
    line = " ".join(sentence.split())
    if len(line) <= _MAXIMUM_MESSAGE_CHARACTERS:
        return line
    return line[: _MAXIMUM_MESSAGE_CHARACTERS - 3] + "..."
