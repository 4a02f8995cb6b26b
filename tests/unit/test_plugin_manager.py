"""Which plugins are loaded, and which one an order gets."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.errors import ConfigurationError, PluginUnavailable
from retryflow.plugin.manager import NAMESPACE, CertificatePluginManager, load_plugins, require_plugins
from retryflow.plugin.simple_certificate import SimpleCertificatePlugin
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Fail
from retryflow.service.app import build_worker
from retryflow.tasks.base import PROCESS_TYPE_ORDER
from retryflow.tasks.certificate import CertificateOrderType
from tests.fixtures.entry_points import Install

PLUGIN = """
    from retryflow.plugin.interface import CertificatePluginBase

    class {name}(CertificatePluginBase):
        issue_certificate_request = check_certificate_status = None
        modify_certificate_request = cancel_certificate_request = None
    """


@pytest.fixture
def conf() -> Iterator[cfg.ConfigOpts]:
    conf = cfg.ConfigOpts()
    configuration.register_all(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    yield conf
    # The groups are shared between all configurations of a process, and overrides stand in them.
    conf.reset()


class Choosy(SimpleCertificatePlugin):
    """Serves only what names it."""

    def supports(self, order_meta: Mapping[str, Any]) -> bool:
        return order_meta.get("for") == "choosy"


class Broken(SimpleCertificatePlugin):
    """Cannot even look at an order."""

    def supports(self, order_meta: Mapping[str, Any]) -> bool:
        raise RuntimeError("broken")


def test_by_default_the_demonstration_authority_is_loaded(conf: cfg.ConfigOpts) -> None:
    manager = load_plugins(conf)
    assert manager.names == ["simple_certificate"]
    assert isinstance(manager.get("simple_certificate"), SimpleCertificatePlugin)


def test_plugins_come_in_the_order_of_the_configuration(conf: cfg.ConfigOpts, install_package: Install) -> None:
    install_package("their_ca", PLUGIN.format(name="theirs"), {"theirs": NAMESPACE})
    conf.set_override("enabled_certificate_plugins", ["theirs", "simple_certificate", "theirs"], "certificate")
    assert load_plugins(conf).names == ["theirs", "simple_certificate"]


def test_a_plugin_that_two_packages_offer_is_refused_once_it_is_enabled(
    conf: cfg.ConfigOpts, install_package: Install
) -> None:
    """Nobody could tell which of them signs."""
    for module in ("first_ca", "second_ca"):
        install_package(module, PLUGIN.format(name="theirs"), {"theirs": NAMESPACE})
    require_plugins(conf)
    conf.set_override("enabled_certificate_plugins", ["theirs"], "certificate")
    with pytest.raises(ConfigurationError) as refused:
        require_plugins(conf)
    assert "first_ca:theirs (of first_ca) and second_ca:theirs (of second_ca)" in str(refused.value)
    assert "uninstall" in str(refused.value)


def test_a_value_that_a_plugins_own_option_does_not_take_is_refused_at_the_start(
    conf: cfg.ConfigOpts, install_package: Install, tmp_path: Path
) -> None:
    """Else the first order that needs it ends in ERROR."""
    source = """
    from oslo_config import cfg
    from retryflow.tasks.base import OrderType

    class backup(OrderType):
        def __init__(self, conf):
            super().__init__(conf)
            conf.register_opts([cfg.FloatOpt("timeout_seconds", default=30.0, min=1.0)], "backup_store")

        def process_type_order(self, context, order, **kwargs):
            raise NotImplementedError
    """
    install_package("their_service", source, {"backup": "retryflow.order_types"})
    file = tmp_path / "retryflow.conf"
    database = f"[database]\nconnection = sqlite:///{tmp_path}/orders.sqlite\n"
    file.write_text(f"[DEFAULT]\ntransport_url = fake://\n{database}[backup_store]\ntimeout_seconds = 0\n")
    conf(["--config-file", str(file)], default_config_files=[], default_config_dirs=[])
    with pytest.raises(ConfigurationError, match=r"\[backup_store\] timeout_seconds .*mend the configuration"):
        build_worker(conf)()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("raise AssertionError('cannot start')", "cannot start"),
        ("class broken: pass", "does not derive from CertificatePluginBase"),
        (
            PLUGIN.format(name="broken") + "    def __init__(self, conf): raise ValueError('no\\n licence')\n",
            "no licence",
        ),
        ("from retryflow.plugin.interface import CertificatePluginBase as broken", "abstract"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line_with_its_name(
    conf: cfg.ConfigOpts, install_package: Install, source: str, problem: str
) -> None:
    install_package("broken_ca", source, {"broken": NAMESPACE})
    conf.set_override("enabled_certificate_plugins", ["broken"], "certificate")
    with pytest.raises(ConfigurationError) as caught:
        load_plugins(conf)
    assert str(caught.value).startswith("[certificate] enabled_certificate_plugins: cannot load broken: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plugin_that_is_not_installed_is_one_line_with_its_name(conf: cfg.ConfigOpts) -> None:
    conf.set_override("enabled_certificate_plugins", ["simple_certificate", "no_such"], "certificate")
    with pytest.raises(ConfigurationError, match="cannot load no_such: no installed package offers it"):
        load_plugins(conf)


def test_the_first_plugin_that_supports_the_order_gets_it(conf: cfg.ConfigOpts) -> None:
    manager = CertificatePluginManager({"choosy": Choosy(conf), "simple": SimpleCertificatePlugin(conf)})
    assert _chosen(manager, {"for": "choosy"}) == "choosy"
    assert _chosen(manager, {}) == "simple"
    assert _chosen(manager, {"request_type": "stored-key"}) is None


def test_an_order_may_name_its_plugin(conf: cfg.ConfigOpts) -> None:
    manager = CertificatePluginManager({"a": SimpleCertificatePlugin(conf), "b": SimpleCertificatePlugin(conf)})
    assert _chosen(manager, {"plugin_name": "b"}) == "b"
    assert _chosen(manager, {"plugin_name": "c"}) is None


def test_a_plugin_that_an_order_names_may_decline_it(conf: cfg.ConfigOpts) -> None:
    manager = CertificatePluginManager({"choosy": Choosy(conf), "simple": SimpleCertificatePlugin(conf)})
    assert _chosen(manager, {"plugin_name": "choosy"}) is None
    assert _chosen(manager, {"plugin_name": "choosy", "for": "choosy"}) == "choosy"


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"plugin_name": "choosy"}, "certificate plugin choosy, which the order names .* does not take"),
        ({"plugin_name": "nobody"}, "No enabled certificate plugin has the name"),
        ({"plugin_name": ["choosy"]}, "No enabled certificate plugin has the name"),
        ({}, "No enabled certificate plugin serves an order of this kind"),
    ],
)
def test_an_order_that_no_plugin_takes_learns_why(conf: cfg.ConfigOpts, meta: dict[str, Any], says: str) -> None:
    order_type = CertificateOrderType(conf, plugins=CertificatePluginManager({"choosy": Choosy(conf)}))
    order = OrderView("order-1", "project-1", "certificate", meta, None, {})
    failed = order_type.process_type_order(TaskContext(task_id="t", order_id="order-1", task=PROCESS_TYPE_ORDER), order)
    assert isinstance(failed, Fail)
    assert failed.code == "400"
    assert re.search(says, failed.reason)


def test_a_plugin_that_cannot_look_at_an_order_does_not_keep_it_from_the_next(conf: cfg.ConfigOpts) -> None:
    manager = CertificatePluginManager({"broken": Broken(conf), "simple": SimpleCertificatePlugin(conf)})
    assert _chosen(manager, {}) == "simple"


def test_an_order_whose_plugin_is_not_enabled_waits_for_the_operator() -> None:
    with pytest.raises(PluginUnavailable, match="enabled_certificate_plugins"):
        CertificatePluginManager({}).get("theirs")


def _chosen(manager: CertificatePluginManager, meta: Mapping[str, Any]) -> str | None:
    chosen = manager.choose(meta)
    return chosen[0] if chosen else None
