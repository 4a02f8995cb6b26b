"""Lengths of time, written and read."""

import argparse

import pytest

from retryflow.cli import words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("3d", 259200),
        ("1w", 604800),
        ("1d12h", 129600),
        ("0.5", 0.5),
    ],
)
def test_lengths_are_read(text: str, seconds: float) -> None:
    assert words.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5x", "h", "1h soon", "1..2"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no length of time"):
        words.seconds_of(text)


@pytest.mark.parametrize("text", ["36500d1s", "99999999999d", "9" * 400])
def test_a_length_that_no_database_can_reckon_with_is_refused(text: str) -> None:
    assert words.seconds_of("36500d") == 36500 * 86400
    with pytest.raises(argparse.ArgumentTypeError, match=r"is too long; the greatest length of time is 36500d$"):
        words.seconds_of(text)


@pytest.mark.parametrize("text", ["0", "-1", "", "two", "1.5", "²", "٣"])
def test_what_is_no_number_from_1_is_refused(text: str) -> None:
    assert words.number_from_1("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match=r"is no number from 1$"):
        words.number_from_1(text)


def test_a_number_may_have_a_largest_one() -> None:
    assert words.number_from_1("10", up_to=10) == 10
    with pytest.raises(argparse.ArgumentTypeError, match="'11' is no number from 1 to 10"):
        words.number_from_1("11", up_to=10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (60, "1m"),
        (200, "3m 20s"),
        (3600, "1h"),
        (3605, "1h"),
        (7500, "2h 5m"),
        (100_000, "1d 3h"),
        (-5, "-5s"),
    ],
)
def test_lengths_are_written_with_their_two_largest_units(seconds: float, text: str) -> None:
    assert words.length(seconds) == text


def test_distances_look_back_and_ahead() -> None:
    assert words.distance(5) == "5s ago"
    assert words.distance(-5) == "in 5s"
    assert words.distance(-0.2) == "0s ago"
