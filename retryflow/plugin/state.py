"""What a plugin keeps between its calls."""

from collections.abc import Iterator, Mapping, MutableMapping

MAXIMUM_KEY_CHARACTERS = 255


def is_storable(text: str) -> bool:
    """Whether each database can store this text: PostgreSQL refuses NUL, and none takes lone surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


class PluginState(MutableMapping[str, str]):
    """Text by key, kept in ``order_plugin_metadata`` with each answer; it knows what was changed.

    A value of another type is refused where it is set, since there the plugin's author still sees the line. A key
    cannot be deleted, only set to the empty text: what is kept is added to, so that an old answer that comes late
    cannot wipe out what a newer one has kept.

    :param kept: what the database holds.
    """

    def __init__(self, kept: Mapping[str, str] | None = None) -> None:
        self._kept = dict(kept or {})
        self._changes: dict[str, str] = {}

    def changes(self) -> dict[str, str]:
        """What was set to something else than is kept; a copy."""
        return dict(self._changes)

    def __getitem__(self, key: str) -> str:
        return self._changes[key] if key in self._changes else self._kept[key]

    def __setitem__(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"plugin state holds text by text, not {type(value).__name__} by {type(key).__name__}: "
                "convert it, for example with json.dumps()"
            )
        if not key or len(key) > MAXIMUM_KEY_CHARACTERS:
            raise ValueError(f"a key of plugin state has 1 to {MAXIMUM_KEY_CHARACTERS} characters, not {len(key)}")
        if not is_storable(key) or not is_storable(value):
            raise ValueError("plugin state holds no NUL characters or lone surrogates: encode it, say as base64")
        if self._kept.get(key) == value:
            self._changes.pop(key, None)
        else:
            self._changes[key] = value

    def __delitem__(self, key: str) -> None:
        raise TypeError("a key of plugin state cannot be deleted: set it to the empty text")

    def __iter__(self) -> Iterator[str]:
        yield from self._kept
        yield from (key for key in self._changes if key not in self._kept)

    def __len__(self) -> int:
        return len(self._kept.keys() | self._changes.keys())
