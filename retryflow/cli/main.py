"""Entry point of ``retryflow``."""

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: the arguments after the program's name; those of the process if ``None``.
    :returns: the exit status: 0 it was done, 1 it was not (one line on standard error says why), 2 wrong usage; some
        commands have further ones, which their help names.
    """
    try:
        # Before the rooms below it are imported, since they import oslo.messaging, which settles on a backend.
        from retryflow.conf.backend import select_threading

        select_threading()
        from retryflow.cli.app import RetryflowApp

        app = RetryflowApp()
        try:
            status = app.run(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
        finally:
            app.close()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        status = BROKEN_PIPE
    if status == BROKEN_PIPE:
        # The reader has gone; the interpreter must not complain about that when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
