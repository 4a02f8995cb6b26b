"""What a task says at its end: the five outcomes (retry specification, R-1 and R-2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST_DELAY_SECONDS = 366 * 86_400.0
"""Longer than the slowest authority; a larger number is an error of unit, milliseconds or a timestamp."""


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What every outcome may carry along; it is written in the transaction that commits the outcome.

    :param state: plugin state to keep (added to what is kept already), text values by key.
    :param plugin_name: the plugin that now owns the order; ``None`` leaves it as it is.
    :param sub_status: short machine-readable word for the order; ``None`` leaves it.
    :param sub_status_message: a sentence for the user; ``None`` leaves it.
    """

    state: Mapping[str, str] = field(default_factory=dict)
    plugin_name: str | None = None
    sub_status: str | None = None
    sub_status_message: str | None = None


@dataclass(frozen=True, kw_only=True)
class Done(_Outcome):
    """The order is finished: ACTIVE, with ``result`` (a JSON object)."""

    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Poll(_Outcome):
    """Nothing is wrong, but it is not finished: look again.

    :param after_seconds: wait at least so long, up to ``LONGEST_DELAY_SECONDS``; ``None``, and less than 0, takes
        ``[retry] default_poll_seconds``.
    :param task: the RPC method to run then; ``None`` runs the same again.
    """

    after_seconds: float | None = None
    task: str | None = None


@dataclass(frozen=True, kw_only=True)
class Retry(_Outcome):
    """It failed in a way that may pass: try again with backoff.

    :param reason: why, for the operator; kept as ``last_error``.
    :param after_seconds: wait so long, from 0 to ``LONGEST_DELAY_SECONDS``, instead of the policy's backoff;
        ``None``, and less than 0, takes that.
    :param task: the RPC method to run then; ``None`` runs the same again.
    :param counted: ``False`` leaves ``retry_count`` alone (only the give-up clock limits it).
    """

    reason: str
    after_seconds: float | None = None
    task: str | None = None
    counted: bool = True


@dataclass(frozen=True, kw_only=True)
class Fail(_Outcome):
    """It can never succeed: the order goes to ERROR.

    :param code: an HTTP-like status (``"400"``: the client's fault, ``"500"``: ours).
    :param reason: a sentence that the user may read.
    """

    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Continue(_Outcome):
    """This task is over; the order goes on with the retry rows it has (with none left it counts as a ``Retry``)."""


Outcome = Done | Poll | Retry | Fail | Continue
