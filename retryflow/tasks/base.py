"""What a service author derives an order type from."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

from oslo_config import cfg

from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Outcome

PROCESS_TYPE_ORDER = "process_type_order"
CHECK_CERTIFICATE_STATUS = "check_certificate_status"
UPDATE_ORDER = "update_order"
TASKS = (PROCESS_TYPE_ORDER, CHECK_CERTIFICATE_STATUS, UPDATE_ORDER)
"""The tasks that are RPC methods by themselves, with the names they have in Barbican."""

Handler = Callable[..., Outcome]
"""Called as ``handler(context, order, **kwargs)``; ``kwargs`` is what the retry row carries."""


class OrderType(abc.ABC):
    """What is to be done with the orders of one type; named by an entry point of ``retryflow.order_types``.

    One object per process serves all worker threads at once: what must be remembered about an order goes into the
    outcome's ``state``, and comes back as ``order.state``. A task may run again for the same piece of work, after a
    crash for example; ``context.idempotency_key`` is then the same.

    A handler returns an outcome (``retryflow.retry.outcome``). It may raise as well: see
    :func:`retryflow.tasks.failures.outcome_of_exception`. It takes ``**kwargs``, so that rows which a newer version
    has written, with more in them, still run.

    :param conf: the configuration; an order type registers its own options on it here.
    """

    transient_errors: tuple[type[Exception], ...] = ()
    """Further exceptions that mean "try again later", such as those of the client library of a backend."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf

    def handlers(self) -> Mapping[str, Handler]:
        """The tasks of this order type, by name. A type with more tasks than these three adds them to this mapping."""
        return {
            PROCESS_TYPE_ORDER: self.process_type_order,
            CHECK_CERTIFICATE_STATUS: self.check_certificate_status,
            UPDATE_ORDER: self.update_order,
        }

    @abc.abstractmethod
    def process_type_order(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        """The first task of each order."""

    def check_certificate_status(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        """Look again at an order that waits. By default the first task once more, which suits a type with one task."""
        return self.process_type_order(context, order, **kwargs)

    def update_order(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        """The client has changed the order's meta. By default nothing: the next task finds it in ``order.meta``."""
        return Continue()

    def cancel(self, order: OrderView) -> str | None:
        """The order has been cancelled: tell the backend, if there is one, that nobody waits any more.

        By default nothing. Called after the cancellation is committed, outside a task, so that nothing done here can
        keep the order alive; an exception is logged by the caller and changes nothing.

        :returns: a sentence for whoever cancelled, if the backend did not simply agree.
        """
        return None
