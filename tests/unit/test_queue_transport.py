"""Which transport, and what it is."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from retryflow.conf import CONF
from retryflow.errors import ConfigurationError
from retryflow.queue import transport
from retryflow.queue.target import scheduler_target, ticket_target, worker_target
from tests.fixtures.rabbit import overriding


@pytest.fixture
def conf() -> Iterator[cfg.ConfigOpts]:
    with overriding({}) as conf:
        yield conf


@pytest.mark.parametrize("url", ["fake://", "fake:", "kombu+memory://", "kombu+memory:///"])
def test_in_process_transports_are_known(url: str, conf: cfg.ConfigOpts) -> None:
    assert transport.is_in_process(url) is (url != "fake:")
    with overriding({(None, "transport_url"): url}) as conf:
        assert transport.is_in_process(conf) is (url != "fake:")


@pytest.mark.parametrize("url", ["rabbit://", "rabbit://u:p@h:1/v", "kombu+redis://h", "kafka://h"])
def test_other_transports_reach_other_processes(url: str) -> None:
    assert not transport.is_in_process(url)


def test_the_standalone_default_gives_way_to_the_operator(conf: cfg.ConfigOpts) -> None:
    before = CONF.transport_url
    transport.set_standalone_default(conf)
    try:
        assert conf.transport_url == "fake://"
        with overriding({(None, "transport_url"): "rabbit://h"}):
            assert conf.transport_url == "rabbit://h"
    finally:
        CONF.clear_default("transport_url")
    assert before == CONF.transport_url


@pytest.mark.parametrize(
    "url", ["klingon://user:very-secret@host/", "rabbit://user:very-secret@host:port/", "///very-secret"]
)
def test_an_unusable_url_is_refused_in_one_line_without_its_password(url: str) -> None:
    with overriding({(None, "transport_url"): url}) as conf, pytest.raises(ConfigurationError) as refusal:
        transport.get_transport(conf)
    assert "transport_url" in str(refusal.value)
    assert "very-secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "rabbit"), [("rabbit://u:p@h//", True), ("kombu+memory://", False), ("fake://", False)]
)
def test_only_amqp_is_rabbit(url: str, rabbit: bool) -> None:
    with overriding({(None, "transport_url"): url}) as conf:
        assert transport.is_rabbit(transport.get_transport(conf)) is rabbit


def test_the_brokers_name_in_log_lines_has_no_password() -> None:
    with overriding(
        {(None, "transport_url"): "rabbit://someone:very-secret@one:1,someone:very-secret@two:2/v"}
    ) as conf:
        assert transport.broker_of(transport.get_transport(conf)) == "rabbit://one:1,two:2/v"


def test_an_own_exchange_and_quorum_queues_are_the_default(conf: cfg.ConfigOpts) -> None:
    transport.get_transport(conf, "rabbit://")
    assert conf.control_exchange == "retryflow"
    assert conf.oslo_messaging_rabbit.rabbit_quorum_queue is True
    assert conf.oslo_messaging_rabbit.rabbit_transient_quorum_queue is True


def test_the_operators_values_win() -> None:
    overrides: dict[tuple[str | None, str], Any] = {
        (None, "control_exchange"): "his",
        ("oslo_messaging_rabbit", "rabbit_quorum_queue"): False,
    }
    with overriding(overrides) as conf:
        made = transport.get_transport(conf, "rabbit://")
        assert made._driver._default_exchange == "his"
        assert made._driver.conf.oslo_messaging_rabbit.rabbit_quorum_queue is False


def test_the_names_on_the_wire_are_upstreams(conf: cfg.ConfigOpts) -> None:
    worker, ticket, scheduler = worker_target(conf), ticket_target(conf), scheduler_target(conf)
    assert (worker.topic, worker.server) == ("barbican.workers", "barbican.queue")
    assert (ticket.topic, ticket.server, ticket.namespace, ticket.version) == (
        "barbican.workers",
        None,
        "barbican",
        "1.1",
    )
    assert (scheduler.topic, scheduler.fanout) == ("barbican.scheduler", True)


def test_topics_can_be_configured() -> None:
    name = uuid.uuid4().hex
    with overriding({("queue", "topic"): name}) as conf:
        assert worker_target(conf).topic == ticket_target(conf).topic == name
