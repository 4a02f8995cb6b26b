"""Answers for probes over HTTP: /alive, /ready and /working. The server is cheroot's, as in Ironic."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oslo_log import log as oslo_logging

from retryflow.errors import ConfigurationError
from retryflow.service.health import QUESTIONS, Health
from retryflow.service.health_place import Address

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = oslo_logging.getLogger(__name__)

# A connection has a thread until its request is there; those that never send one must not keep all of them.
_THREADS = 16
_READ_SECONDS = _REQUEST_SECONDS = 3.0
_LARGEST_BYTES = 8192
_BACKLOG = 128


def application(look: Callable[[], Health]) -> WSGIApplication:
    """A WSGI application: 200 for yes, 503 for no, both with all checks as JSON.

    :param look: makes the answers of this moment.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        question = str(environ.get("PATH_INFO", "")).strip("/")
        method = environ.get("REQUEST_METHOD")
        document: dict[str, Any]
        if question not in QUESTIONS:
            status, document = "404 Not Found", {"paths": [f"/{each}" for each in QUESTIONS]}
        elif method not in ("GET", "HEAD"):
            status, document = "405 Method Not Allowed", {"methods": ["GET", "HEAD"]}
        else:
            health = look()
            status = "200 OK" if health.answer(question) else "503 Service Unavailable"
            reasons = [f"{fault.name}: {fault.says}" for fault in health.faults(question)]
            document = {"question": question, "reasons": reasons, **health.as_dict()}
        body = json.dumps(document, indent=2).encode() + b"\n"
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        start_response(status, headers)
        return [] if method == "HEAD" else [body]

    return answer


class HealthServer:
    """Serves an application on a thread of its own.

    :param address: host and port, or the path of a UNIX socket.
    :raises ConfigurationError: cheroot is not installed, or the address cannot be used.
    """

    def __init__(self, address: Address, app: WSGIApplication) -> None:
        self._address = address
        try:
            wsgi: Any = importlib.import_module("cheroot.wsgi")
        except ImportError as error:
            raise ConfigurationError(
                f"[health] address needs an HTTP server, which is not installed ({error}); install retryflow "
                "with its extra health"
            ) from None
        self._server = wsgi.Server(
            address,
            app,
            numthreads=_THREADS,
            max=_THREADS,
            server_name="retryflow",
            timeout=_READ_SECONDS,
            request_queue_size=_BACKLOG,
        )
        self._server.ConnectionClass = _bounded(self._server.ConnectionClass)
        self._server.max_request_header_size = self._server.max_request_body_size = _LARGEST_BYTES
        self._server.error_log = _log
        self._prepare()
        self._own_file = self._file()
        threading.Thread(target=self._server.serve, name="health-http", daemon=True).start()

    def _prepare(self) -> None:
        shown = self._address if isinstance(self._address, str) else f"{self._address[0]}:{self._address[1]}"
        if isinstance(self._address, str):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(Path(self._address).stat().st_mode):
                    # The server would delete it.
                    raise ConfigurationError(
                        f"[health] address {shown} is a file, not a UNIX socket; name another path"
                    )
                if _is_served(self._address):
                    # It would be taken away from a living process, whose probes would then find nobody.
                    raise ConfigurationError(
                        f"[health] address {shown} is in use by another process; put {{prog}} or {{pid}} into it"
                    )
        try:
            self._server.prepare()
        except OSError as error:
            raise ConfigurationError(
                f"[health] address {shown} cannot be used ({error}); set it to one that is free. A worker and "
                "a scheduler on one host need an address each, for example in the files barbican-worker.conf and "
                "barbican-task-scheduler.conf"
            ) from None

    def _file(self) -> tuple[int, int] | None:
        try:
            found = Path(str(self._address)).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def stop(self) -> None:
        """Answer nobody any more; returns at once."""
        if isinstance(self._address, str) and self._file() == self._own_file:
            with contextlib.suppress(OSError):
                Path(self._address).unlink()
        # It waits for its threads, which the interpreter would wait for as well.
        threading.Thread(target=self._server.stop, name="health-http-stop", daemon=True).start()


class _TimedSocket:
    """The reading side of a connection: each read has its limit, and all reads of one request have one together.

    The server itself has only the former, with which a client that sends a byte now and then keeps a thread for good.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.begin()

    def begin(self) -> None:
        """From now on it is the next request."""
        self._until = time.monotonic() + _REQUEST_SECONDS

    def recv_into(self, buffer: bytearray) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(min(_READ_SECONDS, left))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_READ_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _bounded(connection_class: Any) -> Any:
    """:returns: the server's class of connections, with a limit to the time that a whole request may take."""

    class BoundedConnection(connection_class):  # type: ignore[misc]
        def __init__(self, server: Any, sock: socket.socket, makefile: Callable[..., Any]) -> None:
            self._reading = _TimedSocket(sock)

            def make(end: Any, mode: str, size: int) -> Any:
                return makefile(self._reading if "r" in mode else end, mode, size)

            super().__init__(server, sock, make)

        def communicate(self) -> Any:
            self._reading.begin()
            return super().communicate()

    return BoundedConnection


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.settimeout(1.0)
        client.connect(path)
        return True
    return False


def _log(msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
    LOG.debug("health probe: %s", msg, exc_info=traceback)
