"""Finds the order types that are installed, by name."""

import threading
from importlib.metadata import EntryPoint
from typing import Any

import stevedore
from oslo_config import cfg
from oslo_log import log as logging

from retryflow.errors import ConfigurationError, InvalidOrder, PluginUnavailable
from retryflow.tasks.base import OrderType

LOG = logging.getLogger(__name__)

NAMESPACE = "retryflow.order_types"


class UnknownOrderType(InvalidOrder):
    """No installed package offers an order type of this name."""


class OrderTypeRegistry:
    """The order types of this process; each is imported and made when it is first asked for.

    :param conf: given to each order type.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._made: dict[str, OrderType] = {}
        self._entry_points: dict[str, EntryPoint] = {}
        # Only the list of names is read here: a broken package must not keep the others from their work (P8).
        listed: stevedore.ExtensionManager[Any] = _Listing(NAMESPACE)
        for entry_point in listed.list_entry_points():
            first = self._entry_points.setdefault(entry_point.name, entry_point)
            if first.value != entry_point.value:
                LOG.warning(
                    "Order type %s is offered by several packages, as %s and as %s; the first is taken: uninstall the "
                    "other, or rename its entry point",
                    entry_point.name,
                    first.value,
                    entry_point.value,
                )

    @property
    def names(self) -> list[str]:
        """The names of all order types, sorted."""
        return sorted(self._entry_points.keys() | self._made.keys())

    def add(self, name: str, order_type: OrderType) -> None:
        """Use this object for orders of the type ``name``, for services that need no entry point, and for tests."""
        with self._lock:
            self._made[name] = order_type

    def get(self, name: str) -> OrderType:
        """The order type of this name.

        :raises UnknownOrderType: nobody offers it; such an order can never be run.
        :raises retryflow.errors.ConfigurationError: it was made and refuses the configuration.
        :raises retryflow.errors.PluginUnavailable: it is installed, but cannot be loaded here; another worker or a
            mended installation may run the order.
        """
        with self._lock:
            if name not in self._made:
                self._made[name] = self._load(name)
            return self._made[name]

    def check(self) -> None:
        """Make every order type now, so that a daemon learns at its start what is wrong with the configuration.

        :raises retryflow.errors.ConfigurationError: an order type refuses the configuration. One that cannot be loaded
            for another reason is only logged: orders of the other types can be served.
        """
        for name in self.names:
            try:
                self.get(name)
            except PluginUnavailable as error:
                LOG.error("%s", error)

    def _load(self, name: str) -> OrderType:
        entry_point = self._entry_points.get(name)
        if entry_point is None:
            raise UnknownOrderType(
                f"unknown order type {name[:64]!r}: no installed package offers it; known: {', '.join(self.names)}"
            )
        try:
            factory = entry_point.load()
            if not (isinstance(factory, type) and issubclass(factory, OrderType)):
                raise TypeError(f"{entry_point.value} does not derive from OrderType")
            return factory(self._conf)
        except ConfigurationError:
            raise
        except Exception as error:
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            raise PluginUnavailable(
                f"order type {name} cannot be loaded ({problem}): mend the package that offers it, then restart"
            ) from error


class _Listing(stevedore.ExtensionManager[Any]):
    """Lists entry points and loads none."""

    def _load_one_plugin(self, ep: EntryPoint, *args: Any, **kwargs: Any) -> None:
        return None
