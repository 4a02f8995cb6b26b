"""An order's whole way with separate daemons on RabbitMQ and each database."""

from tests.fixtures.deployment import Deployment


def test_an_order_that_polls_and_retries_comes_out_active(deployment: Deployment) -> None:
    deployment.start("worker")
    deployment.start("scheduler")
    [order_id] = deployment.submit(steps=["poll 0.3", "retry 0.2|done"])
    assert deployment.wait_until_ended() == {"ACTIVE": 1}
    assert [(run.step, run.retry_count) for run in deployment.runs("start")] == [(0, 0), (1, 0), (1, 1)]
    assert [event.event for event in deployment.history(order_id)] == ["submitted", "polling", "retrying", "done"]
    deployment.wait_until_nothing_is_left()
