#!/usr/bin/env python3
"""Start the task scheduler from a checkout; an installation has the command ``barbican-task-scheduler`` instead."""

import sys

from _checkout import enter

enter("barbican-task-scheduler")

from retryflow.cmd.scheduler import main

if __name__ == "__main__":
    sys.exit(main())
