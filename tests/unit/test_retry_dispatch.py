"""Dispatch: each due row becomes one lease and one ticket, and a bad row is in nobody's way. Runs on each database."""

import datetime
import uuid

import pytest
import sqlalchemy as sa

from retryflow.errors import LockLost
from retryflow.model import orders, retry_rows, tables
from retryflow.model.transaction import transact
from retryflow.retry.dispatch import Dispatcher
from retryflow.retry.settings import Settings
from tests.fixtures.retry_list import TASK, Clock, RetryList, refuse, together


def test_a_due_row_becomes_a_lease_that_holds_all_that_the_row_held(retry_list: RetryList) -> None:
    """Nothing is lost on the way, not even arguments that are no JSON: nobody reads them here."""
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901 if retry_list.kind != "sqlite" else 678000, datetime.UTC)
    carried = {
        "retry_count": 3,
        "poll_count": 4,
        "crash_count": 1,
        "retry_since": moment,
        "poll_since": moment,
        "step": 7,
        "last_error": "why",
        "request_id": "req-1",
    }
    [row] = retry_list.rows(retry_task="some_task", retry_args="[1", retry_kwargs="{broken", **carried)
    before = retry_list.retry_rows()[row]
    batch = retry_list.dispatcher(Settings(schedule_period_seconds=15.0, ticket_resend_seconds=40.0)).dispatch(10)
    assert retry_list.retry_rows() == {}
    lease = retry_list.lease_rows()[row]
    assert {name: lease[name] for name in carried} == carried
    assert (lease["task"], lease["args"], lease["kwargs"]) == ("some_task", "[1", "{broken")
    assert (lease["holder"], lease["sent_count"], lease["order_id"]) == (None, 1, before["order_id"])
    assert 10 < retry_list.seconds_until("order_task_leases", "expires_at", row) <= 40, "as long as its ticket lives"
    [ticket] = batch.tickets
    assert (ticket.task_id, ticket.order_id, ticket.task) == (row, before["order_id"], "some_task")
    assert (ticket.project_id, ticket.request_id, ticket.ttl_seconds) == ("p1", "req-1", 40.0)


def test_the_oldest_rows_come_first_and_those_not_due_stay(retry_list: RetryList) -> None:
    [young] = retry_list.rows(late_seconds=1.0)
    [old] = retry_list.rows(late_seconds=3.0)
    [middle] = retry_list.rows(late_seconds=2.0)
    [future] = retry_list.rows(late_seconds=-60.0)
    dispatcher = retry_list.dispatcher()
    batch = dispatcher.dispatch(2)
    assert [ticket.task_id for ticket in batch.tickets] == [old, middle]
    assert batch.full
    assert 3.0 <= batch.late_seconds < 60.0
    assert [ticket.task_id for ticket in dispatcher.dispatch(2).tickets] == [young]
    assert list(retry_list.retry_rows()) == [future]


def test_of_one_order_one_task_is_out_at_a_time(retry_list: RetryList) -> None:
    """P3: neither a second row of the order nor one beside a lease is dispatched."""
    [order_id, busy] = retry_list.new_orders(2)
    [first] = retry_list.rows(orders_of=[order_id], late_seconds=2.0, retry_task="one")
    [second] = retry_list.rows(orders_of=[order_id], late_seconds=1.0, retry_task="two")
    retry_list.leases(orders_of=[busy], ended_seconds=-60.0)
    [beside] = retry_list.rows(orders_of=[busy])
    dispatcher = retry_list.dispatcher()
    statements = 0

    def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
        nonlocal statements
        statements += statement.startswith("INSERT INTO order_task_leases")

    sa.event.listen(retry_list.engine, "before_cursor_execute", count)
    assert [ticket.task_id for ticket in dispatcher.dispatch(10).tickets] == [first]
    assert dispatcher.dispatch(10).tickets == []
    assert set(retry_list.retry_rows()) == {second, beside}
    assert retry_list.retry_rows()[second]["last_error"] is None
    assert statements == 1, "rows of one order are sorted out beforehand, and not by halving the batch"


def test_rows_of_orders_that_have_ended_are_swept_up(retry_list: RetryList) -> None:
    [ended] = retry_list.new_orders(1, status=orders.ERROR)
    retry_list.rows(orders_of=[ended])
    assert retry_list.dispatcher().dispatch(10).tickets == []
    assert retry_list.retry_rows() == {}
    assert retry_list.lease_rows() == {}


def test_a_scheduler_that_lost_the_lock_dispatches_nothing(retry_list: RetryList) -> None:
    """S5, P4."""
    [row] = retry_list.rows()
    dispatcher = retry_list.dispatcher()
    retry_list.age_lock(61.0)
    assert retry_list.lock("host:2:b").take()
    with pytest.raises(LockLost):
        dispatcher.dispatch(10)
    assert list(retry_list.retry_rows()) == [row]
    assert retry_list.lease_rows() == {}


def test_two_schedulers_that_both_believe_in_their_lock_double_nothing(retry_list: RetryList) -> None:
    """S1, P4: even without the lock, only what a guarded delete reports as deleted is sent."""
    rows = retry_list.rows(300)
    lock = retry_list.lock()
    assert lock.take()
    several = [Dispatcher(retry_list.engine, lock, Settings(batch_size=60)) for _ in range(3)]
    sent: list[str] = []

    def drain(dispatcher: Dispatcher) -> None:
        while retry_list.retry_rows():
            sent.extend(ticket.task_id for ticket in dispatcher.dispatch(60).tickets)

    together(*(lambda dispatcher=dispatcher: drain(dispatcher) for dispatcher in several))
    assert sorted(sent) == sorted(rows)
    assert set(retry_list.lease_rows()) == set(rows)


def test_poison_rows_are_set_aside_and_the_others_go_out_in_the_same_batch(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S3: ten rows that the database refuses stand in front of 490 good ones."""
    poison = retry_list.rows(10, late_seconds=60.0, request_id="poison")
    good = retry_list.rows(490, request_id="good")
    refuse(retry_list, "order_task_leases", "INSERT", when="NEW.request_id = 'poison'", message="refused by a rule")
    batch = retry_list.dispatcher().dispatch(500)
    assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(good)
    left = retry_list.retry_rows()
    assert sorted(left) == sorted(poison)
    for row in poison:
        assert "refused by a rule" in left[row]["last_error"]
        assert 290 < retry_list.seconds_until("order_retry_tasks", "retry_at", row) <= 300
    assert sum("is set aside" in record.getMessage() for record in caplog.records) == 10


def test_a_row_that_cannot_even_be_set_aside_is_in_nobodys_way(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S3, P8."""
    [poison] = retry_list.rows(late_seconds=60.0, request_id="poison")
    good = retry_list.rows(8)
    refuse(retry_list, "order_task_leases", "INSERT", when="NEW.request_id = 'poison'")
    refuse(retry_list, "order_retry_tasks", "UPDATE", when="NEW.request_id = 'poison'")
    dispatcher = retry_list.dispatcher(Settings(batch_size=1))
    batch = dispatcher.dispatch(1)
    assert batch.tickets == []
    assert not batch.full, "looking again at once would find the same row for ever"
    batch = retry_list.dispatcher_again().dispatch(100)
    assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(good)
    assert list(retry_list.retry_rows()) == [poison]
    assert "cannot even be set aside" in caplog.text


def test_a_row_whose_id_is_taken_is_in_nobodys_way(retry_list: RetryList) -> None:
    """S3: a duplicate key that no race explains would fail the batch at each tick."""
    [lease] = retry_list.leases(ended_seconds=-600.0)
    [row] = retry_list.rows(late_seconds=60.0)
    retry_list.sql(f"UPDATE order_retry_tasks SET id = '{lease}' WHERE id = '{row}'")
    good = retry_list.rows(8)
    batch = retry_list.dispatcher().dispatch(100)
    assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(good)
    assert retry_list.retry_rows()[lease]["last_error"]
    assert retry_list.seconds_until("order_retry_tasks", "retry_at", lease) > 200


def test_a_row_that_a_rule_swallows_is_in_nobodys_way(retry_list: RetryList) -> None:
    """S3: an INSERT that writes nothing and reports no error."""
    if retry_list.kind == "mysql":
        pytest.skip("a trigger cannot swallow a row there")
    [poison] = retry_list.rows(late_seconds=60.0, request_id="poison")
    good = retry_list.rows(8)
    if retry_list.kind == "sqlite":
        retry_list.sql(
            "CREATE TRIGGER swallow BEFORE INSERT ON order_task_leases WHEN NEW.request_id = 'poison' "
            "BEGIN SELECT RAISE(IGNORE); END"
        )
    else:
        retry_list.sql(
            "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.request_id = 'poison' THEN RETURN NULL; END IF; RETURN NEW; END $$",
            "CREATE TRIGGER swallow BEFORE INSERT ON order_task_leases FOR EACH ROW EXECUTE FUNCTION swallow()",
        )
    batch = retry_list.dispatcher().dispatch(100)
    assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(good)
    assert "keeps rows back" in retry_list.retry_rows()[poison]["last_error"]


def test_an_order_that_got_a_lease_since_the_look_is_left_out(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser of this race sees a duplicate key; the others of its batch go out all the same."""
    rows = retry_list.rows(8)
    dispatcher = retry_list.dispatcher()
    look = retry_rows.due
    with retry_list.engine.connect() as connection:
        stale = look(connection, limit=100)
    retry_list.leases(orders_of=[stale[3].order_id], ended_seconds=-60.0)
    monkeypatch.setattr(retry_rows, "due", lambda connection, *, limit: stale)
    batch = dispatcher.dispatch(100)
    monkeypatch.undo()
    assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(row.id for row in stale if row != stale[3])
    left = retry_list.retry_rows()
    assert list(left) == [stale[3].id]
    assert left[stale[3].id]["last_error"] is None
    assert len(rows) == 8


def test_rows_that_another_client_has_locked_are_passed_over(retry_list: RetryList) -> None:
    """A client paused in a transaction keeps its own rows, and nothing else."""
    if retry_list.kind == "sqlite":
        pytest.skip("SQLite locks the whole database")
    [locked] = retry_list.rows(late_seconds=60.0)
    free = retry_list.rows(5)
    dispatcher = retry_list.dispatcher(Settings(batch_size=1))
    with retry_list.engine.begin() as connection:
        assert retry_rows.lock(connection, [locked]) == {locked}
        batch = dispatcher.dispatch(1)
        assert batch.tickets == []
        assert not batch.full, "looking again at once would find the same row until it is unlocked"
        batch = retry_list.dispatcher_again().dispatch(100)
        assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(free)
    assert [ticket.task_id for ticket in dispatcher.dispatch(1).tickets] == [locked]


@pytest.mark.parametrize("how", ["FOR UPDATE", "UPDATE"])
def test_rows_whose_orders_another_client_has_locked_are_passed_over(retry_list: RetryList, how: str) -> None:
    """Promise P8: a session that was left open holds up its own order, and not the whole list."""
    if retry_list.kind == "sqlite":
        pytest.skip("SQLite locks the whole database")
    order_ids = retry_list.new_orders(8)
    rows = dict(zip(order_ids, retry_list.rows(orders_of=order_ids), strict=True))
    locked = order_ids[3]
    dispatcher = retry_list.dispatcher()
    with retry_list.engine.begin() as connection:
        if how == "UPDATE":
            connection.execute(tables.orders.update().where(tables.orders.c.id == locked).values(sub_status="x"))
        else:
            connection.execute(sa.select(tables.orders).where(tables.orders.c.id == locked).with_for_update())
        sent = [ticket.order_id for _ in range(2) for ticket in dispatcher.dispatch(100).tickets]
    assert set(order_ids) - set(sent) <= {locked}
    if locked not in sent:
        assert retry_list.seconds_until("order_retry_tasks", "retry_at", rows[locked]) <= 0, "it is not set aside"
        assert [ticket.order_id for ticket in dispatcher.dispatch(100).tickets] == [locked]


FULL = {
    "postgresql": "RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'",
    "mysql": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'",
    "sqlite": "SELECT RAISE(ABORT, 'database or disk is full')",
}


def test_while_the_database_is_full_no_row_is_set_aside(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the rows' fault: all of them would be late by five minutes once there is room again."""
    rows = retry_list.rows(8)
    event = "BEFORE INSERT ON order_task_leases FOR EACH ROW"
    if retry_list.kind == "postgresql":
        retry_list.sql(
            f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {FULL['postgresql']}; END $$",
            f"CREATE TRIGGER t {event} EXECUTE FUNCTION f()",
        )
    elif retry_list.kind == "mysql":
        retry_list.sql(f"CREATE TRIGGER t {event} {FULL['mysql']}")
    else:
        retry_list.sql(f"CREATE TRIGGER t {event} BEGIN {FULL['sqlite']}; END")
    with pytest.raises(Exception, match=r"space|full"):
        retry_list.dispatcher().dispatch(100)
    assert all(retry_list.seconds_until("order_retry_tasks", "retry_at", row) <= 0 for row in rows)
    assert "set aside" not in caplog.text


def test_a_slow_database_gets_smaller_batches_and_a_quick_one_grows_back(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch is bounded by batch_timeout_seconds."""
    clock = Clock()
    dispatcher = retry_list.dispatcher(Settings(batch_size=8, batch_timeout_seconds=10.0), clock=clock)
    retry_list.rows(30)
    delete = retry_rows.delete

    def slow(connection, ids):  # type: ignore[no-untyped-def]
        clock.advance(6.0)
        return delete(connection, ids)

    monkeypatch.setattr(retry_rows, "delete", slow)
    sizes = [len(dispatcher.dispatch(100).tickets) for _ in range(3)]
    monkeypatch.undo()
    sizes += [len(dispatcher.dispatch(100).tickets) for _ in range(3)]
    assert sizes == [8, 4, 2, 1, 2, 4]


def test_an_unclear_commit_is_read_back_and_its_tickets_are_sent(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost in COMMIT: what was committed is dispatched now, not after two periods."""
    rows = retry_list.rows(3)
    dispatcher = retry_list.dispatcher()
    for committed in (True, False):
        commits = _lose_the_next_commit(retry_list, monkeypatch, committed=committed)
        batch = dispatcher.dispatch(100)
        monkeypatch.undo()
        assert commits, "the commit was not lost"
        assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(rows)
        assert set(retry_list.lease_rows()) == set(rows)
        assert retry_list.retry_rows() == {}
        retry_list.sql("DELETE FROM order_task_leases")
        rows = retry_list.rows(3)


def test_what_another_scheduler_did_after_an_unclear_commit_is_not_taken_for_ones_own(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: paused in COMMIT, its transaction rolled back by the server; another one took over and sent the tickets."""
    rows = retry_list.rows(3)
    dispatcher = retry_list.dispatcher()
    sent: list[str] = []
    _lose_the_next_commit(retry_list, monkeypatch, committed=False)
    connect = retry_list.engine.connect

    def another_works(*args, **kwargs):  # type: ignore[no-untyped-def]
        if not retry_list.lost or sent:
            return connect(*args, **kwargs)
        sent.append("begun")
        retry_list.age_lock(61.0)
        sent.extend(ticket.task_id for ticket in retry_list.dispatcher().dispatch(100).tickets)
        return connect(*args, **kwargs)

    monkeypatch.setattr(retry_list.engine, "connect", another_works)
    with pytest.raises(LockLost):
        dispatcher.dispatch(100)
    assert sorted(sent[1:]) == sorted(rows)


def _lose_the_next_commit(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> list[str]:
    """Cut the connection just after, or just before, the server has done the first COMMIT of a writing transaction."""
    dialect = retry_list.engine.dialect
    commit = dialect.do_commit
    lost: list[str] = []

    def do_commit(connection):  # type: ignore[no-untyped-def]
        writing = retry_list.kind != "sqlite" or connection.driver_connection.in_transaction
        if lost or not writing or not moved:
            return commit(connection)
        lost.append("commit")
        retry_list.lost = True
        (connection.commit if committed else connection.rollback)()
        connection.driver_connection.close()
        raise dialect.loaded_dbapi.OperationalError(2013, "Lost connection to server during query")

    moved: list[str] = []
    delete = retry_rows.delete
    monkeypatch.setattr(
        retry_rows, "delete", lambda connection, ids: (moved.append("delete"), delete(connection, ids))[1]
    )
    monkeypatch.setattr(dialect, "do_commit", do_commit)
    is_disconnect = dialect.is_disconnect
    monkeypatch.setattr(
        dialect,
        "is_disconnect",
        lambda error, *args: "Lost connection" in str(error) or is_disconnect(error, *args),
    )
    return lost


def test_a_deadlock_at_commit_is_run_again_and_moves_each_row_once(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: on Galera the loser of a race learns it at COMMIT."""
    rows = retry_list.rows(3)
    dispatcher = retry_list.dispatcher()
    dialect = retry_list.engine.dialect
    commit = dialect.do_commit
    refused: list[str] = []

    def do_commit(connection):  # type: ignore[no-untyped-def]
        if len(refused) < 3:
            refused.append("commit")
            connection.rollback()
            raise _deadlock(retry_list)
        return commit(connection)

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    batch = dispatcher.dispatch(100)
    assert len(refused) == 3
    assert sorted(ticket.task_id for ticket in batch.tickets) == sorted(rows)
    assert set(retry_list.lease_rows()) == set(rows)


def _deadlock(retry_list: RetryList) -> Exception:
    if retry_list.kind == "postgresql":
        import psycopg.errors

        return psycopg.errors.DeadlockDetected("deadlock detected")
    dbapi = retry_list.engine.dialect.loaded_dbapi
    if retry_list.kind == "mysql":
        return dbapi.OperationalError(1213, "Deadlock found when trying to get lock; try restarting transaction")
    return dbapi.OperationalError("database is locked")


def test_a_lost_race_that_does_not_end_is_no_fault_of_the_row(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is halved for bad rows only, not for deadlocks; the next tick tries again."""
    [row] = retry_list.rows()
    dispatcher = retry_list.dispatcher()

    def do_commit(connection):  # type: ignore[no-untyped-def]
        connection.rollback()
        raise _deadlock(retry_list)

    monkeypatch.setattr(retry_list.engine.dialect, "do_commit", do_commit)
    with pytest.raises(Exception, match=r"[Dd]eadlock|locked"):
        dispatcher.dispatch(100)
    monkeypatch.undo()
    assert retry_list.retry_rows()[row]["last_error"] is None
    assert [ticket.task_id for ticket in dispatcher.dispatch(100).tickets] == [row]


def test_rows_put_while_a_batch_is_under_way_are_merged_not_lost(retry_list: RetryList) -> None:
    """A row of the same task keeps its place and its counters; the earlier time wins."""
    from retryflow.model.task_state import TaskState

    [order_id] = retry_list.new_orders()
    [row] = retry_list.rows(orders_of=[order_id], late_seconds=-600.0, retry_count=5, poll_count=2)
    state = TaskState.first(order_id, TASK, project_id=None, request_id=str(uuid.uuid4()))
    transact(retry_list.engine, lambda connection: retry_rows.put(connection, state, after_seconds=900.0))
    assert 590 < retry_list.seconds_until("order_retry_tasks", "retry_at", row) <= 600
    transact(retry_list.engine, lambda connection: retry_rows.put(connection, state, after_seconds=0.0))
    assert retry_list.seconds_until("order_retry_tasks", "retry_at", row) <= 0
    [kept] = retry_list.retry_rows().values()
    assert (kept["id"], kept["retry_count"], kept["poll_count"]) == (row, 5, 2)
