"""Reading the command line and the configuration files."""

import argparse
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from oslo_config import cfg
from oslo_log import log

import retryflow
from retryflow.conf.registration import CONF, register_all
from retryflow.errors import ConfigurationError

_BAD_VALUE = re.compile(
    r"Value for option (?P<name>\S+) from LocationInfo\(location=<Locations\.(?P<kind>\w+):.*, "
    r"detail='(?P<detail>.*)'\) is not valid: (?P<why>.*)"
)
# What Python says of a text that is no number is for programmers.
_PLAIN = (
    (re.compile(r"^invalid literal for int\(\) with base 10: (.*)$"), r"\1 is no whole number"),
    (re.compile(r"^could not convert string to float: (.*)$"), r"\1 is no number"),
)


def parse(
    argv: Sequence[str],
    *,
    prog: str,
    conf: cfg.ConfigOpts = CONF,
    set_up_logging: bool = True,
    register: Callable[[cfg.ConfigOpts], None] = register_all,
) -> None:
    """Register options, read ``argv`` and the configuration files, and set up logging.

    Without ``--config-file`` Oslo's usual places (``~/.retryflow``, ``~``, ``/etc/retryflow``, ``/etc``) are searched
    for ``retryflow.conf`` and for ``<prog>.conf``.

    :param argv: the arguments after the program's name.
    :param prog: the program's name, for its help and its configuration file.
    :param set_up_logging: ``False`` leaves logging as it is, for commands that print their answer.
    :param register: registers the options, all of them unless the caller knows better.
    :raises retryflow.errors.ConfigurationError: a file is missing, or cannot be read or parsed; or the log cannot be
        written.
    :raises SystemExit: 0 after ``-h`` or ``--version``, 2 for an unknown option.
    """
    register(conf)
    try:
        conf(list(argv), project="retryflow", prog=prog, version=retryflow.__version__)
    except (cfg.Error, OSError, UnicodeError) as error:
        what = unreadable_file(error, _named_files(argv, prog=prog))
        raise ConfigurationError(f"{what}; mend the configuration and start again") from error
    if set_up_logging:
        _set_up_logging(conf)


def unreadable_file(error: Exception, files: Iterable[str]) -> str:
    """What to say of an error of oslo.config while it read ``files``.

    :returns: one line, with the name of the file.
    """
    match error:
        case OSError(filename=str(name), strerror=str(reason)):
            return f"{name} cannot be read as a configuration file ({reason})"
        case UnicodeDecodeError(encoding=encoding):
            # The error does not say in which file.
            where = next(filter(None, (_foreign_line(name, encoding) for name in files)), "a configuration file")
            return f"{where} is not {encoding.upper()} text"
    return one_line(error)


def _foreign_line(name: str, encoding: str) -> str | None:
    try:
        Path(name).expanduser().read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return f"line {line} of {name}"
    except OSError:
        pass
    return None


def _named_files(argv: Sequence[str], *, prog: str) -> list[str]:
    """The files that are read, as far as they can be told without reading any."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--config-file", "--config-dir"):
        parser.add_argument(option, action="append")
    named, _ = parser.parse_known_args(list(argv))
    directories = named.config_dir or cfg.find_config_dirs("retryflow", prog)
    found = [str(path) for directory in directories for path in sorted(Path(directory).expanduser().glob("*.conf"))]
    return [*(named.config_file or cfg.find_config_files("retryflow", prog)), *found]


def _set_up_logging(conf: cfg.ConfigOpts) -> None:
    with told_of_logging(conf):
        log.setup(conf, "retryflow", retryflow.__version__)


@contextlib.contextmanager
def told_of_logging(conf: cfg.ConfigOpts) -> Iterator[None]:
    """What goes wrong inside, where the log is set up or looked at, in one line.

    :raises retryflow.errors.ConfigurationError: the log cannot be written as it is configured.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or "where it is configured"
        raise ConfigurationError(
            f"the log cannot be written to {place} ({error.strerror or error}); set [DEFAULT] log_file or log_dir to "
            "where this user may write, or neither to log to standard error"
        ) from error
    except UnicodeError as error:
        what = unreadable_file(error, [conf.log_config_append])
        raise ConfigurationError(f"{what}; mend [DEFAULT] log_config_append and start again") from error
    except cfg.Error as error:
        raise ConfigurationError(f"[DEFAULT] {bad_value(error)}; mend the configuration and start again") from error
    except (log.LogConfigError, RuntimeError, TypeError, ValueError) as error:
        # Of the libraries' own: systemd's bindings are missing, there is no such facility or level.
        raise ConfigurationError(f"logging cannot be set up: {one_line(error)}; mend the configuration") from error


def one_line(error: BaseException) -> str:
    """The message of ``error`` on a single line, without a full stop at its end."""
    return " ".join(str(error).split()).rstrip(".")


def bad_value(error: cfg.Error, *, option: str = "", file: str | None = None) -> str:
    """What oslo.config says of a value that cannot be read, as a sentence.

    :param option: the option, as ``[group] name``; else the name alone, which is all that the error has.
    :param file: where it stands; else the file that the error has, which is the last one with this group.
    """
    if option and isinstance(error, cfg.NoSuchOptError | cfg.TemplateSubstitutionError):
        # What follows the $ is not repeated: it may be the end of a password.
        return f"{option} has a $ before what is no option; write it as $$"
    text = one_line(error)
    found = _BAD_VALUE.match(text)
    if found is None:
        return f"{option}: {text}" if option else text
    place = {"environment": f"in the environment ({found['detail']})", "command_line": "on the command line"}
    why = found["why"]
    for words, plain in _PLAIN:
        why = words.sub(plain, why)
    where = place.get(found["kind"], f"in {file or found['detail']}")
    return f"{option or found['name']} {where}: {why[:1].lower()}{why[1:]}"
