"""The rules that every session gets. Runs on each database."""

from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.errors import ConfigurationError
from retryflow.model import orders
from retryflow.model.engine import READ_ONLY, create_engine, is_galera
from retryflow.model.tables import order_plugin_metadata
from retryflow.model.transaction import transact
from retryflow.model.upsert import excluded, insert_or_ignore, upsert
from tests.fixtures.retry_list import RetryList


def _values(retry_list: RetryList, *queries: str) -> list[Any]:
    with retry_list.engine.connect() as connection:
        return [connection.exec_driver_sql(query).scalar() for query in queries]


def test_every_session_has_the_isolation_and_the_limits_that_keep_a_paused_client_from_holding_up_the_rest(
    retry_list: RetryList,
) -> None:
    match retry_list.kind:
        case "postgresql":
            names = ("transaction_isolation", "lock_timeout", "idle_in_transaction_session_timeout")
            assert _values(retry_list, *(f"SHOW {name}" for name in names)) == ["read committed", "2s", "10s"]
        case "mysql":
            names = ("tx_isolation", "innodb_lock_wait_timeout", "idle_transaction_timeout", "time_zone")
            found = _values(retry_list, *(f"SELECT @@session.{name}" for name in names))
            assert found == ["READ-COMMITTED", 2, 10, "+00:00"]
            assert "STRICT_TRANS_TABLES" in _values(retry_list, "SELECT @@session.sql_mode")[0]
        case "sqlite":
            names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            assert _values(retry_list, *(f"PRAGMA {name}" for name in names)) == ["wal", 2, 1, 2000]


def test_a_writing_transaction_of_sqlite_begins_as_a_writer(retry_list: RetryList) -> None:
    """One that reads first and writes then fails at once when another has written in between."""
    if retry_list.kind != "sqlite":
        pytest.skip("only SQLite has such transactions")
    began: list[str] = []
    sa.event.listen(
        retry_list.engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *rest: began.append(statement) if "BEGIN" in statement else None,
    )
    with retry_list.engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
    with retry_list.engine.execution_options(**{READ_ONLY: True}).begin() as connection:
        connection.exec_driver_sql("SELECT 1")
    assert began == ["BEGIN IMMEDIATE", "BEGIN DEFERRED"]


def test_deleting_an_order_takes_its_rows_along(retry_list: RetryList) -> None:
    [order_id] = retry_list.new_orders()
    retry_list.rows(orders_of=[order_id])
    retry_list.leases(orders_of=[order_id])
    transact(retry_list.engine, lambda connection: orders.save_state(connection, order_id, {"k": "v"}))
    assert transact(retry_list.engine, lambda connection: orders.delete(connection, order_id))
    for table in ("orders", "order_retry_tasks", "order_task_leases", "order_plugin_metadata"):
        assert retry_list.table(table) == []


def test_an_order_has_one_lease_and_one_row_for_each_task(retry_list: RetryList) -> None:
    """P1, P3: the database itself refuses a second one."""
    [order_id] = retry_list.new_orders()
    retry_list.rows(orders_of=[order_id])
    retry_list.leases(orders_of=[order_id])
    for again in (retry_list.rows, retry_list.leases):
        with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
            again(orders_of=[order_id])
    retry_list.rows(orders_of=[order_id], retry_task="another")


def test_plugin_state_saved_three_times_is_one_row_with_the_last_value(retry_list: RetryList) -> None:
    """T11."""
    [order_id] = retry_list.new_orders()
    for value in ("one", "two", "three"):
        transact(
            retry_list.engine,
            lambda connection, value=value: orders.save_state(connection, order_id, {"k": value, value: "x"}),
        )
    kept = transact(retry_list.engine, lambda connection: orders.state(connection, order_id))
    assert kept == {"k": "three", "one": "x", "two": "x", "three": "x"}


def test_inserting_what_is_there_changes_nothing_and_leaves_the_transaction_usable(retry_list: RetryList) -> None:
    [order_id] = retry_list.new_orders()
    values = {"order_id": order_id, "key": "k", "value": "old"}

    def work(connection: sa.Connection) -> list[bool]:
        insert = [
            insert_or_ignore(connection, order_plugin_metadata, values | {"value": value}, key=("order_id", "key"))
            for value in ("old", "new")
        ]
        connection.execute(
            upsert(
                connection.dialect,
                order_plugin_metadata,
                values | {"key": "l", "value": "l1"},
                key=("order_id", "key"),
                update={"value": excluded(connection.dialect, order_plugin_metadata, "value")},
            )
        )
        return insert

    assert transact(retry_list.engine, work) == [True, False]
    assert transact(retry_list.engine, lambda connection: orders.state(connection, order_id)) == {"k": "old", "l": "l1"}


def test_a_bad_value_is_an_error_and_not_a_row_that_was_there(retry_list: RetryList) -> None:
    """S7: only a duplicate key means "taken"."""
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        transact(
            retry_list.engine,
            lambda connection: insert_or_ignore(
                connection, order_plugin_metadata, {"order_id": "x", "key": "k", "value": "v"}, key=("order_id", "key")
            ),
        )


def test_long_and_broken_texts_are_kept(retry_list: RetryList) -> None:
    """P8: a value that is no JSON comes back as what it is, not as an exception; 64 KiB is no limit."""
    long = "ä" * 100_000
    [order_id] = retry_list.new_orders()
    retry_list.sql("UPDATE orders SET meta = '{broken'")
    transact(retry_list.engine, lambda connection: orders.save_state(connection, order_id, {"k": long}))
    assert str(retry_list.order(order_id).meta) == "{broken"
    assert transact(retry_list.engine, lambda connection: orders.state(connection, order_id)) == {"k": long}


def test_a_name_is_compared_exactly(retry_list: RetryList) -> None:
    """MariaDB's usual collation takes upper and lower case, and trailing blanks, for the same key."""
    [order_id] = retry_list.new_orders()
    state = {"Key": "1", "key": "2", "kéy": "3"}
    transact(retry_list.engine, lambda connection: orders.save_state(connection, order_id, state))
    assert transact(retry_list.engine, lambda connection: orders.state(connection, order_id)) == state


def test_one_node_alone_is_no_galera_cluster(retry_list: RetryList) -> None:
    assert is_galera(retry_list.engine) is False


def test_a_connection_that_broke_unnoticed_is_one_line_in_the_log(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    if retry_list.kind != "mysql":
        pytest.skip("this driver asks the server nothing when a connection goes back to the pool")
    with retry_list.engine.connect() as connection, retry_list.engine.connect() as killer:
        number = connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()
        connection.commit()
        killer.exec_driver_sql(f"KILL {number}")
        connection.close()
    [record] = [record for record in caplog.records if record.name.startswith("sqlalchemy.pool")]
    assert record.exc_info is None
    assert record.getMessage().startswith("Exception during reset or similar: ")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "not a database URL"),
        ("oracle://scott:tiger@host/x", "'oracle'"),
        ("postgresql+nodriver://u:hidden@host/x", "postgresql+nodriver"),
    ],
)
def test_a_url_that_cannot_work_is_refused_in_one_line_without_its_password(
    retry_list: RetryList, url: str, words: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        create_engine(url)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert "hidden" not in message
    assert "tiger" not in message
    assert retry_list.kind
