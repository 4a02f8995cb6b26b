"""The mark that takes a method out of tracking, and how to find it beneath other decorators."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

MARK = "_skip_rpc_tracking"
_MAXIMUM_LAYERS = 32

F = TypeVar("F", bound=Callable[..., Any])


def untracked_rpc_method(method: F) -> F:
    """Mark an RPC method that a stop need not wait for: background work, or work that may be interrupted anywhere.

    It may stand above or below other decorators. The mark's name is the task tracking specification's.

    :param method: the function.
    :returns: the same function.
    """
    setattr(method, MARK, True)
    return method


def is_untracked(method: object) -> bool:
    """Whether ``method`` or anything that it wraps carries the mark.

    Decorators without ``functools.wraps`` hide it (``oslo_messaging.expected_exceptions`` is one), so their closures
    and partials are searched too.
    """
    return any(getattr(layer, MARK, False) is True for layer in _layers(method))


def _layers(method: object) -> Iterator[object]:
    waiting, seen = [method], set[int]()
    while waiting and len(seen) < _MAXIMUM_LAYERS:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        waiting.extend(_beneath(layer))


def _beneath(layer: object) -> Iterator[object]:
    if isinstance(layer, types.MethodType):
        yield layer.__func__
    elif isinstance(layer, functools.partial):
        yield layer.func
    elif (wrapped := getattr(layer, "__wrapped__", None)) is not None:
        # It names what is wrapped; other functions in the closure may be helpers with a mark of their own.
        yield wrapped
    elif isinstance(layer, types.FunctionType):
        for cell in layer.__closure__ or ():
            # A cell may be empty still.
            with contextlib.suppress(ValueError):
                if callable(cell.cell_contents):
                    yield cell.cell_contents
