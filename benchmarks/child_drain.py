"""One scheduler's tick over whatever is due; prints what it took. Started by the benchmark ``drain``."""

import json
import resource
import sys
import time

from retryflow.conf.backend import select_threading

select_threading()

from retryflow.conf import CONF, database_url, parse  # noqa: E402
from retryflow.model.engine import create_engine  # noqa: E402
from retryflow.queue.client import TaskClient  # noqa: E402
from retryflow.queue.transport import get_transport  # noqa: E402
from retryflow.retry.settings import Settings  # noqa: E402
from retryflow.retry.tick import Ticker  # noqa: E402


def main() -> None:
    """Drain and print."""
    parse(["--config-file", sys.argv[1]], prog="barbican-task-scheduler")
    engine = create_engine(database_url(CONF))
    ticker = Ticker(
        engine, holder="host:1:token", sender=TaskClient(get_transport(CONF), CONF), settings=Settings.from_conf(CONF)
    )
    began, cpu = time.perf_counter(), time.process_time()
    report = ticker.tick()
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "dispatched": report.dispatched,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
