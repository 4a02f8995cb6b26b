"""Who a process is, and whether another one is provably dead (S8)."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from retryflow.model import identity
from retryflow.model.identity import ProcessIdentity, own_identity, provably_dead


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def _identity_of(pid: int) -> ProcessIdentity:
    status = identity._status(pid)
    assert status is not None
    return dataclasses.replace(own_identity(), holder=f"host:{pid}:token", pid=pid, start_ticks=status[1])


def test_s8_two_starts_on_one_host_are_two_identities() -> None:
    """S8: an identity that is the host name makes three leaders of one host."""
    first, second = own_identity(), own_identity()
    assert first.holder != second.holder
    assert first.holder.startswith(f"{first.host}:{os.getpid()}:")
    assert len(first.holder) <= 255 - 9


def test_a_running_process_is_not_dead_nor_is_this_one(child: subprocess.Popen[bytes]) -> None:
    assert not provably_dead(_identity_of(child.pid), observer=own_identity())
    assert not provably_dead(own_identity(), observer=own_identity())


def test_a_paused_process_is_not_dead(child: subprocess.Popen[bytes]) -> None:
    other = _identity_of(child.pid)
    child.send_signal(signal.SIGSTOP)
    assert not provably_dead(other, observer=own_identity())


def test_a_killed_process_is_dead_even_before_its_parent_has_noticed(child: subprocess.Popen[bytes]) -> None:
    other = _identity_of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert provably_dead(other, observer=own_identity()), "it is a zombie"
    child.wait()
    assert provably_dead(other, observer=own_identity()), "it is gone"


def test_a_pid_in_use_again_is_another_process(child: subprocess.Popen[bytes]) -> None:
    other = _identity_of(child.pid)
    assert other.start_ticks is not None
    assert provably_dead(dataclasses.replace(other, start_ticks=other.start_ticks - 1), observer=own_identity())


@pytest.mark.parametrize(
    "unlike",
    [
        {"boot_id": "another boot"},
        {"pid_namespace": 1},
        {"boot_id": None},
        {"pid_namespace": None},
        {"start_ticks": None},
    ],
)
def test_in_doubt_nothing_is_proven(unlike: dict[str, object]) -> None:
    """Host names are not compared: two containers, or two machines, may have the same one."""
    gone = dataclasses.replace(own_identity(), pid=2**22 + 1)
    assert provably_dead(gone, observer=own_identity())
    assert not provably_dead(dataclasses.replace(gone, **unlike), observer=own_identity())  # type: ignore[arg-type]


def test_without_proc_nothing_is_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    gone = dataclasses.replace(own_identity(), pid=2**22 + 1)
    observer = own_identity()
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    assert not provably_dead(gone, observer=observer)


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """With hidepid, as under systemd's ProtectProc, other users' processes have no directory there."""
    observer, other = own_identity(), _identity_of(1)
    monkeypatch.setattr(identity, "_status", partial(_hidden, identity._status))
    assert not provably_dead(dataclasses.replace(other, start_ticks=1), observer=observer)


def _hidden(status: Callable[[int], object], pid: int) -> object:
    proc, identity._PROC = identity._PROC, Path("/nonexistent")
    try:
        return status(pid)
    finally:
        identity._PROC = proc


def test_a_name_with_blanks_and_parentheses_is_read_right(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(4, 22))
    (tmp_path / "7/stat").write_text(f"7 (a ) Z (b) S {fields} 4711 0\n")
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    assert identity._status(7) == ("S", 4711)
