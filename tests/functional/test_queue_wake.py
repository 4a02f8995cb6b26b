"""Wake-ups reach every scheduler, on RabbitMQ and within one process."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from retryflow.queue import wake
from retryflow.queue.transport import get_transport
from tests.fixtures.rabbit import Rabbit, eventually, overriding
from tests.fixtures.servers import need
from tests.fixtures.tcp_proxy import TcpProxy

HANG_SECONDS = 20.0


@pytest.fixture(params=["rabbit", "fake", "kombu+memory"])
def conf(request: pytest.FixtureRequest) -> Iterator[cfg.ConfigOpts]:
    corner = Rabbit(need("rabbit") if request.param == "rabbit" else f"{request.param}://")
    with overriding(corner.overrides) as conf:
        yield conf
    if request.param == "rabbit":
        corner.remove()


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.ready = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.ready.set()


def listening(conf: cfg.ConfigOpts, transport: Any, waker: wake.Waker) -> tuple[wake.Listener, Counter]:
    """A listener that has heard its first wake-up."""
    counter = Counter()
    listener = wake.listen(transport, conf, counter)
    eventually(lambda: waker.wake() or counter.count)
    return listener, counter


def test_a_wake_up_reaches_every_scheduler(conf: cfg.ConfigOpts) -> None:
    transport = get_transport(conf)
    waker = wake.Waker(transport, conf)
    several = [listening(conf, transport, waker) for _ in range(3)]
    for _listener, counter in several:
        counter.ready.clear()
    waker.wake()
    for listener, counter in several:
        assert counter.ready.wait(HANG_SECONDS)
        listener.stop()
    waker.stop()


def test_many_wake_ups_are_few_messages(conf: cfg.ConfigOpts) -> None:
    transport = get_transport(conf)
    waker = wake.Waker(transport, conf)
    listener, counter = listening(conf, transport, waker)
    before, began = counter.count, time.monotonic()
    while time.monotonic() - began < 1.0:
        waker.wake()
    taken = time.monotonic() - began
    assert 1 <= counter.count - before <= 10 * taken + 2
    listener.stop()
    waker.stop()


def test_the_last_of_many_wake_ups_is_not_lost(conf: cfg.ConfigOpts) -> None:
    transport = get_transport(conf)
    waker = wake.Waker(transport, conf)
    listener, counter = listening(conf, transport, waker)
    for _ in range(100):
        waker.wake()
    counter.ready.clear()
    waker.wake()
    assert counter.ready.wait(HANG_SECONDS)
    listener.stop()
    waker.stop()


def test_nothing_is_heard_after_stop(conf: cfg.ConfigOpts) -> None:
    transport = get_transport(conf)
    waker = wake.Waker(transport, conf)
    listener, counter = listening(conf, transport, waker)
    other, other_counter = listening(conf, transport, waker)
    listener.stop()
    counter.ready.clear()
    other_counter.ready.clear()
    waker.wake()
    assert other_counter.ready.wait(HANG_SECONDS)
    assert not counter.ready.is_set()
    other.stop()
    waker.stop()


@pytest.mark.parametrize("trouble", ["absent", "hanging"])
def test_wake_never_raises_nor_blocks_and_comes_back(rabbit: Rabbit, tcp_proxies: list[TcpProxy], trouble: str) -> None:
    proxy = TcpProxy(rabbit.host(), rabbit.port())
    tcp_proxies.append(proxy)
    with overriding(rabbit.through(proxy.port).overrides) as conf:
        transport = get_transport(conf)
        waker = wake.Waker(transport, conf)
        proxy.refuse() if trouble == "absent" else proxy.stall()
        counter = Counter()
        began = time.monotonic()
        listener = wake.listen(transport, conf, counter)
        for _ in range(1000):
            waker.wake()
        assert time.monotonic() - began < HANG_SECONDS / 4
        # Long enough for it to have met the trouble.
        threading.Event().wait(1.0)
        proxy.resume()
        eventually(lambda: waker.wake() or counter.count)
        proxy.refuse() if trouble == "absent" else proxy.stall()
        began = time.monotonic()
        listener.stop()
        assert time.monotonic() - began < HANG_SECONDS / 4
        waker.stop()
        proxy.resume()


def test_listeners_leave_no_queue_behind(rabbit: Rabbit, rabbit_conf: cfg.ConfigOpts) -> None:
    transport = get_transport(rabbit_conf)
    waker = wake.Waker(transport, rabbit_conf)
    listener, _counter = listening(rabbit_conf, transport, waker)
    listener.stop()
    waker.stop()
    assert rabbit.ready(rabbit.scheduler_topic) == -1
