"""What a command reads belongs together, whatever daemons do meanwhile."""

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from retryflow.cli.store import Store
from retryflow.conf import register_all
from retryflow.model.transaction import transact
from tests.fixtures.contract import Desk


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    register_all(made)
    made([], project="retryflow", default_config_files=[], default_config_dirs=[])
    return made


def test_an_order_that_moves_on_between_two_statements_is_not_taken_for_a_stuck_one(
    desk: Desk, conf: cfg.ConfigOpts
) -> None:
    """Looked for among the leases before it is there, and among the retry rows when it is no longer, it has no next
    step."""
    conf.set_override("connection", desk.url, "database")
    desk.submit()
    store = Store(conf)
    tables = ("orders", "order_retry_tasks", "order_task_leases")

    def count(connection: sa.Connection) -> list[int]:
        return [int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()) for table in tables]

    def look(connection: sa.Connection) -> tuple[list[int], list[int]]:
        before = count(connection)
        transact(desk.engine, lambda other: other.exec_driver_sql("DELETE FROM order_task_leases"))
        return before, count(connection)

    before, after = store.read(look)
    assert before == after == [1, 0, 1]
    assert store.read(count) == [1, 0, 0]
    store.close()
