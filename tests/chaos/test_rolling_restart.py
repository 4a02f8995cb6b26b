"""The long form of the rolling restart; the short one is in ``tests/functional/test_stop_orders.py``."""

from retryflow.queue.client import TaskClient
from tests.fixtures.deployment import Deployment
from tests.functional.test_stop_orders import _rolling_restart, deployment, sender

__all__ = ["deployment", "sender"]


def test_a_minute_of_rolling_restarts_disturbs_no_order(deployment: Deployment, sender: TaskClient) -> None:
    """Three workers, one after the other, under a steady stream of orders for 60 s."""
    _rolling_restart(deployment, sender, 60.0)
