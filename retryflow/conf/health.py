"""Options of what a daemon tells about its own health."""

from oslo_config import cfg

GROUP = cfg.OptGroup("health", title="Health", help="What a daemon tells probes and supervisors about itself.")
OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "file",
        help="File in which a daemon says, as JSON and anew every few seconds, whether it is alive, ready and really "
        "working. '{prog}' in the name is replaced by the program's name, which is needed where a worker and a "
        "scheduler read the same configuration, '{number}' by the number of the worker process, counted from 0, and "
        "'{pid}' by its process id. With several worker processes and neither of the last two in the name, the number "
        "is added at its end. Not set: no file.",
    ),
    cfg.StrOpt(
        "address",
        help="Where a daemon answers probes over HTTP: host:port, or the absolute path of a UNIX socket, in which "
        "'{prog}', '{number}' and '{pid}' are replaced as in file. GET /alive, /ready and /working answer 200 for yes "
        "and 503 for no, with the reasons as JSON. Each of several worker processes answers for itself: the first at "
        "this port, each further one at the next higher port. Nothing is encrypted and nobody is asked for a "
        "password, so use 127.0.0.1 or a network that only probes reach. It needs the extra health of retryflow. Not "
        "set: no HTTP.",
    ),
    cfg.FloatOpt(
        "interval_seconds",
        default=5.0,
        min=0.1,
        max=3600.0,
        help="Seconds between two looks at oneself: the file is written and the broker is asked for a sign of life. A "
        "file older than a few intervals is the word of a process that hangs or has died.",
    ),
    cfg.FloatOpt(
        "stalled_after_seconds",
        default=120.0,
        min=1.0,
        max=86400.0,
        help="A worker that has a free thread and has taken nothing for so many seconds, while a task has waited for "
        "so long on the queue, is not really working. Should be longer than [scheduler] ticket_resend_seconds, since a "
        "ticket that the broker has lost waits for as long without anybody's fault.",
    ),
]
