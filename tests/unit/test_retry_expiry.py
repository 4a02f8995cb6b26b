"""Expired leases: the dead worker's task runs again, the lost ticket is sent again. Runs on each database."""

import random

import pytest
import sqlalchemy as sa

from retryflow.errors import LockLost
from retryflow.model import leases, orders
from retryflow.model.tables import metadata
from retryflow.model.transaction import transact
from retryflow.retry.policy import Limits
from retryflow.retry.settings import Settings
from tests.fixtures.retry_list import RetryList, refuse

ZOMBIE = "worker:9:dead"


def _run(retry_list: RetryList, settings: Settings | None = None, *, may_recover: bool = True):  # type: ignore[no-untyped-def]
    return retry_list.expiry(settings, random=random.Random(1)).run(may_recover=may_recover)


def test_a_dead_workers_task_goes_back_to_the_retry_list_under_a_new_id(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """P5: due at once, one crash more, everything else as it was; the zombie's finish will hit nothing."""
    [lease] = retry_list.leases(holder=ZOMBIE, retry_count=2, poll_count=3, step=4, kwargs="{broken", request_id="r")
    assert _run(retry_list).recovered == 1
    assert retry_list.lease_rows() == {}
    [row] = retry_list.retry_rows().values()
    assert row["id"] != lease
    assert retry_list.seconds_until("order_retry_tasks", "retry_at", row["id"]) <= 0
    kept = {
        "retry_count": 2,
        "poll_count": 3,
        "crash_count": 1,
        "step": 4,
        "retry_kwargs": "{broken",
        "request_id": "r",
    }
    assert {name: row[name] for name in kept} == kept
    assert "the worker died" in row["last_error"]
    assert retry_list.events_of(row["order_id"]) == ["crashed"]
    assert f"order {row['order_id']}: task {lease}" in caplog.text
    assert ZOMBIE in caplog.text


@pytest.mark.parametrize("table", ["order_task_leases", "orders"])
def test_an_expired_lease_that_another_client_has_locked_holds_up_no_other(retry_list: RetryList, table: str) -> None:
    """Promise P8: nor the retry list behind them."""
    if retry_list.kind == "sqlite":
        pytest.skip("SQLite locks the whole database")
    order_ids = retry_list.new_orders(4)
    made = retry_list.leases(holder=ZOMBIE, orders_of=order_ids)
    key = {"order_task_leases": made[1], "orders": order_ids[1]}[table]
    with retry_list.engine.begin() as connection:
        columns = metadata.tables[table].c
        connection.execute(sa.select(columns.id).where(columns.id == key).with_for_update())
        assert _run(retry_list).recovered == 3
    assert list(retry_list.lease_rows()) == [made[1]]
    retry_list.sql("DELETE FROM entity_locks")
    assert _run(retry_list).recovered == 1


def test_after_further_crashes_it_waits_longer_and_at_the_cap_the_order_ends_in_error(retry_list: RetryList) -> None:
    limits = Limits(max_crashes=3)
    [order_id] = retry_list.new_orders()
    retry_list.leases(holder=ZOMBIE, orders_of=[order_id], crash_count=1)
    assert _run(retry_list, Settings(limits=limits)).recovered == 1
    [row] = retry_list.retry_rows()
    assert 10 < retry_list.seconds_until("order_retry_tasks", "retry_at", row) < 20
    retry_list.sql("DELETE FROM order_retry_tasks", "DELETE FROM entity_locks")
    retry_list.leases(holder=ZOMBIE, orders_of=[order_id], crash_count=2)
    retry_list.rows(orders_of=[order_id], retry_task="update_order")
    assert _run(retry_list, Settings(limits=limits)).recovered == 1
    order = retry_list.order(order_id)
    assert order.status == orders.ERROR
    assert "died 3 times in a row" in order.error_reason
    assert retry_list.retry_rows() == {}
    assert retry_list.lease_rows() == {}


def test_a_lease_that_runs_is_left_alone(retry_list: RetryList) -> None:
    """T2."""
    [lease] = retry_list.leases(holder=ZOMBIE, ended_seconds=-5.0)
    result = _run(retry_list)
    assert (result.recovered, result.returned, result.tickets) == (0, 0, [])
    assert retry_list.lease_rows()[lease]["crash_count"] == 0


def test_a_lease_renewed_since_the_look_is_left_alone(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: a finish, a renewal and a recovery meet at the lease's row, and only one of them finds it."""
    retry_list.leases(2, holder=ZOMBIE)
    with retry_list.engine.connect() as connection:
        stale = leases.expired(connection, limit=10)
    renewed, finished = stale
    transact(
        retry_list.engine,
        lambda connection: leases.renew(connection, [renewed.id], holder=ZOMBIE, lease_seconds=20.0),
    )
    assert transact(retry_list.engine, lambda connection: leases.delete_held(connection, finished.id, holder=ZOMBIE))
    monkeypatch.setattr(leases, "expired", lambda *args, **kwargs: stale)
    assert _run(retry_list).recovered == 0
    assert list(retry_list.lease_rows()) == [renewed.id]
    assert retry_list.retry_rows() == {}


def test_nothing_is_recovered_while_the_database_is_under_suspicion(retry_list: RetryList) -> None:
    """An outage is not a crash: holders get the time to renew first. Tickets are sent again all the same."""
    held = retry_list.leases(4, holder=ZOMBIE, ended_seconds=60.0)
    waiting = retry_list.leases(2)
    result = _run(retry_list, Settings(batch_size=4), may_recover=False)
    assert result.recovered == 0
    assert sorted(ticket.task_id for ticket in result.tickets) == sorted(waiting), "held ones stood before them"
    assert set(retry_list.lease_rows()) == {*held, *waiting}


def test_a_ticket_that_nobody_took_is_sent_again_under_the_same_id(retry_list: RetryList) -> None:
    """The wait doubles up to its longest, and the broker keeps a ticket just as long, so that copies do not pile up."""
    settings = Settings(ticket_resend_seconds=30.0, ticket_resend_maximum_seconds=300.0, max_sends=100)
    expected = {0: 30, 1: 60, 2: 120, 3: 240, 4: 300, 5: 300, 50: 300}
    by_count = {retry_list.leases(sent_count=count)[0]: count for count in expected}
    result = _run(retry_list, settings)
    assert {ticket.task_id: ticket.ttl_seconds for ticket in result.tickets} == {
        lease: expected[count] for lease, count in by_count.items()
    }
    for lease, count in by_count.items():
        row = retry_list.lease_rows()[lease]
        assert row["sent_count"] == count + 1
        left = retry_list.seconds_until("order_task_leases", "expires_at", lease)
        assert expected[count] - 5 < left <= expected[count]
    assert all(retry_list.events_of(row["order_id"]) == [] for row in retry_list.lease_rows().values())


def test_where_nothing_is_doubled_each_wait_is_the_same(retry_list: RetryList) -> None:
    settings = Settings(ticket_resend_seconds=60.0, ticket_resend_maximum_seconds=60.0)
    retry_list.leases(sent_count=0)
    retry_list.leases(sent_count=7)
    assert [ticket.ttl_seconds for ticket in _run(retry_list, settings).tickets] == [60.0, 60.0]


def test_a_ticket_claimed_since_the_look_is_not_sent_again(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_list.leases(2)
    with retry_list.engine.connect() as connection:
        stale = leases.expired(connection, limit=10)
    transact(
        retry_list.engine,
        lambda connection: leases.claim(
            connection, stale[0].id, holder="worker:1:a", lease_seconds=20.0, also_crashed=True
        ),
    )
    monkeypatch.setattr(leases, "expired", lambda *args, **kwargs: stale)
    assert [ticket.task_id for ticket in _run(retry_list).tickets] == [stale[1].id]
    assert retry_list.lease_rows()[stale[0].id]["sent_count"] == 1


def test_a_task_that_nobody_takes_goes_back_to_the_retry_list_with_backoff(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    retry_list.leases(sent_count=10, retry_count=2, crash_count=1)
    [fresh] = retry_list.leases(sent_count=9)
    result = _run(retry_list, Settings(max_sends=10))
    assert (result.returned, [ticket.task_id for ticket in result.tickets]) == (1, [fresh])
    [row] = retry_list.retry_rows().values()
    assert (row["retry_count"], row["crash_count"]) == (2, 1), "nobody tried, so nothing is counted"
    # As long as the last of the waits: workers that come back after an hour find it soon.
    assert 230 < retry_list.seconds_until("order_retry_tasks", "retry_at", row["id"]) < 370
    assert "no worker took task" in caplog.text


@pytest.mark.parametrize("holder", [ZOMBIE, None])
def test_p8_a_lease_with_a_time_that_cannot_be_read_is_set_aside_and_cured(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture, holder: str | None
) -> None:
    """Promise P8: written by hand, or by a session in another mode."""
    [bad] = retry_list.leases(holder=holder, sent_count=10)
    [good] = retry_list.leases(holder=ZOMBIE)
    moment = {"sqlite": "'soon'", "postgresql": "'infinity'", "mysql": "'0000-00-00'"}[retry_list.kind]
    with retry_list.engine.begin() as connection:
        if retry_list.kind == "mysql":
            connection.exec_driver_sql("SET SESSION sql_mode = ''")
        connection.exec_driver_sql(f"UPDATE order_task_leases SET retry_since = {moment} WHERE id = '{bad}'")
    retry_list.engine.dispose()
    assert _run(retry_list).recovered == 1
    assert good not in retry_list.lease_rows()
    assert "cannot be dealt with and is set aside" in caplog.text
    retry_list.sql("UPDATE order_task_leases SET expires_at = created_at")
    result = _run(retry_list)
    assert (result.recovered, result.returned) == ((1, 0) if holder else (0, 1))
    assert retry_list.lease_rows() == {}


def test_tickets_that_the_broker_did_not_take_are_not_counted(retry_list: RetryList) -> None:
    """Some minutes without a broker would otherwise look like ten tickets that no worker wanted."""
    [waiting] = retry_list.leases(sent_count=9)
    [unsent] = retry_list.leases(sent_count=0)
    for _ in range(5):
        retry_list.sql("UPDATE order_task_leases SET expires_at = created_at")
        assert _run(retry_list, Settings(max_sends=10)).returned == 0
        transact(
            retry_list.engine,
            lambda connection: leases.expire_unsent(connection, [waiting, unsent], after_seconds=0.0),
        )
    assert [retry_list.lease_rows()[lease]["sent_count"] for lease in (waiting, unsent)] == [9, 0]


def test_a_long_lease_is_not_taken_for_one_from_the_future(retry_list: RetryList) -> None:
    settings = Settings(lease_seconds=4000.0, renew_seconds=1000.0)
    [lease] = retry_list.leases(holder=ZOMBIE, ended_seconds=-3700.0)
    expiry = retry_list.expiry(settings)
    expiry.pull_in()
    assert 3600 < retry_list.seconds_until("order_task_leases", "expires_at", lease) <= 3700


def test_leases_of_orders_that_have_ended_are_swept_up(retry_list: RetryList) -> None:
    """A row that slipped through while its order was cancelled is gone within one tick, and changes nothing."""
    ended = retry_list.new_orders(2, status=orders.ERROR)
    retry_list.leases(orders_of=ended[:1], holder=ZOMBIE)
    retry_list.leases(orders_of=ended[1:])
    assert _run(retry_list).tickets == []
    assert retry_list.lease_rows() == {}
    assert retry_list.retry_rows() == {}
    assert [retry_list.order(order_id).error_reason for order_id in ended] == [None, None]
    assert [retry_list.events_of(order_id) for order_id in ended] == [[], []]


@pytest.mark.parametrize("holder", [ZOMBIE, None])
def test_a_scheduler_that_lost_the_lock_changes_no_lease(retry_list: RetryList, holder: str | None) -> None:
    """S5, P4."""
    [lease] = retry_list.leases(holder=holder)
    before = retry_list.lease_rows()[lease]
    expiry = retry_list.expiry()
    retry_list.age_lock(61.0)
    assert retry_list.lock("host:2:b").take()
    with pytest.raises(LockLost):
        expiry.run(may_recover=True)
    assert retry_list.lease_rows() == {lease: before}
    assert retry_list.retry_rows() == {}


def test_a_lease_that_cannot_be_recovered_is_in_nobodys_way(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """P8, S3."""
    [poison] = retry_list.leases(holder=ZOMBIE, request_id="poison", ended_seconds=60.0)
    retry_list.leases(2, holder=ZOMBIE)
    [waiting] = retry_list.leases()
    refuse(retry_list, "order_task_leases", "DELETE", when="OLD.request_id = 'poison'", message="refused by a rule")
    result = _run(retry_list)
    assert (result.recovered, [ticket.task_id for ticket in result.tickets]) == (2, [waiting])
    assert set(retry_list.lease_rows()) == {poison, waiting}
    assert "refused by a rule" in retry_list.lease_rows()[poison]["last_error"]
    assert 290 < retry_list.seconds_until("order_task_leases", "expires_at", poison) <= 300
    assert "is set aside" in caplog.text


def test_a_lease_that_cannot_be_changed_at_all_is_in_nobodys_way(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """P8, S3."""
    retry_list.leases(request_id="poison", ended_seconds=60.0)
    waiting = retry_list.leases(5)
    refuse(retry_list, "order_task_leases", "UPDATE", when="NEW.request_id = 'poison'")
    result = _run(retry_list)
    assert sorted(ticket.task_id for ticket in result.tickets) == sorted(waiting)
    assert "cannot even be set aside" in caplog.text


def test_an_unclear_commit_of_a_re_send_is_read_back(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost in COMMIT, after the server has done it: the tickets go out now."""
    waiting = retry_list.leases(3)
    expiry = retry_list.expiry()
    dialect = retry_list.engine.dialect
    commit, is_disconnect = dialect.do_commit, dialect.is_disconnect
    stage: list[str] = []
    resend = leases.resend

    def do_commit(connection):  # type: ignore[no-untyped-def]
        commit(connection)
        if stage == ["resend"]:
            stage.append("lost")
            connection.driver_connection.close()
            raise dialect.loaded_dbapi.OperationalError(2013, "Lost connection to server during query")

    def watched(*args, **kwargs):  # type: ignore[no-untyped-def]
        stage.append("resend")
        return resend(*args, **kwargs)

    monkeypatch.setattr(leases, "resend", watched)
    monkeypatch.setattr(dialect, "do_commit", do_commit)
    monkeypatch.setattr(
        dialect, "is_disconnect", lambda error, *args: "Lost conn" in str(error) or is_disconnect(error, *args)
    )
    assert sorted(ticket.task_id for ticket in expiry.run(may_recover=True).tickets) == sorted(waiting)
    assert stage == ["resend", "lost"]
    assert {row["sent_count"] for row in retry_list.lease_rows().values()} == {2}


def test_leases_that_end_impossibly_late_are_pulled_in(retry_list: RetryList, caplog: pytest.LogCaptureFixture) -> None:
    """P6: the database's clock was set back after they were written."""
    settings = Settings(lease_seconds=20.0)
    [far] = retry_list.leases(holder=ZOMBIE, ended_seconds=-86_400.0)
    [near] = retry_list.leases(ended_seconds=-600.0)
    retry_list.expiry(settings).pull_in()
    assert 10 < retry_list.seconds_until("order_task_leases", "expires_at", far) <= 20
    assert 590 < retry_list.seconds_until("order_task_leases", "expires_at", near) <= 600
    assert "Pulled in 1 leases" in caplog.text
