"""What stands between oslo.messaging's dispatcher and an endpoint, and records each call."""

import functools
import types
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from retryflow.tracking.marks import is_untracked
from retryflow.tracking.record import TrackedMethod
from retryflow.tracking.tracker import TaskTracker


class TrackingEndpointWrapper:
    """Give it to the RPC server in place of the endpoint: each call of a public method is recorded while it runs.

    ``target``, attributes that are no methods, private names and methods marked with
    :func:`~retryflow.tracking.untracked_rpc_method` pass through untouched. A method is wrapped once, at its first use.
    A method that returns a future is recorded until that is done.
    Marks of the access policy (``exposed``) stay visible. Methods, functions and partials are tracked; any other
    callable object only if it is marked ``exposed``. (The task tracking specification's sample wraps the target too,
    makes a closure for each look-up, and returns the method in place of calling it.)

    :param endpoint: the object whose methods the dispatcher calls.
    :param tracker: where calls are recorded; ``None`` takes ``endpoint.tracker``, or else a new one.
    """

    def __init__(self, endpoint: object, tracker: TaskTracker | None = None) -> None:
        self._endpoint = endpoint
        self._tracker = tracker or getattr(endpoint, "tracker", None) or TaskTracker()

    @property
    def target(self) -> Any:
        """The endpoint's; asked for with every message, hence not left to ``__getattr__``. ``None`` if it has none."""
        return getattr(self._endpoint, "target", None)

    def __getattr__(self, name: str) -> Any:
        # copy and pickle ask an object that has no attributes yet; without this they would recurse for ever.
        if name.startswith("__") or "_endpoint" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        attribute = getattr(self._endpoint, name)
        if name.startswith("_") or not _is_rpc_method(attribute) or is_untracked(attribute):
            return attribute
        tracked = _track(self._endpoint, name, attribute, self._tracker)
        self.__dict__[name] = tracked
        return tracked

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._endpoint!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"_endpoint": self._endpoint, "_tracker": self._tracker}


def _is_rpc_method(attribute: object) -> bool:
    if isinstance(attribute, types.MethodType | types.FunctionType | types.BuiltinMethodType | functools.partial):
        return True
    # Other objects may be callable for reasons of their own (a Target is, and so is a ConfigOpts).
    return callable(attribute) and not isinstance(attribute, type) and hasattr(attribute, "exposed")


def _track(endpoint: object, name: str, attribute: Callable[..., Any], tracker: TaskTracker) -> Callable[..., Any]:
    method = TrackedMethod(name, attribute)
    table, next_key, clock, end = tracker.table, tracker.next_key, tracker.clock, tracker.end

    def tracked(*args: Any, **kwargs: Any) -> Any:
        key = next_key()
        table[key] = (method, clock(), args, kwargs)
        failed = True
        try:
            # Looked up at each call, so that a method replaced later (a test's patch) is the one that runs.
            result = getattr(endpoint, name)(*args, **kwargs)
            failed = False
            if result is not None and isinstance(result, Future):
                result.add_done_callback(functools.partial(tracker.record_end, key))
                key = 0
            return result
        finally:
            end(key, failed)

    if isinstance(attribute, types.MethodType | types.FunctionType):
        return functools.wraps(attribute)(tracked)
    tracked.__name__ = name
    if hasattr(attribute, "exposed"):
        tracked.exposed = attribute.exposed  # type: ignore[attr-defined]
    return tracked
