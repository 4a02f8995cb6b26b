"""Contradictions between options are refused with one line that names them and says what to change."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.conf.queue import read_ahead
from retryflow.conf.validation import contradictions
from retryflow.errors import ConfigurationError

Set = Callable[..., cfg.ConfigOpts]


@pytest.fixture
def conf() -> Iterator[cfg.ConfigOpts]:
    own = cfg.ConfigOpts()
    configuration.register_all(own)
    own([], project="retryflow", default_config_files=[], default_config_dirs=[])
    yield own
    own.reset()


def test_the_defaults_do_not_contradict_each_other(conf: cfg.ConfigOpts) -> None:
    configuration.validate(conf)
    assert list(contradictions(conf)) == []


CONTRADICTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"scheduler.retry_lock_timeout_seconds": 20.0, "scheduler.batch_timeout_seconds": 10.0},
        ("[scheduler] retry_lock_timeout_seconds (20)", "[scheduler] batch_timeout_seconds (10)", "raise the former"),
    ),
    (
        {"manager_shutdown_timeout": 171.0},
        ("graceful_shutdown_timeout (180)", "manager_shutdown_timeout (171)", "at least 181"),
    ),
    (
        {"manager_shutdown_timeout": 0.0},
        ("graceful_shutdown_timeout (180)", "manager_shutdown_timeout (0: no limit)", "to 0 as well"),
    ),
    ({"graceful_shutdown_timeout": -1}, ("graceful_shutdown_timeout (-1)", "at least 170", "0 for no limit")),
    (
        {"lease.renew_seconds": 6.7},
        ("[lease] renew_seconds (6.7)", "[lease] lease_seconds (20)", "lower the former"),
    ),
    (
        {"queue.read_ahead": 17},
        ("[queue] read_ahead (17)", "[DEFAULT] executor_thread_pool_size (16)", "lower the former"),
    ),
    ({"executor_thread_pool_size": 0}, ("executor_thread_pool_size (0)", "set it to 1 or more")),
    (
        {"queue.publish_timeout_seconds": 10.0},
        ("[queue] publish_timeout_seconds (10)", "[scheduler] batch_timeout_seconds (10)", "lower the former"),
    ),
    (
        {"scheduler.ticket_resend_maximum_seconds": 29.0},
        ("ticket_resend_maximum_seconds (29)", "ticket_resend_seconds (30)", "raise the former"),
    ),
    (
        {"retry.maximum_interval_seconds": 14.0},
        ("maximum_interval_seconds (14)", "initial_interval_seconds (15)", "raise the former"),
    ),
    ({"certificate.enabled_certificate_plugins": []}, ("enabled_certificate_plugins is empty", "simple_certificate")),
]


def override(conf: cfg.ConfigOpts, values: dict[str, Any]) -> None:
    for name, value in values.items():
        group, _, option = name.rpartition(".")
        conf.set_override(option, value, group or None)


@pytest.mark.parametrize(("values", "words"), CONTRADICTIONS, ids=lambda case: "-".join(case) if case else "")
def test_a_contradiction_is_refused_with_one_line_that_says_what_to_change(
    conf: cfg.ConfigOpts, values: dict[str, Any], words: tuple[str, ...]
) -> None:
    override(conf, values)
    with pytest.raises(ConfigurationError) as refused:
        configuration.validate(conf)
    message = str(refused.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []
    assert len(list(contradictions(conf))) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"graceful_shutdown_timeout": 170},
        {"graceful_shutdown_timeout": 0},
        {"manager_shutdown_timeout": 0.0, "graceful_shutdown_timeout": 0},
        {"scheduler.retry_lock_timeout_seconds": 20.1},
        {"lease.renew_seconds": 5.0, "lease.lease_seconds": 15.0},
        {"queue.read_ahead": 16},
        {"queue.read_ahead": 0},
        {"retry.initial_interval_seconds": 3600.0},
    ],
    ids=str,
)
def test_the_edge_of_what_is_allowed_is_allowed(conf: cfg.ConfigOpts, values: dict[str, Any]) -> None:
    override(conf, values)
    configuration.validate(conf)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", 4),
        ("[DEFAULT]\nexecutor_thread_pool_size = 2\n", 2),
        ("[DEFAULT]\nexecutor_thread_pool_size = 2\n[queue]\nread_ahead = 1\n", 1),
        ("[DEFAULT]\nexecutor_thread_pool_size = 2\n[queue]\nread_ahead = 4\n", None),
    ],
    ids=["nothing", "threads", "both", "contradiction"],
)
def test_fewer_threads_need_no_second_option_unless_read_ahead_is_set(
    tmp_path: Path, lines: str, expected: int | None
) -> None:
    file = tmp_path / "few.conf"
    file.write_text(lines)
    own = cfg.ConfigOpts()
    configuration.parse(["--config-file", str(file)], prog="t", conf=own, set_up_logging=False)
    if expected is None:
        with pytest.raises(ConfigurationError, match=r"read_ahead \(4\) is more than .* \(2\)"):
            configuration.validate(own)
    else:
        configuration.validate(own)
        assert read_ahead(own) == expected


BAD_VALUES = [
    ("scheduler", "schedule_period_seconds", "0", "should be greater than or equal to 0.1"),
    ("scheduler", "batch_size", "many", "'many' is no whole number"),
    ("DEFAULT", "manager_shutdown_timeout", "-5", "should be greater than or equal to 0"),
    ("DEFAULT", "manager_shutdown_timeout", "soon", "'soon' is no number"),
    ("retry", "jitter", "2", "should be less than or equal to 1"),
    ("queue", "version", "one", "value 'one' doesn't match regex "),
    ("database", "max_pool_size", "big", "'big' is no whole number"),
    ("oslo_messaging_rabbit", "rabbit_quorum_queue", "perhaps", "unexpected boolean value 'perhaps'"),
]


@pytest.mark.parametrize(("group", "name", "value", "why"), BAD_VALUES)
def test_a_value_out_of_range_is_found_at_the_start_and_told_in_a_sentence(
    tmp_path: Path, group: str, name: str, value: str, why: str
) -> None:
    """oslo.config itself complains only when the value is first asked for, without the group."""
    file = tmp_path / "bad.conf"
    file.write_text(f"[{group}]\n{name} = {value}\n")
    # oslo.config takes the last file with the group for the one with the value.
    other = tmp_path / "other.conf"
    other.write_text(f"[{group}]\n# nothing\nunknown = 1\n")
    own = cfg.ConfigOpts()
    arguments = ["--config-file", str(file), "--config-file", str(other)]
    configuration.parse(arguments, prog="t", conf=own, set_up_logging=False)
    with pytest.raises(ConfigurationError) as refused:
        configuration.validate(own)
    message = str(refused.value)
    assert message.startswith(f"[{group}] {name} in {file}: {why}")
    assert message.endswith("; mend the configuration and start again")
    assert "\n" not in message


def test_a_value_of_the_environment_is_told_as_such(monkeypatch: pytest.MonkeyPatch, conf: cfg.ConfigOpts) -> None:
    monkeypatch.setenv("OS_SCHEDULER__BATCH_SIZE", "many")
    with pytest.raises(ConfigurationError, match=r"^\[scheduler\] batch_size in the environment \(OS_SCHED"):
        configuration.validate(conf)


def test_what_follows_a_dollar_in_a_password_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "bad.conf"
    file.write_text("[database]\nconnection = postgresql+psycopg://me:ge$heim@127.0.0.1/x\n")
    own = cfg.ConfigOpts()
    configuration.parse(["--config-file", str(file)], prog="t", conf=own, set_up_logging=False)
    with pytest.raises(ConfigurationError, match=r"^\[database\] connection has a \$ .*; write it as \$\$") as refused:
        configuration.validate(own)
    assert "heim" not in str(refused.value)


def test_a_value_that_logging_cannot_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "bad.conf"
    file.write_text(f"[DEFAULT]\nlog_file = {tmp_path / 'log'}\nlog_rotation_type = sometimes\n")
    with pytest.raises(ConfigurationError, match=rf"^\[DEFAULT\] log_rotation_type in {file}: valid values are"):
        configuration.parse(["--config-file", str(file)], prog="t", conf=cfg.ConfigOpts())


@pytest.mark.parametrize(
    "content",
    ["[scheduler\n", "batch_size\n", None, "a directory"],
    ids=["section", "line", "missing", "directory"],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name_on_one_line(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "bad.conf"
    if content == "a directory":
        file.mkdir()
    elif content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        configuration.parse(["--config-file", str(file)], prog="t", conf=cfg.ConfigOpts(), set_up_logging=False)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("prog", ["barbican-worker", "retryflow"])
def test_a_file_in_another_encoding_is_refused_with_its_name_also_where_nobody_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prog: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / f"{prog}.conf"
    file.write_bytes("[DEFAULT]\n# für alle\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=f"line 2 of {file} is not UTF-8 text; mend"):
        configuration.parse([], prog=prog, conf=cfg.ConfigOpts(), set_up_logging=False)


@pytest.mark.parametrize("name", ["scheduler.schedule_period_seconds", "manager_shutdown_timeout"])
def test_nan_is_no_number_although_it_exceeds_no_bound(conf: cfg.ConfigOpts, name: str) -> None:
    group, _, option = name.rpartition(".")
    conf.set_override(option, float("nan"), group or None)
    with pytest.raises(ConfigurationError, match=rf"^\[{group or 'DEFAULT'}\] {option} is not a number"):
        configuration.validate(conf)
