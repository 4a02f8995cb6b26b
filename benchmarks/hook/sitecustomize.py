"""Counts a daemon's statements where the environment asks for it; found by the interpreter through PYTHONPATH."""

import mmap
import os
import struct
import sys


def _count() -> None:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    descriptor = os.open(os.environ["RETRYFLOW_BENCH_COUNTER"], os.O_RDWR)
    shared = mmap.mmap(descriptor, 8)

    def one(*_: object) -> None:
        struct.pack_into("q", shared, 0, struct.unpack_from("q", shared)[0] + 1)

    event.listen(Engine, "before_cursor_execute", one)
    try:
        import psycopg
    except ImportError:
        return
    # The statements that are sent several at once, past SQLAlchemy.
    mogrify = psycopg.ClientCursor.mogrify

    def counted(*args: object, **more: object) -> str:
        one()
        return mogrify(*args, **more)

    psycopg.ClientCursor.mogrify = counted


class _Once:
    """Waits for the daemon to import its engine, so that the backend is selected first."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "retryflow.model.engine":
            sys.meta_path.remove(self)
            _count()


if "RETRYFLOW_BENCH_COUNTER" in os.environ:
    sys.meta_path.insert(0, _Once())
