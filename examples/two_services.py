"""Two small services in one process, started by hand: each has its own topic, manager and report, the stop is one."""

from retryflow.service.signals import install_early

# First thing, before slow imports: a signal that comes from now on ends the process in good order.
install_early()

import sys
import time
from typing import Any

from retryflow import conf
from retryflow.conf import CONF
from retryflow.errors import RetryflowError
from retryflow.service import launch
from retryflow.service.group import ServiceGroup
from retryflow.service.plain import Manager, expose
from retryflow.service.rpc import rpc_server
from retryflow.service.worker import WorkerService

PROGRAM = "two-services"


class Builder(Manager):
    @expose
    def build(self, context: Any, order_id: str, seconds: float = 1.0) -> str:
        print(f"Building {order_id}", flush=True)
        time.sleep(seconds)
        return f"{order_id} is built"


class Checker(Manager):
    @expose
    def check(self, context: Any, order_id: str, seconds: float = 1.0) -> str:
        print(f"Checking {order_id}", flush=True)
        time.sleep(seconds)
        return f"{order_id} is right"


def make_services() -> ServiceGroup:
    """Called in the process that serves, after any fork."""
    builder = WorkerService(CONF, Builder(CONF), server_factory=rpc_server(CONF, topic="builders"))
    checker = WorkerService(CONF, Checker(CONF), server_factory=rpc_server(CONF, topic="checkers"))
    return ServiceGroup(CONF, [builder, checker])


def main(argv: list[str]) -> int:
    try:
        conf.parse(argv, prog=PROGRAM)
        conf.validate(CONF)
    except RetryflowError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return launch.ExitStatus.REFUSED
    return launch.run(CONF, make_services, workers=1)


if __name__ == "__main__":
    # In place of sys.exit: a thread that ignored the stop would keep the interpreter from ending.
    launch.exit_now(main(sys.argv[1:]))
