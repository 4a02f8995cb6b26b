"""Whether a daemon could write where it is told to: looked at without making a file, which would be somebody else's."""

import configparser
import errno
import os
from pathlib import Path

from oslo_config import cfg
from oslo_log import log

from retryflow.conf.reading import told_of_logging

_LOG_CONFIG_SECTIONS = ("formatters", "handlers", "loggers")


def require_log(conf: cfg.ConfigOpts) -> None:
    """Look for what would keep a daemon from setting up its log.

    :raises retryflow.errors.ConfigurationError: it is in the words in which a daemon would refuse to start; caused by a
        ``PermissionError`` where another user might be allowed what this one is not.
    """
    with told_of_logging(conf):
        if conf.log_config_append:
            _look_at_log_config(conf.log_config_append)
            return
        if conf.log_file:
            require_writable(Path(conf.log_dir or "", conf.log_file))
        elif conf.log_dir:
            require_writable(Path(conf.log_dir, "any.log"))
        if conf.use_syslog:
            log._find_facility(conf.syslog_log_facility)


def require_writable(path: Path, *, replaced: bool = False) -> None:
    """Look whether this user could write a file.

    :param path: a relative one is not looked at, since it depends on where the daemon is started.
    :param replaced: whether another file is put in its place, which is a matter of the directory alone.
    :raises OSError: it cannot be written; a ``PermissionError`` if only this user cannot.
    """
    if not path.is_absolute():
        return
    if path.is_dir():
        raise _error(errno.EISDIR, path)
    if not path.parent.exists():
        raise _error(errno.ENOENT, path)
    if not path.parent.is_dir():
        raise _error(errno.ENOTDIR, path)
    place, mode = (path, os.W_OK) if path.exists() and not replaced else (path.parent, os.W_OK | os.X_OK)
    if not os.access(place, mode):
        raise _error(errno.EACCES, path)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _look_at_log_config(name: str) -> None:
    """As far as it goes without setting up what stands there."""
    parser = configparser.ConfigParser()
    try:
        with Path(name).open() as file:
            parser.read_file(file)
        missing = [section for section in _LOG_CONFIG_SECTIONS if not parser.has_option(section, "keys")]
    except (configparser.Error, OSError) as error:
        raise log.LogConfigError(name, str(error)) from error
    if missing:
        raise log.LogConfigError(name, f"there is no section [{missing[0]}] with keys in it")
