"""The built-in order type ``certificate``: asks a certificate plugin, and turns its answer into an outcome."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from retryflow.plugin.answer import InvalidPluginAnswer, checked_answer
from retryflow.plugin.interface import CertificatePluginBase, CertificateRequest, CertificateResult, ResultStatus
from retryflow.plugin.manager import CertificatePluginManager, load_plugins
from retryflow.plugin.state import PluginState
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Fail, Outcome
from retryflow.tasks.base import CHECK_CERTIFICATE_STATUS, PROCESS_TYPE_ORDER, TASKS, UPDATE_ORDER, OrderType
from retryflow.tasks.certificate_outcomes import outcome_of_result
from retryflow.tasks.failures import transient_outcome

LOG = logging.getLogger(__name__)

Operation = Callable[[CertificateRequest], CertificateResult]

_BAD_ANSWER = "The certificate plugin {} gave an answer that cannot be used. The details are in the worker's log."

_UNREADABLE = Fail(code="400", reason="The meta of a certificate order must be a JSON object.")


class CertificateOrderType(OrderType):
    """Certificate orders. An order belongs to one plugin from its first task on.

    :param conf: the configuration.
    :param plugins: the plugins to use; those that the configuration names if not given.
    :raises retryflow.errors.ConfigurationError: a plugin that the configuration names cannot be loaded.
    """

    def __init__(self, conf: cfg.ConfigOpts, *, plugins: CertificatePluginManager | None = None) -> None:
        super().__init__(conf)
        self._plugins = load_plugins(conf) if plugins is None else plugins

    def process_type_order(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        """Ask for the certificate."""
        if not _is_readable(order):
            return _UNREADABLE
        if order.plugin_name is not None:
            name, plugin = order.plugin_name, self._plugins.get(order.plugin_name)
        else:
            chosen = self._plugins.choose(order.meta)
            if chosen is None:
                return Fail(code="400", reason=self._plugins.refusal(order.meta))
            name, plugin = chosen
        return self._ask(name, plugin.issue_certificate_request, context, order, task=PROCESS_TYPE_ORDER)

    def check_certificate_status(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        """Ask how the request stands."""
        if not _is_readable(order):
            return _UNREADABLE
        plugin = self._owner(order)
        if plugin is None:
            # Nothing was asked for yet, so there is no status to ask for.
            return self.process_type_order(context, order, **kwargs)
        return self._ask(
            str(order.plugin_name), plugin.check_certificate_status, context, order, task=CHECK_CERTIFICATE_STATUS
        )

    def update_order(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        """Replace the request by what the order's meta says now."""
        if not _is_readable(order):
            return _UNREADABLE
        plugin = self._owner(order)
        if plugin is None:
            # The first task is still to come and will find the new meta.
            return Continue()
        return self._ask(
            str(order.plugin_name),
            plugin.modify_certificate_request,
            context,
            order,
            task=UPDATE_ORDER,
            # A second update is other work than the first, although no outcome of the order stands between them.
            key=f"{context.idempotency_key}:{_digest(order.meta)}",
        )

    def cancel(self, order: OrderView) -> str | None:
        """Tell the authority that nobody waits any more."""
        plugin = self._owner(order)
        if plugin is None:
            return None
        request = _request(TaskContext(task_id="", order_id=order.id, task="cancel"), order, key=f"{order.id}:cancel")
        result = checked_answer(plugin.cancel_certificate_request(request), tasks=TASKS)
        if result.status is ResultStatus.REQUEST_CANCELLED:
            return None
        return f"Certificate plugin {order.plugin_name}: {result.status_message or result.status}"

    def _owner(self, order: OrderView) -> CertificatePluginBase | None:
        return None if order.plugin_name is None else self._plugins.get(order.plugin_name)

    def _ask(
        self,
        name: str,
        operation: Operation,
        context: TaskContext,
        order: OrderView,
        *,
        task: str,
        key: str | None = None,
    ) -> Outcome:
        request = _request(context, order, key=key or context.idempotency_key)
        try:
            answer = operation(request)
        except Exception as error:
            outcome = transient_outcome(error)
            if outcome is None:
                raise
            # What the authority said before it went away is kept for the next attempt.
            return replace(outcome, state=request.plugin_state.changes(), plugin_name=name)
        try:
            result = checked_answer(answer, tasks=TASKS)
        except InvalidPluginAnswer as error:
            LOG.error("order %s: certificate plugin %s, %s: %s", order.id, name, task, error)
            return Fail(code="500", reason=_BAD_ANSWER.format(name), plugin_name=name)
        return outcome_of_result(result, task=task, plugin_name=name, state=request.plugin_state.changes())


def _is_readable(order: OrderView) -> bool:
    # Whatever the type says, the column may hold other JSON, or none.
    return isinstance(order.meta, Mapping)


def _request(context: TaskContext, order: OrderView, *, key: str) -> CertificateRequest:
    return CertificateRequest(
        order_id=order.id,
        order_meta=order.meta,
        plugin_state=PluginState(order.state),
        idempotency_key=key,
        context=context,
    )


def _digest(meta: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True, default=str).encode()).hexdigest()[:16]
