"""Files that several processes make at the same moment and that are complete or absent, whatever crashes."""

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def read_or_create(path: Path, make: Callable[[], bytes], *, mode: int) -> bytes:
    """The content of ``path``, which is made on first use; everybody gets the same one.

    :param make: gives the content if there is none yet; what it gives is dropped if another was faster.
    :param mode: permissions of a new file.
    :raises OSError: the directory or file cannot be used.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}")
    try:
        _write_durably(draft, make(), mode=mode)
        # Unlike a rename, a link never replaces: of two processes that come here at once, the first wins for all.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        _sync_directory(path.parent)
    finally:
        draft.unlink(missing_ok=True)
    return path.read_bytes()


def _write_durably(path: Path, content: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
