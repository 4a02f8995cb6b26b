"""What a check has found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BROKEN = "broken"
"""Orders do not move, or promises are not kept."""
WARNING = "warning"
"""It works, but not as it should, or not for long."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    :param check: a short name, the same for each finding of its kind, for scripts.
    :param what: a sentence on what was found.
    :param remedy: what to do.
    :param fix: repairs it and says what it did; ``None`` if it is for a person to repair.
    """

    check: str
    what: str
    remedy: str
    severity: str = BROKEN
    fix: Callable[[], str] | None = None
