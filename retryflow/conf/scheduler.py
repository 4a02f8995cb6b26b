"""Options of the periodic retry process (retry specification, section "Other deployer impact")."""

from oslo_config import cfg

GROUP = cfg.OptGroup("scheduler", title="Task scheduler", help="The process that puts due retry tasks on the queue.")
OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "schedule_period_seconds",
        default=15.0,
        min=0.1,
        max=86400.0,
        mutable=True,
        help="Seconds between two looks at the retry list, dithered by a fifth up and down so that schedulers on "
        "several nodes do not meet. A task that is due earlier is not late for it: the scheduler sleeps no longer "
        "than until the next task is due. Raise it to ask an idle database less often.",
    ),
    cfg.FloatOpt(
        "retry_lock_timeout_seconds",
        default=60.0,
        min=1.0,
        max=86400.0,
        help="Age in seconds after which the lock on the retry list counts as left behind by a dead scheduler, and "
        "the next one takes it over. The holder touches the lock with each batch, so a long run never looks dead. "
        "Must be more than twice batch_timeout_seconds, and should be the same on all nodes.",
    ),
    cfg.IntOpt(
        "batch_size",
        default=500,
        min=1,
        max=10000,
        mutable=True,
        help="Retry tasks put on the queue in one transaction. A run goes on batch after batch until nothing is due. "
        "Lower it if batches come near batch_timeout_seconds on a slow database.",
    ),
    cfg.FloatOpt(
        "batch_timeout_seconds",
        default=10.0,
        min=0.5,
        max=3600.0,
        mutable=True,
        help="Longest time in seconds that one batch may take, database statements and sending of tickets included. "
        "Must be more than [queue] publish_timeout_seconds and less than half of retry_lock_timeout_seconds.",
    ),
    cfg.IntOpt(
        "max_outstanding_tickets",
        default=10000,
        min=1,
        max=100000000,
        mutable=True,
        help="When this many tasks are on the queue and not started, only a tenth of a batch is added in each period, "
        "so that a backlog stays in the database, where it is safe and cheap, and not in the broker's memory. Raise it "
        "if your workers start more tasks than this in one period.",
    ),
    cfg.FloatOpt(
        "ticket_resend_seconds",
        default=30.0,
        min=1.0,
        max=86400.0,
        mutable=True,
        help="Seconds after which a ticket that no worker has taken is sent again, in case the broker lost it; doubled "
        "with each further time up to ticket_resend_maximum_seconds. The broker keeps a ticket for the same time, so "
        "that copies do not pile up.",
    ),
    cfg.FloatOpt(
        "ticket_resend_maximum_seconds",
        default=300.0,
        min=1.0,
        max=86400.0,
        mutable=True,
        help="Longest time in seconds between two sendings of one ticket. At least ticket_resend_seconds.",
    ),
    cfg.IntOpt(
        "max_sends",
        default=10,
        min=1,
        max=10000,
        mutable=True,
        help="A task whose ticket was sent so many times without any worker taking it goes back to the retry list, "
        "with backoff.",
    ),
]
