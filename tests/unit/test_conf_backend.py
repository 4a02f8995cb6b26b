"""The commands run on the threading backend, and eventlet stays out of the process."""

import subprocess
import sys


def test_a_command_selects_the_threading_backend_and_never_loads_eventlet() -> None:
    script = """
import sys
import retryflow.cmd.daemon
import oslo_messaging, oslo_messaging._drivers.impl_rabbit, oslo_service.service, oslo_log.log
import oslo_db.sqlalchemy.enginefacade
from oslo_service import backend
print(backend.get_backend_type().value, sys.modules.get("eventlet"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["threading", "None"], "")


def test_the_choice_can_be_made_twice() -> None:
    from retryflow.conf.backend import select_threading

    select_threading()
    select_threading()
