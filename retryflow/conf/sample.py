"""``python -m retryflow.conf.sample``: write ``etc/retryflow/retryflow.conf.sample`` anew, from a checkout's root."""

import sys
from collections.abc import Sequence

from oslo_config import generator

from retryflow.conf.backend import select_threading

GENERATOR_FILE = "etc/oslo-config-generator/retryflow.conf"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``oslo-config-generator`` with our list of namespaces and without eventlet's warning.

    :param argv: more arguments for it, for example ``--output-file FILE``.
    """
    select_threading()
    generator.main(["--config-file", GENERATOR_FILE, *(sys.argv[1:] if argv is None else argv)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
