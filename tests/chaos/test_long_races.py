"""The races and losses of the normal tests, for longer and on more databases."""

from collections.abc import Callable

import pytest

from tests.fixtures.contract import Desk
from tests.fixtures.databases import KINDS
from tests.fixtures.deployment import Deployment
from tests.fixtures.races import finish_against_recovery
from tests.fixtures.tcp_proxy import TcpProxy
from tests.functional.test_leases import outlast_an_outage
from tests.functional.test_orders_concurrent import steer_at_random
from tests.functional.test_tasks_tickets import lose_all_tickets

pytestmark = pytest.mark.timeout(1800)


def test_t4_a_finish_racing_a_recovery_two_thousand_times(desk: Desk) -> None:
    """FAILURES T4."""
    finish_against_recovery(desk, times=2000)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_t14_a_database_that_is_gone_for_thirty_seconds(
    make_deployment: Callable[[str], Deployment], tcp_proxies: list[TcpProxy], kind: str
) -> None:
    """FAILURES T14: ten times the lease."""
    outlast_an_outage(make_deployment(kind), tcp_proxies, tasks=20, seconds=30.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_orders_lose_all_their_tickets_twice(
    make_deployment: Callable[[str], Deployment], kind: str
) -> None:
    lose_all_tickets(make_deployment(kind), orders=1000)


@pytest.mark.parametrize("kind", KINDS)
def test_t12_steered_at_random_for_a_minute(make_deployment: Callable[[str], Deployment], kind: str) -> None:
    """FAILURES T12."""
    steer_at_random(make_deployment(kind), orders=200, seconds=60.0)
