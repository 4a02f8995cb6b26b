"""How a schema differs from the one that this version made, in words."""

from __future__ import annotations

from collections.abc import Sequence


def tell(difference: object) -> str:
    """:param difference: one of alembic's.
    :returns: what is missing, additional or otherwise, and its name."""
    match difference:
        case (str(kind), *rest):
            names = [str(getattr(part, "name", part)) for part in rest if part is not None]
            told = {"add": "missing", "remove": "additional"}
            what, _, of = kind.partition("_")
            joint = "." if of == "column" else " "
            return f"{told.get(what, what)} {of.replace('_', ' ')} {joint.join(names)}"
        case [(str(kind), *rest), *_]:
            return f"{kind.replace('_', ' ')} {rest[1]}.{rest[2]}"
    return str(difference)[:200]


def remedy_of(found: Sequence[object]) -> str:
    """:returns: what to do about these differences."""
    index = any(isinstance(each, tuple) and each[0] == "add_index" for each in found)
    more = "; a missing index is made again by CREATE INDEX with the same name" if index else ""
    return f"undo what was changed by hand{more}"
