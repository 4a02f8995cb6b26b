"""The certificate order type: which plugin is asked for what, and what becomes of its answer."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from oslo_config import cfg

from retryflow.errors import LeaseLost, PluginUnavailable
from retryflow.plugin.answer import InvalidPluginAnswer
from retryflow.plugin.interface import CertificatePluginBase, CertificateRequest, CertificateResult, ResultStatus
from retryflow.plugin.manager import CertificatePluginManager
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Done, Fail, Poll, Retry
from retryflow.tasks.base import CHECK_CERTIFICATE_STATUS, PROCESS_TYPE_ORDER, TASKS, UPDATE_ORDER
from retryflow.tasks.certificate import CertificateOrderType

WAITING = CertificateResult(status=ResultStatus.WAITING_FOR_CA)


@dataclass
class Recorder(CertificatePluginBase):
    """A plugin that answers what a test told it, and remembers what it was asked."""

    answer: Callable[[CertificateRequest], Any] = lambda _request: WAITING
    asked: list[tuple[str, CertificateRequest]] = field(default_factory=list)

    def _note(self, method: str, request: CertificateRequest) -> CertificateResult:
        self.asked.append((method, request))
        answer: CertificateResult = self.answer(request)
        return answer

    def issue_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        return self._note("issue", request)

    def check_certificate_status(self, request: CertificateRequest) -> CertificateResult:
        return self._note("check", request)

    def modify_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        return self._note("modify", request)

    def cancel_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        return self._note("cancel", request)


@pytest.fixture
def plugin() -> Recorder:
    return Recorder()


@pytest.fixture
def order_type(plugin: Recorder) -> CertificateOrderType:
    return CertificateOrderType(cfg.ConfigOpts(), plugins=CertificatePluginManager({"theirs": plugin}))


def context(task: str, *, step: int = 0, **more: Any) -> TaskContext:
    return TaskContext(task_id="t", order_id="order-1", task=task, step=step, **more)


def order(*, plugin_name: str | None = "theirs", meta: Any = None, state: dict[str, str] | None = None) -> OrderView:
    meta = {"csr": "x"} if meta is None else meta
    return OrderView("order-1", "project-1", "certificate", meta, plugin_name, state or {})


@pytest.mark.parametrize(
    ("task", "method"), [(PROCESS_TYPE_ORDER, "issue"), (CHECK_CERTIFICATE_STATUS, "check"), (UPDATE_ORDER, "modify")]
)
def test_each_task_asks_its_method_with_all_that_a_plugin_needs(
    order_type: CertificateOrderType, plugin: Recorder, task: str, method: str
) -> None:
    running = context(task, step=3)
    # Rows of a newer version may carry arguments that this one does not know (FAILURES T15).
    order_type.handlers()[task](running, order(state={"request": "17"}), something_newer=1)
    ((asked, request),) = plugin.asked
    assert asked == method
    assert (request.order_id, request.order_meta) == ("order-1", {"csr": "x"})
    assert request.plugin_state["request"] == "17"
    assert request.idempotency_key.startswith("order-1:3")
    assert request.context is running


def test_a_repetition_has_the_same_key_and_the_next_step_another(
    order_type: CertificateOrderType, plugin: Recorder
) -> None:
    for step in (1, 1, 2):
        order_type.check_certificate_status(context(CHECK_CERTIFICATE_STATUS, step=step), order())
    first, again, later = [request.idempotency_key for _, request in plugin.asked]
    assert first == again != later


def test_two_updates_with_other_content_have_other_keys(order_type: CertificateOrderType, plugin: Recorder) -> None:
    for meta in ({"csr": "b"}, {"csr": "b"}, {"csr": "c"}):
        order_type.update_order(context(UPDATE_ORDER), order(meta=meta))
    first, again, other = [request.idempotency_key for _, request in plugin.asked]
    assert first == again != other


def test_the_order_belongs_to_its_plugin_from_the_first_task_on(
    order_type: CertificateOrderType, plugin: Recorder
) -> None:
    def keep(request: CertificateRequest) -> CertificateResult:
        request.plugin_state["request"] = "17"
        return WAITING

    plugin.answer = keep
    outcome = order_type.process_type_order(context(PROCESS_TYPE_ORDER), order(plugin_name=None))
    assert isinstance(outcome, Poll)
    assert (outcome.plugin_name, outcome.state) == ("theirs", {"request": "17"})


def test_before_the_first_task_there_is_nothing_to_check_update_or_cancel(
    order_type: CertificateOrderType, plugin: Recorder
) -> None:
    fresh = order(plugin_name=None)
    assert order_type.update_order(context(UPDATE_ORDER), fresh) == Continue()
    assert order_type.cancel(fresh) is None
    assert plugin.asked == []
    order_type.check_certificate_status(context(CHECK_CERTIFICATE_STATUS), fresh)
    assert [method for method, _ in plugin.asked] == ["issue"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("plugin_name", [None, "theirs"])
@pytest.mark.parametrize("meta", ["text", ["list"], 5])
def test_no_plugin_sees_meta_that_is_no_object(
    order_type: CertificateOrderType, plugin: Recorder, task: str, plugin_name: str | None, meta: Any
) -> None:
    outcome = order_type.handlers()[task](context(task), order(plugin_name=plugin_name, meta=meta))
    assert isinstance(outcome, Fail)
    assert outcome.code == "400"
    assert plugin.asked == []


def test_an_order_that_no_plugin_serves_is_the_client_s_fault() -> None:
    nobody = CertificateOrderType(cfg.ConfigOpts(), plugins=CertificatePluginManager({}))
    outcome = nobody.process_type_order(context(PROCESS_TYPE_ORDER), order(plugin_name=None))
    assert isinstance(outcome, Fail)
    assert outcome.code == "400"


def test_an_order_whose_plugin_is_gone_waits_for_the_operator(order_type: CertificateOrderType) -> None:
    for task in order_type.handlers().values():
        with pytest.raises(PluginUnavailable):
            task(context(PROCESS_TYPE_ORDER), order(plugin_name="another"))


@pytest.mark.parametrize("answer", [None, "done", CertificateResult(status="ready")])  # type: ignore[arg-type]
def test_rubbish_from_a_plugin_is_one_log_line_and_a_neutral_sentence(
    order_type: CertificateOrderType, plugin: Recorder, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.answer = lambda _request: answer
    with caplog.at_level(logging.DEBUG):
        outcome = order_type.check_certificate_status(context(CHECK_CERTIFICATE_STATUS), order())
    assert isinstance(outcome, Fail)
    assert outcome.code == "500"
    assert "theirs" in outcome.reason
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("order order-1: certificate plugin theirs, check_certificate_status: ")


def test_what_the_authority_said_before_it_went_away_is_kept(
    order_type: CertificateOrderType, plugin: Recorder
) -> None:
    def fail(request: CertificateRequest) -> CertificateResult:
        request.plugin_state["request"] = "17"
        raise ConnectionResetError("reset by peer")

    plugin.answer = fail
    outcome = order_type.process_type_order(context(PROCESS_TYPE_ORDER), order(plugin_name=None))
    assert isinstance(outcome, Retry)
    assert (outcome.plugin_name, outcome.state) == ("theirs", {"request": "17"})


@pytest.mark.parametrize("error", [ValueError("bug"), LeaseLost("gone")])
def test_other_errors_reach_the_worker_which_logs_them(
    order_type: CertificateOrderType, plugin: Recorder, error: Exception
) -> None:
    def fail(_request: CertificateRequest) -> CertificateResult:
        raise error

    plugin.answer = fail
    with pytest.raises(type(error)):
        order_type.process_type_order(context(PROCESS_TYPE_ORDER), order(plugin_name=None))


def test_a_checkpoint_writes_what_changed_before_the_task_ends(
    order_type: CertificateOrderType, plugin: Recorder
) -> None:
    kept: dict[str, str] = {}

    def answer(request: CertificateRequest) -> CertificateResult:
        request.plugin_state["signed"] = "yes"
        request.checkpoint()
        assert kept == {"signed": "yes"}
        return CertificateResult(status=ResultStatus.CERTIFICATE_GENERATED, certificate="PEM")

    plugin.answer = answer
    running = context(CHECK_CERTIFICATE_STATUS, checkpoint=kept.update)
    assert isinstance(order_type.check_certificate_status(running, order(state={"request": "17"})), Done)


def test_cancel_tells_the_plugin_and_reports_what_it_did_not_agree_to(
    order_type: CertificateOrderType, plugin: Recorder
) -> None:
    plugin.answer = lambda _request: CertificateResult(status=ResultStatus.REQUEST_CANCELLED)
    assert order_type.cancel(order()) is None
    plugin.answer = lambda _request: CertificateResult(
        status=ResultStatus.INVALID_OPERATION, status_message="Issued already."
    )
    assert order_type.cancel(order()) == "Certificate plugin theirs: Issued already."
    assert [method for method, _ in plugin.asked] == ["cancel", "cancel"]
    plugin.answer = lambda _request: None
    with pytest.raises(InvalidPluginAnswer):
        order_type.cancel(order())
