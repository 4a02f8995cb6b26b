"""Options of the task queue. The names on the wire are upstream Barbican's, so that its clients reach our workers."""

from oslo_config import cfg

READ_AHEAD = 4
GROUP = cfg.OptGroup("queue", title="Task queue", help="How workers, schedulers and clients meet on the message bus.")
OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "namespace",
        default="barbican",
        help="Namespace of the RPC methods. Workers, schedulers and clients must agree on it.",
    ),
    cfg.StrOpt(
        "topic",
        default="barbican.workers",
        help="Topic, that is the queue, from which the workers take tickets. Set another one to keep two deployments "
        "on one message broker apart.",
    ),
    cfg.StrOpt(
        "version",
        default="1.1",
        regex=r"^\d+\.\d+$",
        help="Version of the RPC methods, as major.minor. A worker serves this and each lower minor version.",
    ),
    cfg.StrOpt(
        "server_name",
        default="barbican.queue",
        help="Name under which a worker listens for messages sent to one server. Workers may share it, since tickets "
        "go to the topic.",
    ),
    cfg.IntOpt(
        "asynchronous_workers",
        default=1,
        min=1,
        max=1024,
        help="Number of worker processes that one barbican-worker starts. Each runs executor_thread_pool_size tasks "
        "at a time and opens as many database connections as that needs.",
    ),
    cfg.IntOpt(
        "read_ahead",
        default=READ_AHEAD,
        min=0,
        max=1024,
        help="Number of tickets that a worker process takes beyond those that its threads are running, so that a "
        "thread that becomes free need not wait for the broker. At most executor_thread_pool_size; where this is not "
        "set, and that is lower, it is as low. Lower it, down to 0, where tasks are long: a ticket read ahead waits "
        "here although another worker may be idle.",
    ),
    cfg.StrOpt(
        "scheduler_topic",
        default="barbican.scheduler",
        help="Topic on which workers wake the schedulers when a task is due before their next period. A lost wake-up "
        "costs at most one [scheduler] schedule_period_seconds.",
    ),
    cfg.FloatOpt(
        "publish_timeout_seconds",
        default=5.0,
        min=0.1,
        max=300.0,
        help="Seconds within which the broker must have confirmed tickets that are being sent. What was not confirmed "
        "is sent again by the scheduler later, nothing is lost. Must be less than [scheduler] batch_timeout_seconds, "
        "which includes it.",
    ),
]


def read_ahead(conf: cfg.ConfigOpts) -> int:
    """``[queue] read_ahead``; where nobody has set it, no more than there are threads."""
    wanted: int = conf.queue.read_ahead
    place = conf.get_location("read_ahead", "queue")
    is_set = wanted != READ_AHEAD or (place is not None and place.location.is_user_controlled)
    return wanted if is_set else min(wanted, conf.executor_thread_pool_size)
