"""What every option must have, and where the files are that nobody configured."""

from pathlib import Path

import pytest
from oslo_config import cfg, types

from retryflow import conf as configuration
from retryflow.conf.opts import list_opts
from retryflow.conf.service import default_state_path

OPTIONS = [(group.name if group else "DEFAULT", option) for group, options in list_opts() for option in options]
IDS = [f"{group}.{option.name}" for group, option in OPTIONS]
OF_A_LIBRARY = {"graceful_shutdown_timeout"}


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=IDS)
def test_every_option_says_what_it_does_and_has_a_minimum_and_a_maximum(group: str, option: cfg.Opt) -> None:
    assert option.help is not None
    assert len(option.help) > 60
    assert option.help.endswith(".")
    if isinstance(option.type, types.Number) and option.name not in OF_A_LIBRARY:
        assert option.type.min is not None
        assert option.type.min >= 0
        assert option.type.max is not None


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=IDS)
def test_every_time_is_in_seconds_and_says_so(group: str, option: cfg.Opt) -> None:
    if "timeout" in option.name or "seconds" in option.name:
        assert "econds" in str(option.help)


def test_zero_is_an_allowed_time_only_where_it_means_something() -> None:
    """Every time has a positive minimum, but for those whose help says what 0 does."""
    explained = {
        "manager_shutdown_timeout",
        "graceful_shutdown_timeout",
        "max_run_seconds",
        "delay_before_update_seconds",
        "signing_seconds",
    }
    zero = {
        option.name: str(option.help)
        for _, option in OPTIONS
        if ("timeout" in option.name or "seconds" in option.name) and not getattr(option.type, "min", None)
    }
    assert set(zero) == explained
    assert [name for name, text in zero.items() if " 0 " not in text] == []


def test_registering_twice_is_harmless() -> None:
    conf = cfg.ConfigOpts()
    configuration.register_all(conf)
    configuration.register_all(conf)


def test_registering_agrees_with_what_the_libraries_register_later() -> None:
    import oslo_messaging
    from oslo_db.sqlalchemy import enginefacade
    from oslo_service import service

    configuration.register_all()
    oslo_messaging.get_rpc_transport(configuration.CONF, url="rabbit://nobody@localhost")
    enginefacade.transaction_context()
    service.Launcher(configuration.CONF)
    assert configuration.CONF.oslo_messaging_rabbit.rabbit_quorum_queue is True
    assert configuration.CONF.graceful_shutdown_timeout == 180


def test_without_a_connection_the_database_is_a_file_below_the_state_path(tmp_path: Path) -> None:
    conf = cfg.ConfigOpts()
    configuration.register_all(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("state_path", str(tmp_path / "state"))
    assert configuration.database_url(conf) == f"sqlite:///{tmp_path}/state/retryflow.sqlite"
    assert not (tmp_path / "state").exists()
    assert configuration.make_state_directory(conf).stat().st_mode & 0o777 == 0o700
    assert conf.simple_certificate.ca_directory == str(tmp_path / "state" / "simple_ca")
    conf.set_override("connection", "postgresql+psycopg://db/retryflow", "database")
    assert configuration.database_url(conf) == "postgresql+psycopg://db/retryflow"


@pytest.mark.parametrize(
    ("home", "expected"), [("/var/states", "/var/states/retryflow"), ("", "/h/.local/state/retryflow")]
)
def test_the_state_path_follows_the_xdg_convention(monkeypatch: pytest.MonkeyPatch, home: str, expected: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setenv("HOME", "/h")
    assert default_state_path() == expected
