"""Text of other people, shown so that it can neither steer the reader's terminal nor pass for lines of ours."""

import unicodedata


def legible(text: str, *, lines: bool = False) -> str:
    """Write out what is not printable: an escape as ``\\x1b``, the end of a line as ``\\n``.

    :param lines: ends of lines are meant, and stay.
    """
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) or (lines and char == "\n") else _written_out(char) for char in text)


def _is_shown(char: str) -> bool:
    # To Python the blanks of other scripts and the one that does not break are not printable.
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
