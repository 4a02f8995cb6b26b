"""Reading the configuration files anew while a daemon runs: all that can change is taken over, or nothing is."""

from oslo_config import cfg

from retryflow.conf.reading import unreadable_file
from retryflow.conf.registration import CONF, register_all
from retryflow.conf.validation import validate
from retryflow.errors import ConfigurationError


def reload(conf: cfg.ConfigOpts = CONF) -> None:
    """Take over the options that can change from the files, provided that the files would do for a start.

    oslo.config puts whatever it reads in force, and a value that is none raises at the next look at it: that of a
    time-out ended the process at the next SIGTERM, with its tasks. Hence a trial on the side comes first.

    :raises retryflow.errors.ConfigurationError: one line that says what is wrong; the old values stay in force.
    """
    trial = cfg.ConfigOpts()
    register_all(trial)
    try:
        trial([], project="retryflow", default_config_files=conf.config_file or [], default_config_dirs=conf.config_dir)
    except (cfg.Error, OSError, UnicodeError) as error:
        raise ConfigurationError(unreadable_file(error, conf.config_file or [])) from error
    validate(trial)
    conf.mutate_config_files()
