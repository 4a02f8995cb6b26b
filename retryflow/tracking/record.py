"""What is known of one task in progress. Identifiers are worked out only when somebody asks."""

import contextlib
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["sync", "async", "periodic"]

CONTEXT_ARGUMENTS = ("context", "ctxt", "ctx")
ENTITY_ARGUMENTS = (
    "order_id",
    "order",
    "instance_uuid",
    "instance_id",
    "instance",
    "entity_id",
    "entity",
    "volume_id",
    "volume",
    "node_id",
    "node",
)
_LONGEST_ID = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task in progress, or one that has ended during the drain.

    :param key: what :meth:`~retryflow.tracking.TaskTracker.record_start` returned.
    :param name: the RPC method, job or periodic task.
    :param request_id: of the request that caused it, if known.
    :param entity_id: what it works on (an order, an instance), if known.
    :param kind: ``sync`` (ends with its method), ``async`` (ends with its future) or ``periodic``.
    :param started: on the monotonic clock.
    :param arguments: of the call, by name; for whoever hands the task back. Not shown, since they may be secret.
    """

    key: int
    name: str
    request_id: str | None = None
    entity_id: str | None = None
    kind: Kind = "sync"
    started: float
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a task during the drain; ``seconds`` is how long it ran."""

    record: TaskRecord
    seconds: float
    failed: bool


class TrackedMethod:
    """One RPC method as the tracker knows it; made once per method, so that a call stores only its arguments."""

    __slots__ = ("_method", "_parameters", "name")

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        self.name = name
        self._method = method
        self._parameters: Sequence[str] | None = None

    def record(self, key: int, started: float, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TaskRecord:
        """The record of one call. Whatever the arguments are, it does not raise."""
        arguments = {**dict(zip(self._names(), args, strict=False)), **kwargs}
        return TaskRecord(
            key=key,
            name=self.name,
            request_id=_request_id(args, kwargs) or _text(arguments.get("request_id")),
            entity_id=_entity_id(arguments),
            started=started,
            arguments=arguments,
        )

    def _names(self) -> Sequence[str]:
        if self._parameters is None:
            self._parameters = ()
            with contextlib.suppress(Exception):  # some callables have no signature
                self._parameters = tuple(inspect.signature(self._method).parameters)
        return self._parameters


def _request_id(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    candidates = [*args[:1], *(kwargs[name] for name in CONTEXT_ARGUMENTS if name in kwargs)]
    for context in candidates:
        found = _member(context, "request_id")
        if found is not None:
            return found
    return None


def _entity_id(arguments: Mapping[str, Any]) -> str | None:
    for name in ENTITY_ARGUMENTS:
        value = arguments.get(name)
        found = _text(value) or _member(value, "uuid") or _member(value, "id")
        if found is not None:
            return found
    return None


def _member(holder: Any, name: str) -> str | None:
    # A lazy-loading property may raise anything; finding no id must not fail a call (Nova's RPC failed here).
    with contextlib.suppress(Exception):
        return _text(holder[name] if isinstance(holder, Mapping) else getattr(holder, name, None))
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return " ".join(value.split())[:_LONGEST_ID] or None
    if isinstance(value, uuid.UUID | int) and not isinstance(value, bool):
        return str(value)
    return None
