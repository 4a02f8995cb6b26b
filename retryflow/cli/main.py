"""Entry point of ``retryflow``."""

import os
import sys
from collections.abc import Sequence

FAILED = 1
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: the arguments after the program's name; those of the process if ``None``.
    :returns: the exit status: 0 it was done, 1 it was not (one line on standard error says why), 2 wrong usage; some
        commands have further ones, which their help names.
    """
    _prepare_streams()
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as end:
        # After help, or wrong usage.
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else FAILED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = BROKEN_PIPE
    return _flushed(status)


def _run(arguments: list[str]) -> int:
    # Before the rooms below it are imported, since they import oslo.messaging, which settles on a backend.
    from retryflow.conf.backend import select_threading

    select_threading()
    from retryflow.cli.app import RetryflowApp

    app = RetryflowApp()
    try:
        return app.run(arguments)
    finally:
        app.close()


def _prepare_streams() -> None:
    """A stream that was closed (``>&-``) has nobody at its other end; what a stream's encoding lacks is written out."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It also takes the closed stream's number, which no database connection is to get.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open to the end
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _flushed(status: int) -> int:
    """:returns: the exit status, after what the command has printed went out, or did not."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = BROKEN_PIPE
    except OSError as error:
        if not status:
            # Otherwise it was told already, or something worse was.
            sys.stderr.write(f"retryflow: standard output: {error.strerror}\n")
            status = FAILED
    else:
        if status != BROKEN_PIPE:
            return status
    # The reader has gone, or the disk is full; the interpreter must not complain about that when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
