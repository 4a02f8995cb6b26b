"""From the command line to an order's meta."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retryflow.cli.failures import CommandFailed


def read_meta(*, csr: str | None, meta_file: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Put an order's meta together; what stands later here wins: file, pairs, request.

    :param csr: file with a certificate signing request, PEM or DER; ``-`` is standard input.
    :param meta_file: file with a JSON object; ``-`` is standard input.
    :param pairs: ``KEY=TEXT`` or ``KEY:=JSON``.
    :raises CommandFailed: one of them cannot be used.
    """
    meta: dict[str, Any] = {}
    if meta_file is not None:
        meta |= _json_object(_read(meta_file), _shown(meta_file))
    for pair in pairs:
        key, value = _pair(pair)
        meta[key] = value
    if csr is not None:
        content = _read(csr)
        if not content.strip():
            raise CommandFailed(f"{_shown(csr)} is empty; --csr takes a certificate signing request, PEM or DER")
        meta["csr"] = _request(content)
    return meta


def _read(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name


def _request(content: bytes) -> str:
    text = content.decode("ascii", "replace")
    # A DER file is not text; the order's meta is, so it travels as base64.
    return text if "\ufffd" not in text and "\x00" not in text else base64.b64encode(content).decode()


def _json_object(content: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise CommandFailed(f"{name} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CommandFailed(f'{name} holds no JSON object; an order\'s meta is one, like {{"key": "value"}}')
    return value


def _pair(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key.removesuffix(":"):
        raise CommandFailed(f"--meta {text!r} is neither KEY=TEXT nor KEY:=JSON")
    if not key.endswith(":"):
        return key, value
    try:
        return key.removesuffix(":"), json.loads(value)
    except ValueError as error:
        raise CommandFailed(f"--meta {text!r}: what follows := is no JSON: {error}") from None
