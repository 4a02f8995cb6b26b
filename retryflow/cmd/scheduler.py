"""``barbican-task-scheduler``: puts due retry tasks on the queue; one on each worker node, they take turns."""

import sys
from collections.abc import Sequence

from retryflow.service import signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scheduler until it is told to stop.

    :param argv: the arguments after the program's name; those of the process if ``None``.
    :returns: the exit status, see :class:`retryflow.service.status.ExitStatus`.
    """
    signals.install_early()
    from retryflow.cmd import daemon

    return daemon.run(sys.argv[1:] if argv is None else argv, daemon.SCHEDULER)


if __name__ == "__main__":
    sys.exit(main())
