"""Many old orders go in bounded transactions while the daemons work, and nobody notices."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import sqlalchemy as sa

from tests.fixtures.deployment import Deployment

ORDERS = int(os.environ.get("RETRYFLOW_TEST_PURGED_ORDERS", "100000"))
_FILL = sa.text(
    "INSERT INTO orders (id, project_id, type, meta, status, result, created_at, updated_at) "
    "SELECT 'old-' || n, 'p', 'probe', '{}', CASE WHEN n % 10 = 0 THEN 'ERROR' ELSE 'ACTIVE' END, '{}', "
    "now() - interval '200 days', now() - interval '200 days' FROM generate_series(1, :count) AS n"
)


def test_many_old_orders_are_purged_beside_working_daemons(
    make_deployment: Callable[[str], Deployment],
) -> None:
    deployment = make_deployment("postgresql")
    with deployment.engine.begin() as connection:
        connection.execute(_FILL, {"count": ORDERS})
    deployment.start("worker")
    deployment.start("scheduler")
    began = time.monotonic()
    command = [sys.executable, "-m", "retryflow.cli.main", *deployment.config(), "db", "purge", "--older-than", "90d"]
    # Its progress is not read while it works: a pipe would fill up.
    errors = (deployment.directory / "purge.err").open("w+")
    purge = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    fresh: list[str] = []
    while purge.poll() is None:
        fresh += deployment.submit(5, steps=["poll 0.1", "done"])
        time.sleep(0.2)
    assert purge.stdout is not None
    errors.seek(0)
    assert purge.returncode == 0, errors.read()
    errors.close()
    print(f"purged in {time.monotonic() - began:.0f} s beside {len(fresh)} orders: {purge.stdout.read().strip()}")
    assert deployment.wait_until_ended() == {"ACTIVE": len(fresh)}
    assert {run.crash_count for run in deployment.runs("start")} == {0}
