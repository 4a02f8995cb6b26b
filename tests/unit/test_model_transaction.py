"""Transactions survive what databases do to them. Runs on each database."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exc

from retryflow.errors import ConfigurationError
from retryflow.model import locks, orders
from retryflow.model.engine import create_engine
from retryflow.model.transaction import ATTEMPTS, is_disconnect, is_lock_timeout, is_lost_race, read, transact
from tests.fixtures.retry_list import RetryList, together


def lost_race(retry_list: RetryList) -> Exception:
    """What the driver raises for a deadlock."""
    dbapi: Any = retry_list.engine.dialect.loaded_dbapi
    if retry_list.kind == "postgresql":
        return dbapi.errors.SerializationFailure("could not serialize access")  # type: ignore[no-any-return]
    if retry_list.kind == "mysql":
        return dbapi.OperationalError(1213, "Deadlock found when trying to get lock")  # type: ignore[no-any-return]
    return dbapi.OperationalError("database is locked")  # type: ignore[no-any-return]


def lose_commits(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Let the next ``count`` commits fail as they do for the loser on a Galera cluster: rolled back, and only then."""
    dialect = retry_list.engine.dialect
    commit = dialect.do_commit
    lost: list[int] = []

    def do_commit(connection: Any) -> None:
        if len(lost) < count:
            lost.append(1)
            connection.rollback()
            raise lost_race(retry_list)
        commit(connection)

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    return lost


def cut_commit(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> list[str]:
    """Let the next commit lose its connection, after or before the server has done it."""
    dialect = retry_list.engine.dialect
    commit, is_dead = dialect.do_commit, dialect.is_disconnect
    cut: list[str] = []

    def do_commit(connection: Any) -> None:
        if cut:
            commit(connection)
            return
        cut.append("cut")
        (commit if committed else dialect.do_rollback)(connection)
        connection.driver_connection.close()
        raise dialect.loaded_dbapi.OperationalError(2013, "Lost connection to server during query")

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    monkeypatch.setattr(
        dialect, "is_disconnect", lambda error, *args: "Lost connection" in str(error) or is_dead(error, *args)
    )
    return cut


def _insert(connection: sa.Connection) -> str:
    locks.insert(connection, "a:1:b:c")
    return "inserted"


def test_a_transaction_that_lost_a_race_at_commit_is_run_again_as_a_whole(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: on Galera the loser learns it at COMMIT, as a deadlock."""
    lost = lose_commits(retry_list, monkeypatch, ATTEMPTS - 1)
    calls: list[int] = []
    assert transact(retry_list.engine, lambda connection: (calls.append(1), _insert(connection))[1]) == "inserted"
    assert (len(calls), len(lost)) == (ATTEMPTS, ATTEMPTS - 1)
    assert retry_list.lock_row() is not None


def test_after_five_times_the_error_comes_out(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    lost = lose_commits(retry_list, monkeypatch, 100)
    with pytest.raises((db_exc.DBError, sa.exc.DBAPIError)) as caught:
        transact(retry_list.engine, _insert, sleep=pauses.append)
    assert is_lost_race(caught.value)
    assert len(lost) == ATTEMPTS
    assert len(pauses) == ATTEMPTS - 1
    assert sum(pauses) < 5.0


def test_a_serialization_failure_of_a_deferred_constraint_is_run_again(retry_list: RetryList) -> None:
    """The real thing on PostgreSQL: the server itself refuses at COMMIT, twice."""
    if retry_list.kind != "postgresql":
        pytest.skip("there are no deferred triggers")
    retry_list.sql(
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF nextval('tries') <= 2 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON entity_locks DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    assert transact(retry_list.engine, _insert) == "inserted"
    assert retry_list.lock_row() is not None


def test_two_transactions_that_lock_in_opposite_order_both_succeed(retry_list: RetryList) -> None:
    """S10: a real deadlock; the database picks a victim, and that one is run again."""
    if retry_list.kind == "sqlite":
        pytest.skip("one writer at a time")
    first, second = retry_list.rows(2)
    met = threading.Barrier(2)
    tries: list[str] = []

    def change(mine: str, others: str) -> Callable[[sa.Connection], None]:
        def work(connection: sa.Connection) -> None:
            tries.append(mine)
            _count_up(connection, mine)
            if len(tries) <= 2:
                met.wait(10)
            _count_up(connection, others)

        return work

    together(
        lambda: transact(retry_list.engine, change(first, second)),
        lambda: transact(retry_list.engine, change(second, first)),
    )
    assert len(tries) == 3
    assert [row["step"] for row in retry_list.retry_rows().values()] == [2, 2]


def test_who_has_no_patience_waits_for_a_locked_row_once_and_runs_again_after_any_other_lost_race(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = retry_list.rows()
    tries: list[int] = []

    def work(connection: sa.Connection) -> None:
        tries.append(1)
        _count_up(connection, row)

    with retry_list.engine.begin() as connection:
        _count_up(connection, row)
        with pytest.raises((db_exc.DBError, sa.exc.DBAPIError)) as caught:
            transact(retry_list.engine, work, patient=False)
    assert is_lock_timeout(caught.value)
    # SQLite, where every lost race is a wait for the lock, does not even begin.
    assert len(tries) <= 1
    if retry_list.kind != "sqlite":
        lose_commits(retry_list, monkeypatch, 2)
        tries.clear()
        transact(retry_list.engine, work, patient=False)
        assert len(tries) == 3


def _count_up(connection: sa.Connection, row: str) -> None:
    connection.exec_driver_sql(f"UPDATE order_retry_tasks SET step = step + 1 WHERE id = '{row}'")


def test_a_locked_row_is_waited_for_two_seconds_and_then_counts_as_a_lost_race(retry_list: RetryList) -> None:
    """A client that holds a lock for long must not hold up the rest."""
    [row] = retry_list.rows()
    with retry_list.engine.begin() as connection:
        _count_up(connection, row)
        began = time.monotonic()
        with pytest.raises((db_exc.DBError, sa.exc.DBAPIError)) as caught:
            transact(retry_list.engine, lambda other: _count_up(other, row), attempts=1)
        assert is_lost_race(caught.value)
        assert not is_disconnect(caught.value)
        assert time.monotonic() - began < 20.0
    transact(retry_list.engine, lambda connection: _count_up(connection, row))


def test_an_error_of_the_work_rolls_everything_back_and_comes_out_at_once(retry_list: RetryList) -> None:
    calls: list[int] = []

    def work(connection: sa.Connection) -> None:
        calls.append(1)
        locks.insert(connection, "a:1:b:c")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        transact(retry_list.engine, work)
    assert calls == [1]
    assert retry_list.lock_row() is None


def test_the_next_transaction_of_a_thread_has_a_clean_session_after_a_duplicate_key(retry_list: RetryList) -> None:
    """T13 (LP 1527003)."""
    assert transact(retry_list.engine, _insert) == "inserted"
    for _ in range(3):
        with pytest.raises(db_exc.DBDuplicateEntry):
            transact(retry_list.engine, _insert)
        assert transact(retry_list.engine, lambda connection: locks.touch(connection, "a:1:b:c"))


def test_a_lost_connection_is_replaced_and_the_transaction_run_again(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T13 (LP 1727667)."""
    cut = cut_commit(retry_list, monkeypatch, committed=False)
    calls: list[int] = []
    assert transact(retry_list.engine, lambda connection: (calls.append(1), _insert(connection))[1]) == "inserted"
    assert cut == ["cut"]
    assert len(calls) == 2


def test_a_commit_that_was_done_without_an_answer_is_read_back(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_commit(retry_list, monkeypatch, committed=True)
    calls: list[int] = []
    answer = transact(
        retry_list.engine,
        lambda connection: (calls.append(1), _insert(connection))[1],
        read_back=lambda connection: "read back" if locks.look(connection) else None,
    )
    assert answer == "read back"
    assert len(calls) == 1


def test_a_commit_that_was_not_done_is_read_back_and_run_again(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_commit(retry_list, monkeypatch, committed=False)
    looks: list[bool] = []

    def read_back(connection: sa.Connection) -> str | None:
        looks.append(locks.look(connection) is not None)
        return None

    assert transact(retry_list.engine, _insert, read_back=read_back) == "inserted"
    assert looks == [False]
    assert retry_list.lock_row() is not None


def test_an_unclear_commit_that_stays_unclear_is_a_lost_connection(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_commit(retry_list, monkeypatch, committed=True)
    with pytest.raises((db_exc.DBError, sa.exc.DBAPIError)) as caught:
        transact(retry_list.engine, _insert, attempts=1)
    assert is_disconnect(caught.value)


def test_a_duplicate_key_is_neither_a_lost_race_nor_a_lost_connection(retry_list: RetryList) -> None:
    transact(retry_list.engine, _insert)
    with pytest.raises(db_exc.DBDuplicateEntry) as caught:
        transact(retry_list.engine, _insert)
    assert not is_lost_race(caught.value)
    assert not is_disconnect(caught.value)


def test_a_database_that_is_not_there_is_a_lost_connection(retry_list: RetryList) -> None:
    if retry_list.kind == "sqlite":
        pytest.skip("a file is always there")
    away = create_engine(sa.make_url(retry_list.url).set(port=1).render_as_string(hide_password=False))
    with pytest.raises(Exception, match=r"onnect|refused") as caught:
        transact(away, _insert, attempts=2)
    assert is_disconnect(caught.value)
    away.dispose()


def test_a_certificate_that_is_being_replaced_is_waited_for_by_who_is_at_work(retry_list: RetryList) -> None:
    """An outcome that could not be stored for it would be lost; whoever starts refuses it."""
    if retry_list.kind != "mysql":
        pytest.skip("the other drivers do not look for the file themselves")
    url = sa.make_url(retry_list.url).update_query_dict({"ssl_ca": "/nowhere/ca.pem"})
    without = create_engine(url.render_as_string(hide_password=False))
    with pytest.raises(ConfigurationError, match=r"names a file") as caught:
        transact(without, _insert, attempts=2)
    assert is_disconnect(caught.value)
    without.dispose()


def test_a_look_takes_no_write_lock(retry_list: RetryList) -> None:
    """On SQLite a look that began as a writer would wait for each writer."""
    with retry_list.engine.begin() as connection:
        locks.insert(connection, "a:1:b:c")
        began = time.monotonic()
        assert read(retry_list.engine, locks.look) is None
        assert read(retry_list.engine, lambda connection: orders.get(connection, "none")) is None
        assert time.monotonic() - began < 1.5
