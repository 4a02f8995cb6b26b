"""Tells an order's backend that the order was cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.conf.reading import one_line

if TYPE_CHECKING:
    import sqlalchemy as sa

    from retryflow.cli.store import Store
    from retryflow.retry.context import OrderView


def tell_backend(store: Store, conf: cfg.ConfigOpts, order_id: str) -> str | None:
    """Call the order type's ``cancel``; the cancellation stands whatever comes of it.

    :returns: a warning for whoever cancelled, or ``None``.
    """
    from retryflow.tasks.registry import OrderTypeRegistry

    try:
        order = store.read(lambda connection: _view(connection, order_id))
        if order is None:
            return None
        configuration.register_all(conf)
        return OrderTypeRegistry(conf).get(order.type).cancel(order)
    except KeyboardInterrupt:
        return "interrupted while its backend was being told; it may still be at work on it"
    except Exception as error:  # noqa: BLE001 - it is other people's code, and the cancellation is committed
        return f"its backend could not be told ({type(error).__name__}: {one_line(error)})"


def _view(connection: sa.Connection, order_id: str) -> OrderView | None:
    from retryflow.model import orders
    from retryflow.retry.context import OrderView

    row = orders.get(connection, order_id)
    if row is None:
        return None
    return OrderView(
        id=row.id,
        project_id=row.project_id,
        type=row.type,
        meta=row.meta,
        plugin_name=row.plugin_name,
        state=orders.state(connection, order_id),
    )
