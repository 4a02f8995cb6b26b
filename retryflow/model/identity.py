"""Who a process is, and whether another one is provably dead.

Host names do not identify processes (oban-py #32, Oban #862), and a pid alone may be in use again: a process is its
boot, its pid
namespace, its pid and its start time.
"""

import os
import pathlib
import secrets
import socket
from dataclasses import dataclass

_PROC = pathlib.Path("/proc")
_STATE_FIELD, _START_FIELD = 0, 19
_DEAD_STATES = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One running process.

    :param holder: ``host:pid:token``; the token is drawn anew at each start.
    :param boot_id: of the kernel; ``None`` where the system has no such thing, and then nothing can be proven.
    :param pid_namespace: inode of the pid namespace: pids of two containers are not the same pids.
    :param start_ticks: when the process began, in clock ticks since boot.
    """

    holder: str
    host: str
    pid: int
    boot_id: str | None
    pid_namespace: int | None
    start_ticks: int | None


def own_identity() -> ProcessIdentity:
    """:returns: the identity of this process; draw it once per process start, after any fork."""
    host, pid = socket.gethostname()[:200], os.getpid()
    status = _status(pid)
    return ProcessIdentity(
        holder=f"{host}:{pid}:{secrets.token_hex(8)}",
        host=host,
        pid=pid,
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        start_ticks=status[1] if status else None,
    )


def provably_dead(other: ProcessIdentity, *, observer: ProcessIdentity) -> bool:
    """Whether ``other`` has certainly ended, as seen from this process.

    In doubt the answer is ``False``: its lease then ends by itself. Host names are not compared.
    """
    if not other.boot_id or not other.pid_namespace or not other.start_ticks:
        return False
    if (other.boot_id, other.pid_namespace) != (observer.boot_id, observer.pid_namespace):
        return False
    try:
        status = _status(other.pid)
    except OSError:
        return False
    if status is None:
        return True
    state, start_ticks = status
    return state in _DEAD_STATES or start_ticks != other.start_ticks


def _boot_id() -> str | None:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_namespace() -> int | None:
    try:
        return (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def _status(pid: int) -> tuple[str, int] | None:
    """:returns: state and start of the process; ``None`` when there is no such process.
    :raises OSError: it cannot be told (no ``/proc``, no permission).
    """
    if not (_PROC / "self").exists():
        raise FileNotFoundError("/proc is not mounted")
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # /proc mounted with hidepid (systemd's ProtectProc=) shows nothing of other users' processes.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        raise
    # The name in parentheses may hold anything, also parentheses and spaces.
    fields = text.rpartition(")")[2].split()
    return fields[_STATE_FIELD], int(fields[_START_FIELD])
