#!/bin/sh
# Starts the task scheduler from a checkout, in the checkout's virtual environment, which is made on first use. Arguments are
# passed on.
set -u
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
. "$root/bin/_venv.sh"
retryflow_venv_with_a_driver || exit 1
# exec, so that signals and the exit status are the daemon's own.
exec "$venv/bin/python" "$root/bin/barbican-task-scheduler.py" "$@"
