"""Options of a daemon as a whole: its stop, its report, its directory (task tracking specification)."""

import os
from pathlib import Path

from oslo_config import cfg


def default_state_path() -> str:
    """Where a daemon that was told nothing keeps its files, after the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(base) / "retryflow")


GROUP = None
OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "manager_shutdown_timeout",
        default=160.0,
        min=0.0,
        max=31536000.0,
        mutable=True,
        help="Seconds that a worker waits, after SIGTERM, for the tasks in progress. It stops as soon as the last one "
        "has ended; only what is still running at the end of this time is interrupted and given back to the retry "
        "list. Raise it to the length of your longest ordinary task. 0 means: wait without limit. "
        "graceful_shutdown_timeout must be at least 10 seconds longer (or 0), and whatever supervises the daemon "
        "(TimeoutStopSec of systemd, terminationGracePeriodSeconds of Kubernetes) longer still.",
    ),
    cfg.StrOpt(
        "shutdown_report_file",
        help="File to which a worker writes, as JSON at the end of its stop, each task that was in progress and what "
        "became of it: finished, handed back or interrupted. Several services in one process write one file. With "
        "several worker processes '{pid}' in the name is replaced by the process id. Not set: the report goes to the "
        "log only.",
    ),
    cfg.StrOpt(
        "state_path",
        default=default_state_path(),
        sample_default="$XDG_STATE_HOME/retryflow",
        help="Directory for files that a daemon keeps by itself: the SQLite database where [database] connection is "
        "not set, and the demonstration certificate authority. It is created with mode 0700 when it is needed. "
        "If XDG_STATE_HOME is not set, ~/.local/state stands for it.",
    ),
]
