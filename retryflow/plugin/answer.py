"""Looks at what a plugin answered before anything is done with it (promise P8: one bad plugin never stops others)."""

import json
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from retryflow.errors import RetryflowError
from retryflow.plugin.interface import CertificateResult, ResultStatus
from retryflow.plugin.state import is_storable

MAXIMUM_RETRY_AFTER_SECONDS = 366 * 86400.0
"""Longer than the slowest authority; a larger number is an error of unit, milliseconds or a timestamp."""

MAXIMUM_TEXT_CHARACTERS = 1024 * 1024


class InvalidPluginAnswer(RetryflowError):
    """A plugin's answer cannot be used; the message says what is wrong with it, for the plugin's author."""


def checked_answer(answer: object, *, tasks: Collection[str]) -> CertificateResult:
    """The answer of a plugin, once it is known to be a good one.

    :param answer: whatever the plugin's method returned.
    :param tasks: the tasks that ``retry_method`` may name.
    :returns: the same answer, with ``status`` a :class:`ResultStatus` and ``retry_after_seconds`` a float or ``None``.
    :raises InvalidPluginAnswer: it is none, or a part of it is of no use.
    """
    if not isinstance(answer, CertificateResult):
        raise InvalidPluginAnswer(f"answered {_shown(answer)} instead of a CertificateResult")
    # The annotations of a dataclass bind nobody at run time.
    status: Any = answer.status
    method: Any = answer.retry_method
    for name in ("status_message", "certificate", "chain", "intermediates"):
        _check_text(name, getattr(answer, name))
    if method is not None and (not isinstance(method, str) or method not in tasks):
        raise InvalidPluginAnswer(f"gave the unknown retry_method {_shown(method)}; known: {', '.join(sorted(tasks))}")
    status = _checked_status(status)
    if status is ResultStatus.CERTIFICATE_GENERATED and not (answer.certificate or "").strip():
        raise InvalidPluginAnswer('answered "certificate generated" without a certificate')
    _check_details(answer.details)
    return replace(answer, status=status, retry_after_seconds=_checked_delay(answer.retry_after_seconds))


def _check_text(name: str, text: object) -> None:
    if text is None:
        return
    if not isinstance(text, str):
        raise InvalidPluginAnswer(f"gave {name} as {_shown(text)} instead of text")
    if len(text) > MAXIMUM_TEXT_CHARACTERS or not is_storable(text):
        raise InvalidPluginAnswer(f"gave {name} with NUL characters, lone surrogates, or more than 1 MiB")


def _checked_status(status: object) -> ResultStatus:
    if isinstance(status, str):
        try:
            return ResultStatus(status)
        except ValueError:
            pass
    raise InvalidPluginAnswer(f"gave the unknown status {_shown(status)}; known: {', '.join(ResultStatus)}")


def _checked_delay(seconds: object) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidPluginAnswer(f"gave retry_after_seconds as {_shown(seconds)} instead of a number")
    if not 0 <= seconds <= MAXIMUM_RETRY_AFTER_SECONDS:
        raise InvalidPluginAnswer(
            f"gave {_shown(seconds)} as retry_after_seconds; "
            f"possible are seconds from 0 to {MAXIMUM_RETRY_AFTER_SECONDS:.0f}"
        )
    return float(seconds)


def _check_details(details: object) -> None:
    if not isinstance(details, dict):
        raise InvalidPluginAnswer(f"gave details as {_shown(details)} instead of a dict")
    try:
        # Strict: NaN is no JSON, and PostgreSQL and MariaDB refuse it only at commit.
        json.dumps(details, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPluginAnswer(f"gave details that are not JSON: {_one_line(str(error))}") from None


def _shown(value: object) -> str:
    """A short and harmless name of a wrong value: text and containers may hold secrets, so only their type is told."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**20 else "a huge int"
    if isinstance(value, str):
        return repr(value[:40])
    return f"a {type(value).__name__}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
