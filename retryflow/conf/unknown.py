"""Names in a configuration file that nobody reads: a misspelt option would be without effect, and without a word."""

import contextlib
import difflib
from collections.abc import Iterator
from pathlib import Path

from oslo_config import cfg

from retryflow.conf.registration import CONF, MODULES

_ALIKE = 0.8


def unknown_names(conf: cfg.ConfigOpts = CONF) -> Iterator[str]:
    """Each unknown name in the files that were read, as a line that says which name was probably meant.

    In our own groups every unknown option is told; of other groups, and of ``[DEFAULT]``, which other programs share,
    only what looks like one of ours.
    """
    ours = {_section(module.GROUP): [option.dest for option in module.OPTIONS] for module in MODULES}
    for file in _files(conf):
        for section, names in _sections(file).items():
            if section not in ours:
                if section not in conf and (meant := _alike(section, ours)):
                    yield f"[{section}] in {file} is no group of options and is ignored; is [{meant}] meant?"
                continue
            known = conf if section == "DEFAULT" else conf[section]
            for name in names:
                meant = _alike(name, ours[section])
                if name not in known and (meant or section != "DEFAULT"):
                    hint = f"; is {meant} meant?" if meant else ""
                    yield f"[{section}] {name} in {file} is no option and is ignored{hint}"


def file_with(conf: cfg.ConfigOpts, group: str, name: str) -> str | None:
    """The file, of those that were read, from which the option has its value; oslo.config knows only its group's."""
    with contextlib.suppress(OSError, UnicodeError, cfg.ParseError):
        for file in reversed([*_files(conf)]):
            if any(name in names for section, names in _sections(file).items() if section.lower() == group.lower()):
                return str(file)
    return None


def _sections(file: Path) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    cfg.ConfigParser(str(file), sections).parse()
    return sections


def _section(group: cfg.OptGroup | None) -> str:
    return group.name if group else "DEFAULT"


def _alike(name: str, known: dict[str, list[str]] | list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)), None)


def _files(conf: cfg.ConfigOpts) -> Iterator[Path]:
    yield from (Path(name) for name in conf.config_file or [])
    for directory in conf.config_dir or []:
        yield from sorted(Path(directory).glob("*.conf"))
