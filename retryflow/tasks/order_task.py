"""One run of a task: from what its lease says to an outcome, whatever the row or the handler holds (promise P8)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, cast

from oslo_log import log as logging

from retryflow.model.leases import Claimable
from retryflow.model.types import BrokenJson, parse_json
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import LONGEST_DELAY_SECONDS, Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.tasks.base import OrderType
from retryflow.tasks.failures import INTERNAL_ERROR, outcome_of_exception
from retryflow.tasks.registry import OrderTypeRegistry, UnknownOrderType

LOG = logging.getLogger(__name__)

# They stand in each row and ticket; handlers have them from context and order.
_STANDARD = frozenset({"order_id", "project_id", "request_id", "task_id", "updated_meta"})
_OUTCOMES = (Done, Poll, Retry, Fail, Continue)


def run_task(registry: OrderTypeRegistry, claimed: Claimable, context: TaskContext) -> Outcome:
    """Run the handler that the lease names.

    :returns: its outcome, or the one that stands for what went wrong; never raises.
    """
    state = claimed.state
    prefix = f"order {state.order_id}: task {claimed.task_id} ({state.task})"
    try:
        order_type = registry.get(claimed.order_type)
        return _call(order_type, claimed, context, prefix)
    except UnknownOrderType as error:
        LOG.warning("%s: %s", prefix, error)
        return Fail(code="400", reason=str(error))
    except BaseException as error:
        transient = order_type.transient_errors if "order_type" in locals() else ()
        outcome = outcome_of_exception(error, transient_errors=transient)
        if isinstance(outcome, Retry):
            LOG.warning("%s failed and will be tried again: %s", prefix, outcome.reason)
        else:
            LOG.exception("%s failed", prefix)
        return outcome


def _call(order_type: OrderType, claimed: Claimable, context: TaskContext, prefix: str) -> Outcome:
    state = claimed.state
    handler = order_type.handlers().get(state.task)
    if handler is None:
        reason = f"this worker knows no task {state.task[:64]!r} for orders of type {claimed.order_type!r}"
        LOG.warning("%s: %s; a newer one may, so it will be tried again", prefix, reason)
        return Retry(reason=reason, counted=False)
    args, kwargs = parse_json(state.args), parse_json(state.kwargs)
    for name, value, shape in (("args", args, list), ("kwargs", kwargs, dict), ("meta", claimed.meta, dict)):
        if value is None and name == "meta":
            continue
        if isinstance(value, BrokenJson) or not isinstance(value, shape):
            LOG.warning("%s: its %s are no JSON %s; the order goes to ERROR", prefix, name, shape.__name__)
            return Fail(code="500", reason=f"the stored {name} of task {state.task} are damaged")
    kwargs = {name: value for name, value in kwargs.items() if name not in _STANDARD}
    order = OrderView(
        id=state.order_id,
        project_id=claimed.project_id,
        type=claimed.order_type,
        meta=claimed.meta or {},
        plugin_name=claimed.plugin_name,
        state=claimed.plugin_state,
    )
    arguments: list[Any] = [context, order, *args]
    try:
        _bind(handler, arguments, kwargs)
    except TypeError as error:
        LOG.warning("%s: its arguments do not fit its handler: %s; the order goes to ERROR", prefix, error)
        return Fail(code="500", reason=f"the stored arguments do not fit task {state.task}")
    outcome: object = handler(*arguments, **kwargs)
    if fault := _fault_of(outcome):
        LOG.error("%s: %s", prefix, fault)
        return Fail(code="500", reason=INTERNAL_ERROR)
    return _without_past(cast(Outcome, outcome), prefix)


def _fault_of(outcome: object) -> str | None:
    """:returns: why it is no outcome that can be stored; ``None`` if it is one."""
    if not isinstance(outcome, _OUTCOMES):
        return f"its handler returned {type(outcome).__name__} instead of an outcome"
    seconds: object = getattr(outcome, "after_seconds", None)
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, Real):
            return f"its after_seconds is {type(seconds).__name__}, no number"
        if not seconds <= LONGEST_DELAY_SECONDS:
            return f"its after_seconds is {seconds}; possible are seconds from 0 to {LONGEST_DELAY_SECONDS:.0f}"
    kept: Mapping[Any, Any] = outcome.state
    for key, value in kept.items():
        # Some drivers would store whatever it prints as.
        if not isinstance(key, str) or not isinstance(value, str):
            return f"its state {key!r} is {type(value).__name__}, not text"
    return None


def _without_past(outcome: Outcome, prefix: str) -> Outcome:
    """Without a moment that has passed, for which the task would run again and again without a pause."""
    if isinstance(outcome, Poll | Retry) and outcome.after_seconds is not None and outcome.after_seconds < 0:
        LOG.warning("%s: its after_seconds is %s, before now; the default is taken", prefix, outcome.after_seconds)
        return replace(outcome, after_seconds=None)
    return outcome


def _bind(handler: Any, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """:raises TypeError: the arguments do not fit."""
    if inspect.ismethod(handler):
        _signature(handler.__func__).bind(handler.__self__, *arguments, **kwargs)
    else:
        inspect.signature(handler).bind(*arguments, **kwargs)


@functools.lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    # It takes ten times as long as the binding.
    return inspect.signature(function)
