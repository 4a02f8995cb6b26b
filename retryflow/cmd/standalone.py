"""``retryflow-standalone``: worker and scheduler in one process, on a database of its own; no option is required."""

import sys
from collections.abc import Sequence

from retryflow.service import signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run worker and scheduler until they are told to stop.

    :param argv: the arguments after the program's name; those of the process if ``None``.
    :returns: the exit status, see :class:`retryflow.service.status.ExitStatus`.
    """
    signals.install_early()
    from retryflow.cmd import daemon

    return daemon.run(sys.argv[1:] if argv is None else argv, daemon.STANDALONE)


if __name__ == "__main__":
    sys.exit(main())
