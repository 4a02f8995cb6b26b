"""Order types are found by name, made when first needed, and a broken one never stops the others (P8)."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.errors import ConfigurationError, InvalidOrder, PluginUnavailable
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Done, Outcome
from retryflow.tasks.base import CHECK_CERTIFICATE_STATUS, PROCESS_TYPE_ORDER, UPDATE_ORDER, OrderType
from retryflow.tasks.certificate import CertificateOrderType
from retryflow.tasks.registry import NAMESPACE, OrderTypeRegistry, UnknownOrderType
from tests.fixtures.entry_points import Install

THEIRS = """
    from retryflow.retry.outcome import Done
    from retryflow.tasks.base import OrderType

    MADE = []

    class backup(OrderType):
        def __init__(self, conf):
            super().__init__(conf)
            MADE.append(self)

        def process_type_order(self, context, order, **kwargs):
            return Done(result={"size": order.meta["size"]})
    """
CONTEXT = TaskContext(task_id="t", order_id="o", task=PROCESS_TYPE_ORDER)


@pytest.fixture
def conf() -> Iterator[cfg.ConfigOpts]:
    conf = cfg.ConfigOpts()
    configuration.register_all(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    yield conf
    # The groups are shared between all configurations of a process, and overrides stand in them.
    conf.reset()


class OneTask(OrderType):
    """The least that an author writes."""

    def process_type_order(self, context: TaskContext, order: OrderView, **kwargs: Any) -> Outcome:
        return Done(result={"meta": dict(order.meta)})


def test_the_certificate_order_type_is_built_in(conf: cfg.ConfigOpts) -> None:
    registry = OrderTypeRegistry(conf)
    registry.check()
    assert "certificate" in registry.names
    assert isinstance(registry.get("certificate"), CertificateOrderType)


def test_a_service_author_adds_one_without_touching_our_code(conf: cfg.ConfigOpts, install_package: Install) -> None:
    install_package("their_service", THEIRS, {"backup": NAMESPACE})
    registry = OrderTypeRegistry(conf)
    handlers = registry.get("backup").handlers()
    outcome = handlers[PROCESS_TYPE_ORDER](CONTEXT, OrderView("o", None, "backup", {"size": 7}))
    assert outcome == Done(result={"size": 7})


def test_an_order_type_that_two_packages_offer_is_told(
    conf: cfg.ConfigOpts, install_package: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """The orders of one would be run by the other."""
    for module in ("first_service", "second_service"):
        install_package(module, THEIRS, {"backup": NAMESPACE})
    OrderTypeRegistry(conf)
    [line] = [record.getMessage() for record in caplog.records if "several packages" in record.getMessage()]
    assert "first_service:backup" in line
    assert "second_service:backup" in line


def test_an_order_type_is_made_when_first_asked_for_and_once(conf: cfg.ConfigOpts, install_package: Install) -> None:
    install_package("their_service", THEIRS, {"backup": NAMESPACE})
    registry = OrderTypeRegistry(conf)
    import their_service  # type: ignore[import-not-found]

    assert their_service.MADE == []
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(registry.get, ["backup"] * 8))) == 1
    assert len(their_service.MADE) == 1


@pytest.mark.parametrize("name", ["no-such-type", "", "x" * 5000])
def test_an_unknown_type_is_a_clear_error(conf: cfg.ConfigOpts, name: str) -> None:
    with pytest.raises(UnknownOrderType, match=r"unknown order type .* known: .*certificate") as caught:
        OrderTypeRegistry(conf).get(name)
    assert isinstance(caught.value, InvalidOrder)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "source", ["import no_such_module_anywhere", "class broken: pass", "raise AssertionError('x')"]
)
def test_a_type_that_cannot_be_loaded_here_waits_for_the_operator_and_stops_no_other(
    conf: cfg.ConfigOpts, install_package: Install, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    install_package("their_service", source, {"broken": NAMESPACE})
    registry = OrderTypeRegistry(conf)
    with caplog.at_level(logging.ERROR):
        registry.check()
    assert [record.message for record in caplog.records if "order type broken cannot be loaded" in record.message]
    with pytest.raises(PluginUnavailable, match="order type broken cannot be loaded"):
        registry.get("broken")
    assert registry.get("certificate")


def test_what_the_configuration_does_wrong_is_said_at_the_start(conf: cfg.ConfigOpts) -> None:
    conf.set_override("enabled_certificate_plugins", ["no_such"], "certificate")
    with pytest.raises(ConfigurationError, match="enabled_certificate_plugins"):
        OrderTypeRegistry(conf).check()


def test_one_method_is_enough_for_an_order_type(conf: cfg.ConfigOpts) -> None:
    registry = OrderTypeRegistry(conf)
    registry.add("one", OneTask(conf))
    order = OrderView("o", None, "one", {"a": 1})
    handlers = registry.get("one").handlers()
    assert handlers[CHECK_CERTIFICATE_STATUS](CONTEXT, order, more="ignored") == Done(result={"meta": {"a": 1}})
    assert handlers[UPDATE_ORDER](CONTEXT, order) == Continue()
    assert registry.get("one").cancel(order) is None
