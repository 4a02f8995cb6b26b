"""Loads the enabled certificate plugins and finds the one for an order."""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import stevedore
from oslo_config import cfg
from oslo_log import log as logging

from retryflow.errors import ConfigurationError, PluginUnavailable
from retryflow.plugin.interface import CertificatePluginBase

LOG = logging.getLogger(__name__)

NAMESPACE = "retryflow.certificate_plugins"


class CertificatePluginManager:
    """The enabled plugins, in the order in which the configuration names them.

    :param plugins: plugin by name.
    """

    def __init__(self, plugins: Mapping[str, CertificatePluginBase]) -> None:
        self._plugins = dict(plugins)

    @property
    def names(self) -> list[str]:
        """The names of the enabled plugins, in order of preference."""
        return list(self._plugins)

    def choose(self, order_meta: Mapping[str, Any]) -> tuple[str, CertificatePluginBase] | None:
        """The plugin for a new order: the one that its meta names as ``plugin_name``, else the first that supports it.

        :returns: its name and itself, or ``None`` if no enabled plugin supports such an order; nor is one that is named
            made to take an order that it does not support. :meth:`refusal` says why.
        """
        wanted = order_meta.get("plugin_name")
        for name, plugin in self._plugins.items():
            if wanted not in (None, name):
                continue
            try:
                if plugin.supports(order_meta):
                    return name, plugin
            except Exception:
                # A plugin that cannot even look at the order must not keep it from the next one.
                LOG.exception("certificate plugin %s: supports() failed; it is passed over for this order", name)
        return None

    def refusal(self, order_meta: Mapping[str, Any]) -> str:
        """Why :meth:`choose` found none: a sentence for the client."""
        wanted = order_meta.get("plugin_name")
        if wanted is None:
            return "No enabled certificate plugin serves an order of this kind."
        if wanted in self.names:
            return (
                f"The certificate plugin {wanted}, which the order names (plugin_name), does not take such an order: "
                "change it, or name another plugin or none."
            )
        return "No enabled certificate plugin has the name that the order gives (plugin_name)."

    def get(self, name: str) -> CertificatePluginBase:
        """The plugin that an order belongs to since its first task.

        :raises retryflow.errors.PluginUnavailable: it is not enabled in this process. The order waits, since an
            authority may be at work on it and the operator can mend the configuration.
        """
        try:
            return self._plugins[name]
        except KeyError:
            raise PluginUnavailable(
                f"certificate plugin {name}, which this order belongs to, is not enabled: "
                "add it to [certificate] enabled_certificate_plugins on every worker"
            ) from None


def require_plugins(conf: cfg.ConfigOpts) -> None:
    """Look whether the enabled plugins are installed, without loading them.

    :raises retryflow.errors.ConfigurationError: one is not, or several packages offer it.
    """
    offered = entry_points(group=NAMESPACE)
    enabled = set(conf.certificate.enabled_certificate_plugins)
    if missing := enabled - offered.names:
        _refuse_missing(missing)
    for name in sorted(enabled):
        if len(offers := _offers_of(offered.select(name=name))) > 1:
            raise ConfigurationError(
                f"certificate plugin {name} is offered by several packages, {' and '.join(offers)}; uninstall all but "
                "one of them, or rename its entry point"
            )


def _offers_of(found: Iterable[EntryPoint]) -> list[str]:
    """:returns: what entry points of one name stand for, with the packages that offer it; what is the same once."""
    offers = {
        each.value: f"{each.value} (of {each.dist.name if each.dist else 'an unknown package'})" for each in found
    }
    return [offers[value] for value in sorted(offers)]


def load_plugins(conf: cfg.ConfigOpts) -> CertificatePluginManager:
    """Load what ``[certificate] enabled_certificate_plugins`` names from the entry points.

    :raises retryflow.errors.ConfigurationError: a plugin is not installed or cannot be loaded; one line says why.
    """
    names = list(dict.fromkeys(conf.certificate.enabled_certificate_plugins))
    try:
        loaded: stevedore.NamedExtensionManager[Any] = stevedore.NamedExtensionManager(
            NAMESPACE,
            names,
            name_order=True,
            on_load_failure_callback=_refuse_broken,
            on_missing_entrypoints_callback=_refuse_missing,
        )
    except AssertionError as error:
        # The one exception that stevedore keeps from its callback.
        _refuse(", ".join(names), f"AssertionError: {error}")
    return CertificatePluginManager({ext.name: _instance(ext.name, ext.plugin, conf) for ext in loaded})


def _instance(name: str, factory: Any, conf: cfg.ConfigOpts) -> CertificatePluginBase:
    if not (isinstance(factory, type) and issubclass(factory, CertificatePluginBase)):
        _refuse(name, f"{factory!r} does not derive from CertificatePluginBase")
    try:
        return factory(conf)
    except Exception as error:  # noqa: BLE001 - whatever it is, the operator gets one line
        _refuse(name, f"{type(error).__name__}: {error}")


def _refuse_broken(_manager: object, entry_point: EntryPoint, error: BaseException) -> None:
    _refuse(entry_point.name, f"{type(error).__name__}: {error}")


def _refuse_missing(names: Iterable[str]) -> None:
    _refuse(", ".join(sorted(names)), f"no installed package offers it (entry points of {NAMESPACE})")


def _refuse(name: str, problem: str) -> NoReturn:
    raise ConfigurationError(
        f"[certificate] enabled_certificate_plugins: cannot load {name}: {' '.join(problem.split())}"
    ) from None
