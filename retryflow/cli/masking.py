"""What an order shows of the secrets in it: that they are there."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"
_PRIVATE_KEY = "PRIVATE KEY-----"
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*:)[^@\s/]+@")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Whatever else the name says, and also at the end or the beginning of a word that was not divided.
_STRONG = re.compile(r"passw(or)?d|passphrase|passcode|secret|token|credential|apikey")
_ANYWHERE = {"passwd", "pw", "pwd", "pin", "jwt", "otp", "totp", "psk"}
# Only where the name ends with it: an auth_url or a cookie_name is none.
_LAST = {"auth", "authorization", "bearer", "cookie", "hmac"}
_NO_PASSWORD = {"bypass", "compass", "encompass", "overpass", "underpass"}
# They say in what form it is written, not what it is.
_FORMS = {"b", "base", "data", "header", "hex", "pem", "string", "text", "value"}
# A key is a secret, unless it is one of these, or none of any kind.
_HARMLESS_KEYS = {
    *("cache", "composite", "foreign", "idempotency", "index", "lookup", "map", "object", "partition", "primary"),
    *("pub", "public", "routing", "row", "sort", "unique"),
}
# Those that are written as one word.
_SECRET_KEY = re.compile(
    r"^(access|account|auth|decrypt(ion)?|encrypt(ion)?|hmac|master|private|rsa|session|shared|sign(ing)?|ssh|storage)key$"
)

_IN_TEXT = re.compile(
    r"((?<![a-z])(?:password|passwd|passphrase|passcode|pwd|pw|pin|secret|token|credentials?|hmac"
    r"|(?:api|private|access|signing|encryption|ssh)[ _-]?key)[ \t]*[:=][ \t]*)"
    r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&=]+)",
    re.IGNORECASE,
)
_HEADER_IN_TEXT = re.compile(r"((?:\bauthorization|cookie)[ \t]*[:=][ \t]*)[^\r\n]+", re.IGNORECASE)
# With a digit or a sign in it, so that it is no word of a sentence.
_BEARER_IN_TEXT = re.compile(r"(\bbearer[ \t]+)(?=[\w.~+/-]*[\d.~+/-])[\w.~+/-]{8,}=*", re.IGNORECASE)


def masked(value: Any) -> Any:
    """:returns: JSON with ``***`` for what is secret by its name or by its look, however deep it is."""
    match value:
        case dict():
            return {
                key: MASK if _is_told(member) and is_secret_name(str(key)) else masked(member)
                for key, member in value.items()
            }
        case list():
            return [masked(member) for member in value]
        case str():
            return _masked_text(value)
    return value


def without_private_key(text: Any) -> Any:
    """:returns: ``text``, or ``***`` if there is a private key in it."""
    return MASK if isinstance(text, str) and _PRIVATE_KEY in text else text


def is_secret_name(name: str) -> bool:
    """:returns: whether what bears this name, in snake_case, camelCase or any other, is not to be shown."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if _STRONG.search("".join(words)) or _ANYWHERE & set(words):
        return True
    while words and words[-1] in _FORMS:
        words.pop()
    if not words:
        return False
    *before, last = words
    # Several of them are no less secret.
    last = last.removesuffix("s") if last.endswith(("keys", "cookies")) else last
    if last in _LAST or (last.endswith("pass") and last not in _NO_PASSWORD):
        return True
    if last == "key" and before:
        return "private" in before or not _HARMLESS_KEYS & set(before)
    return bool(_SECRET_KEY.match(last))


def _is_told(member: Any) -> bool:
    """Nothing, and a yes or no, are no secrets."""
    return not (member is None or member == "" or isinstance(member, bool))


def _masked_text(text: str) -> str:
    from oslo_utils import strutils

    if _PRIVATE_KEY in text:
        return MASK
    text = _PASSWORD_IN_URL.sub(rf"\1{MASK}@", strutils.mask_password(text))
    for pattern in (_HEADER_IN_TEXT, _BEARER_IN_TEXT, _IN_TEXT):
        text = pattern.sub(rf"\1{MASK}", text)
    return text
