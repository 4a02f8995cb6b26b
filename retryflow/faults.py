"""Fault points: named places where a test can kill or pause the process; no-ops in every other process.

``RETRYFLOW_FAULTS`` in the environment names them: ``finish.before_commit=kill`` or
``dispatch.before_send=pause:/some/file``
(pauses until the file is gone), comma-separated; ``name=kill@3`` acts at the third pass. It is read once, at import.
"""

import os
import pathlib
import signal
import threading
import time

_POINTS: dict[str, list[str]] = {}
_PASSED: dict[str, int] = {}
_lock = threading.Lock()

for _entry in filter(None, os.environ.get("RETRYFLOW_FAULTS", "").split(",")):
    _name, _, _action = _entry.partition("=")
    _POINTS.setdefault(_name, []).append(_action)


def point(name: str) -> None:
    """Act if a test switched this point on."""
    if not _POINTS:
        return
    for entry in _POINTS.get(name, ()):
        action, _, wanted = entry.partition("@")
        with _lock:
            _PASSED[name] = passed = _PASSED.get(name, 0) + 1
        if wanted and passed != int(wanted):
            continue
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action.startswith("pause:"):
            path = action.removeprefix("pause:")
            pathlib.Path(path).touch()
            while pathlib.Path(path).exists():
                time.sleep(0.01)
