"""Options of the retry policy: when a task is tried again, and when it is given up."""

from oslo_config import cfg

GROUP = cfg.OptGroup("retry", title="Retry policy", help="When a task is run again, and when its order is given up.")
OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "initial_interval_seconds",
        default=15.0,
        min=0.1,
        max=86400.0,
        mutable=True,
        help="Seconds from a first failure to the next attempt. A plugin that names its own delay overrides it.",
    ),
    cfg.FloatOpt(
        "backoff_coefficient",
        default=2.0,
        min=1.0,
        max=100.0,
        mutable=True,
        help="Factor by which the delay grows with each further failure, up to maximum_interval_seconds. With the "
        "defaults: 15 s, 30 s, 60 s and so on, and once an hour from the ninth failure on. 1 keeps it constant.",
    ),
    cfg.FloatOpt(
        "maximum_interval_seconds",
        default=3600.0,
        min=0.1,
        max=2592000.0,
        mutable=True,
        help="Longest delay in seconds between two attempts: a backend that comes back after a day is asked again "
        "within this time. At least initial_interval_seconds.",
    ),
    cfg.IntOpt(
        "maximum_attempts",
        default=0,
        min=0,
        max=1000000,
        mutable=True,
        help="Number of failed attempts after which an order goes to ERROR. 0 means: only give_up_after_seconds "
        "decides.",
    ),
    cfg.FloatOpt(
        "jitter",
        default=0.2,
        min=0.0,
        max=1.0,
        mutable=True,
        help="Random part of each delay: 0.2 spreads it by a fifth up and down, so that a thousand orders that failed "
        "together do not come back together. 0 switches it off.",
    ),
    cfg.FloatOpt(
        "give_up_after_seconds",
        default=259200.0,
        min=1.0,
        max=315360000.0,
        mutable=True,
        help="Seconds for which an order may go on failing before it goes to ERROR, counted from the first of the "
        "failures. The default is three days: long enough for a backend that is down over a weekend.",
    ),
    cfg.FloatOpt(
        "default_poll_seconds",
        default=300.0,
        min=0.1,
        max=2592000.0,
        mutable=True,
        help="Seconds until an order that waits for its backend, such as a certificate authority, is looked at again, "
        "where the plugin does not say.",
    ),
    cfg.FloatOpt(
        "poll_give_up_after_seconds",
        default=2592000.0,
        min=1.0,
        max=315360000.0,
        mutable=True,
        help="Seconds for which an order may wait for its backend before it goes to ERROR, counted from the first "
        "look. The default is thirty days: waiting is no fault, and a certificate can take weeks.",
    ),
    cfg.IntOpt(
        "max_crashes",
        default=3,
        min=1,
        max=1000,
        mutable=True,
        help="Number of times in a row that a task may take its worker process down, or outrun [lease] "
        "max_run_seconds, before its order goes to ERROR. A task that kills its worker would otherwise kill them all, "
        "one after the other.",
    ),
]
