"""What systemd is told (sd_notify): ready, stopping, and that the process still lives."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping


class Supervisor:
    """Sends notifications to the socket that systemd named, if it named one.

    oslo.service has a helper for ``READY=1`` only. The variables are taken out of the environment, so that no program
    that a task starts speaks in our name.

    :param environ: the environment.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        microseconds = environ.pop("WATCHDOG_USEC", "")
        pid = environ.pop("WATCHDOG_PID", "")
        ours = self._address and microseconds.isdecimal() and pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(microseconds) / 2e6 if ours and int(microseconds) else None
        """So often it wants to hear that we live, half of ``WatchdogSec``; ``None``: never."""

    def ready(self) -> None:
        """Work is taken in."""
        self._send("READY=1\nSTATUS=Taking in work")

    def stopping(self, reason: str) -> None:
        """The drain has begun."""
        self._send(f"STOPPING=1\nSTATUS=Draining because of {reason}")

    def alive(self) -> None:
        """Still alive."""
        if self.watchdog_seconds is not None:
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A supervisor that does not listen must not hold up what it supervises.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)
