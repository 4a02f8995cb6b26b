"""One received message, and what an endpoint method can say about it while it runs."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

from retryflow.queue.wire import Request

LATE = "_retryflow_late_acknowledge"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(eq=False, slots=True)
class Delivery:
    """A message that this process has in hand: waiting for a thread, or being worked on.

    All but ``request`` belongs to the intake's thread.

    :ivar subscription: under which it came.
    :ivar tag: how the broker's channel knows it; ``None`` when the broker no longer waits for an answer, or the
        connection is lost.
    :ivar settled: the broker has been told what became of it.
    """

    request: Request
    subscription: str = ""
    tag: int | None = None
    settled: bool = False
    claimed: bool = False
    unwanted: bool = False


class Settler(Protocol):
    """Who tells the broker what became of a message; every method may be called from any thread and returns at once."""

    def claimed(self, delivery: Delivery) -> None:
        """It need not be delivered again."""

    def unwanted(self, delivery: Delivery) -> None:
        """It has to be delivered again once the method has returned."""

    def over(self, delivery: Delivery) -> bool:
        """The task is over, and the next message may be begun; ``False`` if a caller waits for its answer."""


@dataclass(frozen=True, slots=True)
class _Current:
    settler: Settler
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class HandedBack:
    """A message that went back to the broker without having been begun."""

    method: str
    request_id: str | None
    order_id: str | None
    task_id: str | None

    @classmethod
    def of(cls, request: Request) -> "HandedBack":
        arguments = request.arguments
        return cls(request.method, request.request_id, arguments.get("order_id"), arguments.get("task_id"))


_current: ContextVar[_Current | None] = ContextVar("retryflow_delivery", default=None)


@contextlib.contextmanager
def delivering(settler: Settler, delivery: Delivery) -> Iterator[None]:
    """Within it, the functions below speak of ``delivery``."""
    token = _current.set(_Current(settler, delivery))
    try:
        yield
    finally:
        _current.reset(token)


def acknowledge() -> None:
    """Say, from within an endpoint method, that its message need not be delivered again: its claim is committed.

    Returns at once and never raises; the broker is told within a second or so, at the latest when the method returns.
    Without effect in a method that was not exposed with ``late_acknowledge``, outside of one, and on transports that
    acknowledge by themselves.
    """
    if current := _current.get():
        current.settler.claimed(current.delivery)


def hand_back() -> None:
    """Say, from within an endpoint method, that nothing was claimed and another worker should have the message.

    For a claim that could not even be tried, such as with the database away. Takes effect when the method returns,
    and, like :func:`acknowledge`, only where messages are acknowledged late.
    """
    if current := _current.get():
        current.settler.unwanted(current.delivery)


def make_room() -> bool:
    """Say, from within an endpoint method, that its task is over and only its outcome is still to be stored.

    The next message is begun beside it at once. To be called after :func:`acknowledge`.

    :returns: whether the method may leave storing the outcome to others and return a future of it. ``False`` where
        :func:`acknowledge` is without effect, or somebody waits for the method's answer.
    """
    current = _current.get()
    return current is not None and current.settler.over(current.delivery)


@overload
def expose(method: F) -> F: ...


@overload
def expose(*, late_acknowledge: bool = False) -> Callable[[F], F]: ...


def expose(method: F | None = None, *, late_acknowledge: bool = False) -> F | Callable[[F], F]:
    """Mark an endpoint method that RPC clients may call; unmarked ones cannot be reached.

    :param late_acknowledge: the method calls :func:`acknowledge` itself once its claim is committed, so that a crash
        before that lets another worker have the message. Otherwise the message is acknowledged before the method runs:
        it runs at most once.
    """

    def mark(function: F) -> F:
        function.exposed = True  # type: ignore[attr-defined]
        setattr(function, LATE, late_acknowledge)
        return function

    return mark(method) if method is not None else mark


def is_late(method: object) -> bool:
    """Whether the method was exposed with ``late_acknowledge``."""
    return getattr(method, LATE, False) is True
