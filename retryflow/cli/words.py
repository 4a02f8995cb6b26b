"""Lengths of time, as people write and read them."""

import argparse
import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# A hundred years: further back than any order, and not before the first moment that a database knows.
_GREATEST_DAYS = 36500
_STEPS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def seconds_of(text: str) -> float:
    """Read a length of time: ``90``, ``90s``, ``15m``, ``2h``, ``3d``, ``1w``, ``1d12h``.

    :returns: seconds.
    :raises argparse.ArgumentTypeError: it is none, or longer than databases can reckon with.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time; write it like 90, 90s, 15m, 2h, 3d or 1d12h")
    seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
    if seconds > _GREATEST_DAYS * _UNITS["d"]:
        raise argparse.ArgumentTypeError(f"{text!r} is too long; the greatest length of time is {_GREATEST_DAYS}d")
    return seconds


def number_from_1(text: str, *, up_to: int | None = None) -> int:
    """Read a number.

    :param up_to: the largest one that is allowed.
    :raises argparse.ArgumentTypeError: it is none, or not in this range.
    """
    # Digits of other scripts are decimal as well, but nobody means them.
    if not (text.isascii() and text.isdecimal()) or int(text) < 1 or (up_to is not None and int(text) > up_to):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1" + ("" if up_to is None else f" to {up_to}"))
    return int(text)


def storable(text: str) -> str:
    """Read what a database is searched for.

    :raises argparse.ArgumentTypeError: no text in a database has such characters: bytes of the command line that are
        no text in the locale's encoding, or NUL.
    """
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise argparse.ArgumentTypeError(f"{text!r} is no text (in the encoding of this locale)")
    return text


def length(seconds: float) -> str:
    """:returns: the two largest units of a length of time: ``4s``, ``3m 20s``, ``2h 5m``, ``3d 4h``."""
    left = int(abs(seconds) + 0.5)
    parts = []
    for unit, size in _STEPS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2 or (parts and not count):
            break
    sign = "-" if seconds <= -0.5 else ""
    return sign + (" ".join(parts) or "0s")


def distance(seconds_ago: float) -> str:
    """:returns: ``5s ago``, or ``in 5s`` for what is still to come."""
    return f"in {length(-seconds_ago)}" if seconds_ago < -0.5 else f"{length(seconds_ago)} ago"


def count(number: int, noun: str) -> str:
    """:returns: ``1 order``, ``2 orders``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
