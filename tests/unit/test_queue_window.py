"""How many messages the broker may push."""

import pytest

from retryflow.queue.window import STALL_SECONDS, Window


def test_an_idle_process_lets_in_all_that_it_has_room_for() -> None:
    window = Window(20)
    assert window.should_change(0, 0.0)
    assert window.open(0) == 20
    assert not window.should_change(0, 0.0)


def test_a_full_process_lets_in_nothing() -> None:
    """T6"""
    window = Window(20)
    assert window.open(20) == 0
    assert not window.should_change(20, 0.0)


@pytest.mark.parametrize("in_hand", range(21))
def test_what_is_in_hand_and_what_may_come_never_exceed_the_capacity(in_hand: int) -> None:
    """T6"""
    assert in_hand + Window(20).open(in_hand) <= 20


def test_a_full_subscription_is_left_alone() -> None:
    window = Window(20)
    window.open(0)
    for in_hand in range(1, 21):
        window.received()
        assert not window.should_change(in_hand, 100.0)


def test_a_subscription_that_is_far_too_small_is_changed_at_once() -> None:
    window = Window(20)
    window.open(19)
    assert not window.should_change(19, 0.0)
    assert window.should_change(17, 0.0)


def test_an_idle_process_goes_back_to_its_capacity() -> None:
    window = Window(20)
    window.open(5)
    assert not window.should_change(1, 0.0)
    assert window.should_change(0, 0.0)


def test_an_exhausted_subscription_is_changed_only_when_it_stays_so() -> None:
    window = Window(10)
    window.open(5)
    for _ in range(5):
        window.received()
    assert not window.should_change(6, 1.0)
    assert window.look_again_at == 1.0 + STALL_SECONDS
    window.answered()
    assert not window.should_change(6, 2.0)
    assert window.look_again_at is None
    window.received()
    assert not window.should_change(6, 3.0)
    assert window.should_change(6, 3.0 + STALL_SECONDS)


def test_a_new_subscription_starts_afresh() -> None:
    window = Window(10)
    window.open(5)
    window.received()
    window.should_change(9, 1.0)
    window.open(0)
    assert window.prefetch == 10
    assert window.look_again_at is None
