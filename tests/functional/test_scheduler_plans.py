"""What the scheduler asks does not grow with what is not due (S14): plans on each database, not times."""

import pytest
import sqlalchemy as sa

from retryflow.model import leases, retry_rows
from retryflow.model.tables import order_retry_tasks, order_task_leases
from retryflow.model.transaction import read
from retryflow.retry.look import look
from retryflow.retry.settings import Settings
from tests.fixtures.retry_list import SERVERS, RetryList

ROWS = 20_000
BIG = {"order_retry_tasks", "order_task_leases", "orders"}


pytestmark = pytest.mark.parametrize("retry_list", ["sqlite", *SERVERS], indirect=True)


@pytest.fixture
def full_list(retry_list: RetryList) -> RetryList:
    """A list with many rows and running leases, none of them due, and one of each that is."""
    _fill(retry_list)
    return retry_list


def _fill(retry_list: RetryList) -> None:
    number = {
        "sqlite": f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})",
        "postgresql": f"WITH n AS (SELECT i FROM generate_series(1, {ROWS}) AS s(i))",
        "mysql": "",
    }[retry_list.kind]
    source = "n" if retry_list.kind != "mysql" else f"(SELECT seq AS i FROM seq_1_to_{ROWS}) AS n"
    key = {
        "sqlite": "printf('%s-%08d', ?, i)",
        "postgresql": "'{0}-' || lpad(i::text, 8, '0')",
        "mysql": "CONCAT('{0}-', LPAD(i, 8, '0'))",
    }[retry_list.kind]
    if retry_list.kind == "sqlite":
        key = "'{0}-' || substr('0000000' || i, -8)"
    later = "'2100-01-01 00:00:00'" if retry_list.kind != "postgresql" else "TIMESTAMP '2100-01-01'"
    soon = {
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '+600 seconds')",
        "postgresql": "(clock_timestamp() AT TIME ZONE 'UTC') + interval '600 seconds'",
        "mysql": "UTC_TIMESTAMP(6) + INTERVAL 600 SECOND",
    }[retry_list.kind]

    def insert(table: str, columns: str, values: str) -> None:
        if retry_list.kind == "mysql":
            retry_list.sql(f"INSERT INTO {table} ({columns}) SELECT {values} FROM {source}")
        elif retry_list.kind == "sqlite":
            retry_list.sql(f"INSERT INTO {table} ({columns}) {number} SELECT {values} FROM {source}")
        else:
            retry_list.sql(f"{number} INSERT INTO {table} ({columns}) SELECT {values} FROM {source}")

    for kind in ("r", "l"):
        insert(
            "orders",
            "id, type, status, created_at, updated_at",
            f"{key.format(kind)}, 'probe', 'PENDING', {soon}, {soon}",
        )
    insert(
        "order_retry_tasks",
        "id, order_id, retry_task, retry_at, retry_args, retry_kwargs, created_at",
        f"{key.format('t')}, {key.format('r')}, 'process_type_order', {later}, '[]', '{{}}', {soon}",
    )
    insert(
        "order_task_leases",
        "id, order_id, task, args, kwargs, holder, created_at, expires_at",
        f"{key.format('k')}, {key.format('l')}, 'process_type_order', '[]', '{{}}', 'w:1:t', {soon}, {soon}",
    )
    retry_list.rows()
    retry_list.leases()
    statement = {
        "sqlite": "ANALYZE",
        "postgresql": "ANALYZE",
        "mysql": "ANALYZE TABLE orders, order_retry_tasks, order_task_leases",
    }
    with retry_list.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(statement[retry_list.kind])


def _rows_read(retry_list: RetryList, work) -> int:  # type: ignore[no-untyped-def]
    """How many rows or index entries of the big tables a piece of work touches, as the server itself counts them."""
    if retry_list.kind == "mysql":
        with retry_list.engine.connect() as connection:
            connection.exec_driver_sql("FLUSH STATUS")
            work(connection)
            found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
            return sum(int(value) for _, value in found)
    statements: list[tuple[str, object]] = []

    def remember(connection, cursor, statement, parameters, *rest):  # type: ignore[no-untyped-def]
        statements.append((statement, parameters))

    with retry_list.engine.connect() as connection:
        sa.event.listen(connection, "before_cursor_execute", remember)
        work(connection)
        sa.event.remove(connection, "before_cursor_execute", remember)
        return sum(_cost(retry_list, connection, *statement) for statement in statements if "SELECT" in statement[0])


def _cost(retry_list: RetryList, connection: sa.Connection, statement: str, parameters: object) -> int:
    if retry_list.kind == "sqlite":
        plan = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters).all()  # type: ignore[arg-type]
        lines = [str(row[3]) for row in plan]
        # A scan along an index in the wanted order stops at the limit; a scan without one, or a sort, reads all.
        bad = [
            line
            for line in lines
            if ("SCAN" in line and "USING" not in line and any(table in line for table in BIG)) or "TEMP B-TREE" in line
        ]
        assert not bad, "\n".join(lines)
        return 0
    plan = connection.exec_driver_sql("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, parameters).scalar_one()  # type: ignore[arg-type]
    return _postgresql_rows(plan[0]["Plan"])


def _postgresql_rows(node: dict[str, object]) -> int:
    own = 0
    if node.get("Relation Name") in BIG:
        own = int(
            (float(str(node["Actual Rows"])) + float(str(node.get("Rows Removed by Filter", 0))))
            * int(str(node["Actual Loops"]))
        )
    plans = node.get("Plans", [])
    assert isinstance(plans, list)
    return own + sum(_postgresql_rows(plan) for plan in plans)


def test_s14_a_tick_reads_a_handful_of_rows_of_many(full_list: RetryList) -> None:
    """S14: 3 ms with an empty list and 116 ms with a long one elsewhere; here the list's length does not matter."""
    _the_look(full_list)
    _the_search_for_work(full_list)
    _moving_a_row(full_list)


def _the_search_for_work(full_list: RetryList) -> None:
    works = {
        "due": lambda connection: retry_rows.due(connection, limit=500),
        "expired": lambda connection: leases.expired(connection, limit=500),
        "expired, waiting only": lambda connection: leases.expired(connection, limit=500, held=False),
        "waiting": lambda connection: leases.waiting_count(connection, up_to=10_001),
    }
    read_rows = {name: _rows_read(full_list, work) for name, work in works.items()}
    assert all(count < 50 for count in read_rows.values()), read_rows
    with full_list.engine.connect() as connection:
        assert len(retry_rows.due(connection, limit=500)) == 1
        assert len(leases.expired(connection, limit=500)) == 1
        assert leases.waiting_count(connection, up_to=10_001) == 1


def _the_look(full_list: RetryList) -> None:
    seen: list[sa.Connection] = []

    def work(connection: sa.Connection) -> None:
        seen.append(connection)
        engine_of_one = _OneConnection(full_list.engine, connection)
        look(engine_of_one)  # type: ignore[arg-type]

    assert _rows_read(full_list, work) < 50
    assert seen
    assert look(full_list.engine).row_due_in is not None


class _OneConnection:
    """Lets ``look`` use a connection that is watched."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection) -> None:
        self.dialect = engine.dialect
        self._connection = connection

    def execution_options(self, **options: object) -> "_OneConnection":
        return self

    def connect(self) -> "_OneConnection":
        return self

    def __enter__(self) -> "_OneConnection":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def begin(self) -> object:
        return self._connection.get_transaction() or self._connection.begin()


def _moving_a_row(full_list: RetryList) -> None:
    """By primary key (S10), in a list of whatever length."""
    with full_list.engine.connect() as connection:
        [row] = retry_rows.due(connection, limit=10)
    if full_list.kind == "mysql":
        with full_list.engine.connect() as connection:
            connection.exec_driver_sql("FLUSH STATUS")
            assert retry_rows.lock(connection, [row.id]) == {row.id}
            assert leases.insert_from_retry_rows(connection, [row.id], expires_in_seconds=30.0) == 1
            assert retry_rows.delete(connection, [row.id]) == 1
            found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
            assert sum(int(value) for _, value in found) < 50
    batch = full_list.dispatcher(Settings()).dispatch(500)
    assert len(batch.tickets) == 1
    counts = [sa.select(sa.func.count()).select_from(table) for table in (order_retry_tasks, order_task_leases)]
    found_rows = read(full_list.engine, lambda connection: [connection.execute(query).scalar_one() for query in counts])
    assert found_rows == [ROWS, ROWS + 2]
