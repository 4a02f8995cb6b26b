"""A process killed at each point of submit, claim, finish and recover, on each database (promises P1 and P2).

After each: the order ends, it has one committed outcome, and a second run only where the kill fell between claim and
finish.
"""

import pytest

from retryflow.model.orders import ACTIVE
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.outcome import Done
from tests.fixtures.contract import Desk, new_id
from tests.fixtures.one_step import StepServer


def complete(desk: Desk, order_id: str) -> list[str]:
    """What schedulers and workers do until the order has ended.

    :returns: which workers ran it.
    """
    runs = []
    for _ in range(5):
        if desk.order(order_id).status != "PENDING":
            break
        assert desk.is_moving(order_id)
        lease = desk.lease(order_id)
        if lease is not None and lease.holder is not None:
            desk.expire(lease.id)
            assert desk.recover(order_id)
        if desk.lease(order_id) is None:
            desk.dispatch(order_id)
        claimed = desk.claim(order_id, "heir")
        runs.append("heir")
        desk.finish(claimed, Done(result={"by": "heir"}), "heir")
    assert desk.order(order_id).status == ACTIVE
    assert desk.is_moving(order_id)
    assert desk.history(order_id).count("done") == 1
    return runs


@pytest.mark.parametrize(
    ("point", "there"), [("submit.before_commit", False), ("submit.after_commit", True), ("send.after", True)]
)
def test_t9_a_submit_killed_anywhere_is_whole_or_not_there(
    desk: Desk, steps: StepServer, point: str, there: bool
) -> None:
    """FAILURES T9 and S4: no ticket without its order, no order without its next step."""
    order_id = new_id()
    steps.killed(desk.url, "submit", order_id, at=point)
    assert (desk.order(order_id) is not None) is there
    if there:
        assert desk.lease(order_id).holder is None
        assert complete(desk, order_id) == ["heir"]


@pytest.mark.parametrize("step", ["done", "done together", "poll"])
@pytest.mark.parametrize(
    ("point", "said", "recovered", "heirs"),
    [
        ("claim.before_commit", [], False, 1),
        ("claim.after_commit", [], True, 1),
        ("finish.after_fence", ["ran"], True, 1),
        ("finish.before_commit", ["ran"], True, 1),
        ("finish.after_commit", ["ran"], False, 0),
    ],
)
def test_t1_a_worker_killed_anywhere_loses_and_doubles_nothing(
    desk: Desk, steps: StepServer, step: str, point: str, said: list[str], recovered: bool, heirs: int
) -> None:
    """FAILURES T1: a second run only for a kill between the claim's commit and the finish's."""
    order_id = desk.submit()
    task_id = desk.lease(order_id).id
    assert steps.killed(desk.url, step, task_id, at=point) == said
    if step == "poll" and point == "finish.after_commit":
        assert desk.plugin_state(order_id) == [("k", "v")]
        assert desk.rows(order_id)[0].step == 1
        heirs = 1
    else:
        assert desk.plugin_state(order_id) == []
    assert len(complete(desk, order_id)) == heirs
    assert ("crashed" in desk.history(order_id)) is recovered
    assert desk.order(order_id).result == {"by": "heir" if heirs else "victim"}
    assert claim(desk.engine, task_id, holder="late", lease_seconds=20.0, also_crashed=True) is NotClaimed.GONE


@pytest.mark.parametrize("step", ["recover expired", "recover dead"])
@pytest.mark.parametrize("point", ["recover.after_fence", "recover.before_commit"])
def test_a_recovery_killed_anywhere_is_done_by_the_next_one(
    desk: Desk, steps: StepServer, step: str, point: str
) -> None:
    """Nothing of it stays, and the crash is counted once."""
    holder = new_id()
    claimed = desk.running(holder)
    order_id = claimed.state.order_id
    if step == "recover expired":
        desk.expire(claimed.task_id)
    steps.killed(desk.url, step, claimed.task_id if step == "recover expired" else holder, at=point)
    assert desk.lease(order_id).holder == holder
    assert desk.rows(order_id) == []
    assert complete(desk, order_id) == ["heir"]
    assert desk.history(order_id) == ["submitted", "crashed", "done"]
