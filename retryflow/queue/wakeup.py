"""Waiting for a socket and for other threads at the same time."""

import contextlib
import selectors
import socket
import threading
from typing import Any


class WakeUp:
    """One thread sleeps in :meth:`sleep`, any other may end its sleep with :meth:`wake`. Make it after the fork."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read_end, selectors.EVENT_READ)
        self._watched: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False

    def watch(self, sock: socket.socket | None) -> None:
        """Let the sleep end when ``sock`` has something to read, in place of the one watched so far."""
        if self._watched is not None:
            self._selector.unregister(self._watched)
        if sock is not None:
            self._selector.register(sock, selectors.EVENT_READ)
        self._watched = sock

    def sleep(self, seconds: float) -> bool:
        """Sleep until woken, or until the watched socket can be read: only then the answer is ``True``."""
        # TLS may have decrypted more than was asked for; the socket itself is silent then.
        pending: Any = getattr(self._watched, "pending", None)
        readable = bool(pending and pending())
        for key, _events in self._selector.select(0 if readable else max(0.0, seconds)):
            if key.fileobj is self._watched:
                readable = True
            else:
                self._read_end.recv(4096)
        return readable

    def wake(self) -> None:
        """End the sleep; if nobody sleeps, the next one."""
        # A full buffer ends the sleep for sure. The lock is for close(): a closed socket's number is used again.
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                self._write_end.send(b"\0")

    def close(self) -> None:
        """Give up the sockets; waking has no effect any more."""
        with self._lock:
            self._closed = True
            self._selector.close()
            self._read_end.close()
            self._write_end.close()
