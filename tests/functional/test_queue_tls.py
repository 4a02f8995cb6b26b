"""A broker that speaks TLS, and one of several hosts: the daemons' connections are partly the driver's and partly our
own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fixtures.command import Command
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import Rabbit, eventually
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.tls_proxy import Authority, TlsProxy

Options = dict[tuple[str | None, str], Any]


@pytest.fixture
def tls(rabbit: Rabbit, tmp_path: Path) -> Iterator[Callable[..., Options]]:
    """Options for a broker behind TLS, for clients that trust this authority."""
    shown = Authority(tmp_path, "shown")
    proxy = TlsProxy(rabbit.host(), rabbit.port(), shown.chain)

    def options(trusted: Authority = shown) -> Options:
        return {
            (None, "transport_url"): rabbit.through(proxy.port).url,
            ("oslo_messaging_rabbit", "ssl"): True,
            ("oslo_messaging_rabbit", "ssl_ca_file"): trusted.certificate,
        }

    yield options
    proxy.close()


def test_orders_go_over_tls_all_the_way(
    make_deployment: Callable[[str], Deployment], tls: Callable[..., Options], retryflow: Command
) -> None:
    """Several hundred tickets, so that one piece that is read holds many records of TLS and the other way round."""
    deployment = make_deployment("postgresql")
    order_ids = deployment.submit(300, steps=("poll 0", "done"))
    scheduler = deployment.start("scheduler", tls())
    worker = deployment.start("worker", tls())
    assert deployment.wait_until_ended() == {"ACTIVE": 300}
    assert {run.order_id for run in deployment.runs("end")} == set(order_ids)
    # Alone, when all is quiet: nothing of it may be left lying in a buffer.
    for _ in range(3):
        deployment.submit()
        assert deployment.wait_until_ended(timeout_seconds=30.0).keys() == {"ACTIVE"}
    answer = retryflow("doctor", "-f", "json", *deployment.config(tls()))
    assert [row for row in json.loads(answer.out or "[]") if row["check"] in ("broker", "queue")] == []
    for daemon in (worker, scheduler):
        daemon.terminate()
        assert daemon.wait() == 0
    deployment.wait_until_nothing_is_left()


def test_a_broker_whose_certificate_is_not_trusted_is_named_with_the_reason(
    make_deployment: Callable[[str], Deployment], tls: Callable[..., Options], retryflow: Command, tmp_path: Path
) -> None:
    deployment = make_deployment("postgresql")
    options = tls(Authority(tmp_path, "another"))
    for kind in ("worker", "scheduler"):
        daemon = deployment.start(kind, options, ready=False)
        daemon.wait_for_log("certificate verify failed")
        assert "Traceback" not in daemon.log()
        daemon.terminate()
        assert daemon.wait() == 0
    answer = retryflow("doctor", "-f", "json", *deployment.config(options))
    [found] = [row for row in json.loads(answer.out) if row["check"] == "broker"]
    assert "certificate verify failed" in found["what"]


def test_with_several_hosts_the_next_one_is_taken_when_one_goes_away(
    make_deployment: Callable[[str], Deployment], rabbit: Rabbit, tcp_proxies: list[TcpProxy]
) -> None:
    """The hosts of a cluster: the first is there until the middle of the work, and then refuses."""
    first, second = (TcpProxy(rabbit.host(), rabbit.port()) for _ in range(2))
    tcp_proxies += [first, second]
    one, other = (urlsplit(rabbit.through(proxy.port).url) for proxy in (first, second))
    both = one._replace(netloc=f"{one.netloc},{other.netloc}").geturl()
    options: Options = {(None, "transport_url"): both}
    deployment = make_deployment("postgresql")
    deployment.start("scheduler", options)
    deployment.start("worker", options)
    deployment.submit(100, steps=("poll 0", "sleep 0.05", "done"))
    eventually(lambda: len(deployment.runs("end")) >= 20, "some tasks have run")
    gone, left = (first, second) if first.connections else (second, first)
    gone.refuse()
    assert deployment.wait_until_ended() == {"ACTIVE": 100}
    assert left.connections
    deployment.submit(20)
    assert deployment.wait_until_ended() == {"ACTIVE": 120}
    deployment.wait_until_nothing_is_left()
