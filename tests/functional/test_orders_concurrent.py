"""Clients and operators at work on orders that real daemons work on at the same moment (FAILURES T12, T7)."""

import random
import threading
import time
from collections.abc import Callable

from retryflow.errors import WrongOrderState
from retryflow.model.orders import ACTIVE, ERROR
from retryflow.retry.steer import cancel_order, delete_order, retry_order, update_order
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually


def test_t12_update_cancel_delete_and_retry_beside_running_workers(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """FAILURES T12, and point 6: while tasks of the same orders run, wait and are taken up, by two workers and two
    schedulers; nothing is lost, doubled or stuck.
    """
    steer_at_random(make_deployment("postgresql"), orders=40, seconds=4.0)


def steer_at_random(deployment: Deployment, *, orders: int, seconds: float) -> None:
    """Do something to one of the orders, again and again, from three threads."""
    for kind in ("scheduler", "scheduler", "worker", "worker"):
        deployment.start(kind, ready=False)
    eventually(lambda: deployment.consumers() == 2, "the workers consume", timeout_seconds=60)
    ids = deployment.submit(orders, steps=["poll 0.1", "sleep 0.05|done", "poll 0.2", "poll 0.1", "nap 0.2"], version=0)
    said: dict[str, list[object]] = {order_id: [] for order_id in ids}
    over = threading.Event()
    unexpected: list[BaseException] = []

    def steer(seed: int) -> None:
        draw = random.Random(seed)
        while not over.is_set():
            order_id = draw.choice(ids[: orders // 2])
            what = draw.choice(["update", "update", "cancel", "retry"])
            try:
                if what == "update":
                    meta = {"trace": str(deployment.trace), "steps": ["poll 0.1", "done"], "version": draw.random()}
                    update_order(deployment.engine, order_id, meta)
                elif what == "cancel":
                    cancel_order(deployment.engine, order_id)
                else:
                    retry_order(deployment.engine, order_id, settings=deployment.settings)
                said[order_id].append(what)
            except WrongOrderState:
                pass
            except Exception as error:
                unexpected.append(error)
            over.wait(0.01)

    threads = [threading.Thread(target=steer, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    over.wait(seconds)
    deleted = ids[orders // 2 : orders // 2 + 5]
    for order_id in deleted:
        delete_order(deployment.engine, order_id)
    over.set()
    for thread in threads:
        thread.join()
    assert unexpected == []
    statuses = deployment.wait_until_ended(timeout_seconds=90)
    assert set(statuses) <= {ACTIVE, ERROR}
    assert sum(statuses.values()) == orders - len(deleted)
    deployment.wait_until_nothing_is_left()
    for order_id in ids:
        if order_id in deleted:
            assert deployment.order(order_id) is None
            continue
        order, history = deployment.order(order_id), [event.event for event in deployment.history(order_id)]
        assert "crashed" not in history
        # Between two beginnings of an order there is exactly one end.
        ends = [event for event in history if event in ("done", "failed", "cancelled")]
        assert len(ends) == history.count("retry requested") + 1, history
        assert (order.status == ACTIVE) == (ends[-1] == "done")
        assert history.count("cancelled") == said[order_id].count("cancel")
    steered = sum(map(len, said.values()))
    print(f"{steered} changes to {orders // 2} orders: {statuses}")


def test_an_update_during_a_running_task_is_looked_at_by_the_next_run(
    make_deployment: Callable[[str], Deployment],
) -> None:
    """Point 6, through daemons: none is overlooked, and only the last one counts."""
    deployment = make_deployment("mysql")
    deployment.start("scheduler", ready=False)
    deployment.start("worker")
    hold = deployment.directory / "hold"
    hold.touch()
    steps = [f"linger {hold}", "done"]
    [order_id] = deployment.submit(steps=steps, version=0)
    eventually(lambda: deployment.runs("start"), "it runs")
    for version in range(1, 6):
        meta = {"trace": str(deployment.trace), "steps": steps, "version": version}
        update_order(deployment.engine, order_id, meta)
    hold.unlink()
    assert deployment.wait_until_ended() == {ACTIVE: 1}
    assert [run.word for run in deployment.runs("updated")] == ["5"]
    assert [run.step for run in deployment.runs("start")] == [0, 1]
    assert deployment.order(order_id).meta["version"] == 5


def test_t7_the_plugins_delays_and_the_caps_are_honoured(make_deployment: Callable[[str], Deployment]) -> None:
    """FAILURES T7 through daemons: never early, counted apart, and ended with the reason."""
    deployment = make_deployment("sqlite")
    deployment.start("scheduler", ready=False)
    deployment.start("worker", {("retry", "maximum_attempts"): 3})
    [patient] = deployment.submit(steps=["poll 1.2", "retry 0.7|retry 0|done"])
    [failing] = deployment.submit(steps=["unavailable"])
    assert deployment.wait_until_ended() == {ACTIVE: 1, ERROR: 1}
    runs = [run for run in deployment.runs("start") if run.order_id == patient]
    assert [(run.step, run.retry_count, run.poll_count) for run in runs] == [(0, 0, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1)]
    ends = [run.at for run in deployment.runs("end") if run.order_id == patient]
    assert runs[1].at - ends[0] >= 1.2
    assert runs[2].at - ends[1] >= 0.7
    assert [run.retry_count for run in deployment.runs("start") if run.order_id == failing] == [0, 1, 2]
    assert "gave up after 3 attempts" in deployment.order(failing).error_reason
    assert "the backend is away" in deployment.order(failing).error_reason
    print(f"late by {runs[1].at - ends[0] - 1.2:.3f} s and {runs[2].at - ends[1] - 0.7:.3f} s; now {time.time():.0f}")
