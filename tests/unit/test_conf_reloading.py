"""SIGHUP: either all that can change is taken over, or the old values stay in force to the last one (D9)."""

from pathlib import Path

import pytest
from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.errors import ConfigurationError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "retryflow.conf"
    path.write_text("[DEFAULT]\nmanager_shutdown_timeout = 60\n")
    return path


@pytest.fixture
def conf(file: Path) -> cfg.ConfigOpts:
    own = cfg.ConfigOpts()
    configuration.register_all(own)
    own(["--config-file", str(file)], project="retryflow")
    return own


def test_what_can_change_is_taken_over(conf: cfg.ConfigOpts, file: Path) -> None:
    file.write_text("[DEFAULT]\nmanager_shutdown_timeout = 70\n[retry]\ninitial_interval_seconds = 3\n")
    configuration.reload(conf)
    assert (conf.manager_shutdown_timeout, conf.retry.initial_interval_seconds) == (70.0, 3.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[DEFAULT]\nmanager_shutdown_timeout = soon\n", "manager_shutdown_timeout"),
        ("[DEFAULT]\nmanager_shutdown_timeout = 175\n", "must exceed"),
        ("[DEFAULT]\nmanager_shutdown_timeout = 50\n[scheduler]\nbatch_size = many\n", "batch_size"),
        ("no configuration file\n", "parse"),
    ],
)
def test_d9_a_file_that_would_not_do_for_a_start_changes_nothing(
    conf: cfg.ConfigOpts, file: Path, text: str, complaint: str
) -> None:
    """D9: a value that is none stayed in force, and the next look at it, at SIGTERM, ended the process."""
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        configuration.reload(conf)
    assert "\n" not in str(caught.value)
    assert (conf.manager_shutdown_timeout, conf.scheduler.batch_size) == (60.0, 500)


def test_a_file_that_is_gone_changes_nothing(conf: cfg.ConfigOpts, file: Path) -> None:
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"retryflow\.conf"):
        configuration.reload(conf)
    assert conf.manager_shutdown_timeout == 60.0


def test_a_file_in_another_encoding_changes_nothing_and_is_named(conf: cfg.ConfigOpts, file: Path) -> None:
    file.write_bytes("[DEFAULT]\nmanager_shutdown_timeout = 70\n# später\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=rf"line 3 of {file} is not UTF-8 text"):
        configuration.reload(conf)
    assert conf.manager_shutdown_timeout == 60.0


def test_without_any_file_there_is_nothing_to_take_over() -> None:
    own = cfg.ConfigOpts()
    configuration.register_all(own)
    own([], project="retryflow", default_config_files=[], default_config_dirs=[])
    configuration.reload(own)
    assert own.manager_shutdown_timeout == 160.0
