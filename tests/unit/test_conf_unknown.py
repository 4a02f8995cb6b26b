"""A misspelt option is told; it would otherwise be without effect, and nobody would know why."""

from pathlib import Path

import pytest
from oslo_config import cfg

from retryflow import conf as configuration


def complaints(*arguments: str) -> list[str]:
    conf = cfg.ConfigOpts()
    configuration.parse(list(arguments), prog="t", conf=conf, set_up_logging=False)
    return list(configuration.unknown_names(conf))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[scheduler]\nschedule_period_second = 5\n",
            ("[scheduler] schedule_period_second", "schedule_period_seconds"),
        ),
        ("[retry]\nnothing_like_it = 5\n", ("[retry] nothing_like_it", "is ignored")),
        ("[schedular]\nbatch_size = 5\n", ("[schedular]", "is [scheduler] meant?")),
        ("[DEFAULT]\nmanager_shutdown_timout = 5\n", ("[DEFAULT] manager_shutdown_timout", "manager_shutdown_timeout")),
    ],
)
def test_a_misspelt_name_is_told_with_its_file_and_what_was_meant(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "r.conf"
    file.write_text(text)
    (told,) = complaints("--config-file", str(file))
    assert [word for word in (*words, str(file)) if word not in told] == []


def test_names_of_ours_of_libraries_and_of_other_programs_are_not_told(tmp_path: Path) -> None:
    directory = tmp_path / "conf.d"
    directory.mkdir()
    (directory / "a.conf").write_text(
        "[DEFAULT]\ntransport_url = fake://\nlog_file = /x\nmanager_shutdown_timeout = 1\nosapi_workers = 4\n"
        "[scheduler]\nbatch_size = 5\n[database]\nconnection = sqlite://\n[keystone_authtoken]\nusername = x\n"
        "[oslo_messaging_rabbit]\nrabbit_quorum_queue = true\n"
    )
    assert complaints("--config-dir", str(directory)) == []


def test_files_of_a_directory_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("[lease]\nlease_second = 5\n")
    assert len(complaints("--config-dir", str(tmp_path))) == 1
