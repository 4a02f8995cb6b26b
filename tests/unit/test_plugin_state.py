"""What a plugin keeps: only what every database can store, and only what changed is written."""

import pytest

from retryflow.plugin.state import MAXIMUM_KEY_CHARACTERS, PluginState


def test_only_what_was_changed_is_written() -> None:
    state = PluginState({"request": "17", "stage": "sent"})

    state["stage"] = "approved"
    state["request"] = "17"
    state["note"] = "new"

    assert state.changes() == {"stage": "approved", "note": "new"}
    assert dict(state) == {"request": "17", "stage": "approved", "note": "new"}
    assert len(state) == 3


def test_a_value_set_back_to_what_is_kept_is_no_change() -> None:
    state = PluginState({"stage": "sent"})

    state["stage"] = "approved"
    state["stage"] = "sent"

    assert state.changes() == {}


def test_the_order_s_own_copy_stays_as_it_was() -> None:
    kept = {"stage": "sent"}
    PluginState(kept)["stage"] = "approved"
    assert kept == {"stage": "sent"}


@pytest.mark.parametrize("value", [1, None, b"text", ["text"], True])
def test_what_is_not_text_is_refused_where_it_is_set(value: object) -> None:
    with pytest.raises(TypeError, match="convert it"):
        PluginState()["key"] = value  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("key", "value"), [("", "x"), ("k" * (MAXIMUM_KEY_CHARACTERS + 1), "x"), ("k", "a\0b"), ("k", "\ud800")]
)
def test_what_some_database_would_refuse_at_commit_is_refused_where_it_is_set(key: str, value: str) -> None:
    with pytest.raises(ValueError, match="plugin state"):
        PluginState()[key] = value


def test_a_key_cannot_be_deleted_and_the_error_says_what_to_do() -> None:
    state = PluginState({"key": "value"})
    with pytest.raises(TypeError, match="empty text"):
        del state["key"]
    assert state["key"] == "value"
