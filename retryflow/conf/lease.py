"""Options of the lease that a worker holds on the order whose task it runs."""

from oslo_config import cfg

GROUP = cfg.OptGroup(
    "lease", title="Task lease", help="Who may work on an order, and for how long it is believed alive."
)
OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "lease_seconds",
        default=20.0,
        min=1.0,
        max=86400.0,
        help="Seconds without renewal after which a running task counts as lost with its worker, and is run again by "
        "another one. It does not limit how long a task may run, since the lease is renewed as long as the worker "
        "lives. Raise it if workers are paused for long (live migration of virtual machines, a slow database). Set "
        "the same value on all nodes.",
    ),
    cfg.FloatOpt(
        "renew_seconds",
        default=5.0,
        min=0.1,
        max=28800.0,
        help="Seconds between two renewals of the leases that a worker process holds. At most a third of "
        "lease_seconds, so that a single failed renewal never costs a lease.",
    ),
    cfg.FloatOpt(
        "max_run_seconds",
        default=0.0,
        min=0.0,
        max=31536000.0,
        mutable=True,
        help="Longest time in seconds that a single run of a task may take. After that its lease is no longer renewed "
        "and the task is run again elsewhere, counted as a crash. 0 means: no limit. Set it well above your longest "
        "task, as a guard against calls that never return.",
    ),
]
