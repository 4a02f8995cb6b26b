"""A connection to PostgreSQL that does not wait for ever for a server which never answers.

The kernel's limits (keepalive, ``tcp_user_timeout``) end a connection whose other side is gone. Where a load balancer
or a pooler keeps that side, nothing does.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


class ImpatientConnection(psycopg.Connection[Any]):
    """:ivar answer_seconds: how long to wait for an answer."""

    answer_seconds = float("inf")

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer; the connection is closed when none comes in time.

        :raises psycopg.OperationalError: none came.
        """
        # Resumed each tenth of a second while nothing comes, for the sake of Ctrl-C.
        return super().wait(self._with_deadline(gen), *args, **kwargs)

    def _with_deadline(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        deadline = time.monotonic() + self.answer_seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has not answered for {self.answer_seconds:.0f} seconds")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
