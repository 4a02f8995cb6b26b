"""Tickets at hand: of copies one is worked on, whichever way its claim was made (FAILURES T3)."""

import time
from collections.abc import Callable, Sequence

import pytest

from retryflow.service.at_hand import AtHand
from retryflow.tracking import TaskTracker


def at_hand(tracker: TaskTracker | None = None, *, clock: Callable[[], float] = time.monotonic) -> AtHand[str]:
    return AtHand(tracker or TaskTracker(), fresh_seconds=5.0, clock=clock)


def orders(*task_ids: str) -> list[tuple[str, str]]:
    """Order id and task id of each."""
    return [(f"order of {task_id}", task_id) for task_id in task_ids]


class Claims:
    """Answers each ticket with its name in capitals."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, task_ids: Sequence[str]) -> Sequence[str]:
        self.asked.append(list(task_ids))
        return [task_id.upper() for task_id in task_ids]


def test_one_copy_gets_in_until_it_is_over() -> None:
    tickets = at_hand()
    first = tickets.enter("a")
    assert first is not None
    assert first.claimed is None
    assert tickets.enter("a") is None
    assert tickets.enter("b") is not None
    first.held.close()
    assert tickets.enter("a") is not None


def test_what_was_claimed_ahead_is_handed_to_one_copy_only() -> None:
    tickets, claims = at_hand(), Claims()
    tickets.claim_ahead(orders("a", "b", "a"), claims)
    assert claims.asked == [["a", "b"]]
    first = tickets.enter("a")
    assert first is not None
    assert first.claimed == "A"
    assert tickets.enter("a") is None
    first.held.close()
    # A copy that comes too late has to ask the database.
    late = tickets.enter("a")
    assert late is not None
    assert late.claimed is None


def test_what_is_worked_on_is_not_claimed_ahead() -> None:
    tickets, claims = at_hand(), Claims()
    assert tickets.enter("a") is not None
    tickets.claim_ahead(orders("a", "b"), claims)
    tickets.claim_ahead(orders("a", "b"), claims)
    assert claims.asked == [["b"]]
    assert tickets.enter("a") is None


@pytest.mark.parametrize("error", [ValueError("bad"), OSError("away")])
def test_after_claims_that_failed_each_claims_for_itself(error: Exception) -> None:
    tickets = at_hand()

    def fail(_task_ids: Sequence[str]) -> Sequence[str]:
        raise error

    tickets.claim_ahead(orders("a", "b"), fail)
    for task_id in ("a", "b"):
        entered = tickets.enter(task_id)
        assert entered is not None
        assert entered.claimed is None
        assert tickets.enter(task_id) is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_waits_for_what_is_claimed_ahead_until_it_is_entered(fails: bool) -> None:
    """Promise P7: between the claim and the task's own record nothing may be overlooked."""
    tracker = TaskTracker()
    tickets, claims = at_hand(tracker), Claims()
    during: list[bool] = []

    def claim(task_ids: Sequence[str]) -> Sequence[str]:
        during.append(tracker.idle)
        if fails:
            raise OSError("away")
        return claims(task_ids)

    tickets.claim_ahead(orders("a", "b"), claim)
    assert during == [False]
    tracker.begin_drain()
    assert [record.entity_id for record in tracker.in_progress()] == ["order of a", "order of b"]
    for task_id in ("a", "b"):
        assert not tracker.idle
        assert tickets.enter(task_id) is not None
    assert tracker.idle
    assert tracker.take_ends(0) == [], "the tasks have records of their own"


def test_an_old_claim_is_not_taken_for_granted() -> None:
    """Nobody has renewed it: perhaps another worker has the task by now."""
    moment = [0.0]
    tickets = at_hand(clock=lambda: moment[0])
    tickets.claim_ahead(orders("a", "b"), Claims())
    moment[0] = 4.9
    first = tickets.enter("a")
    moment[0] = 5.0
    second = tickets.enter("b")
    assert first is not None
    assert second is not None
    assert (first.claimed, second.claimed) == ("A", None)
    assert tickets.enter("b") is None
