#!/usr/bin/env python3
"""Start the RPC worker from a checkout; an installation has the command ``barbican-worker`` instead."""

import sys

from _checkout import enter

enter("barbican-worker")

from retryflow.cmd.worker import main

if __name__ == "__main__":
    sys.exit(main())
