"""The tick: all that is due, in batches, under the lock, and a log that says what was really done. Runs on each
database."""

import itertools
import random
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model import leases, orders, retry_rows
from retryflow.model.engine import create_engine
from retryflow.model.transaction import transact
from retryflow.retry.lock import EntityLock
from retryflow.retry.sending import Ticket
from retryflow.retry.settings import Settings
from retryflow.retry.tick import Phase, Ticker
from retryflow.retry.trust import GRACE_SECONDS
from tests.fixtures.rabbit import eventually
from tests.fixtures.retry_list import Clock, Recorder, RetryList, refuse, together

ZOMBIE = "worker:9:dead"


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("Retry list:")]


def test_one_tick_drains_all_that_is_due_and_logs_what_it_did(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S2: not one batch for each period; the log's figures are those of the tables."""
    caplog.set_level("INFO")
    rows = retry_list.rows(300, late_seconds=7.0)
    again = retry_list.leases(3)
    retry_list.leases(2, holder=ZOMBIE)
    retry_list.leases(1, sent_count=10)
    [future] = retry_list.rows(late_seconds=-600.0)
    sender = Recorder()
    report = retry_list.ticker(sender, Settings(batch_size=40)).tick()
    dispatched = [burst for burst in sender.bursts if set(burst_ids(burst)) & set(rows)]
    assert all(len(burst) <= 40 for burst in sender.bursts)
    assert len(dispatched) >= 8
    # Recovered and returned tasks are on the retry list; the recovered ones were due at once.
    assert sorted(sender.ids) == sorted({*retry_list.lease_rows()})
    assert (report.dispatched, report.resent, report.recovered, report.returned) == (302, 3, 2, 1)
    assert set(rows) <= set(sender.ids)
    assert set(again) <= set(sender.ids)
    assert future in retry_list.retry_rows()
    assert len(retry_list.retry_rows()) == 2
    [line] = _lines(caplog)
    found = re.search(
        r"302 dispatched \(the oldest ([\d.]+) seconds late\), 3 sent again, 2 recovered, 1 returned", line
    )
    assert found, line
    assert 7.0 <= float(found[1]) < 60.0
    assert re.search(r"in \d+\.\d\d seconds", line)
    assert retry_list.lock_row() is None


def burst_ids(burst: Sequence[Ticket]) -> list[str]:
    return [ticket.task_id for ticket in burst]


def test_sends_are_as_many_as_rows_however_many_schedulers_tick(retry_list: RetryList) -> None:
    """S1: sends == rows with 1, 2 and 5 schedulers."""
    for schedulers in (1, 2, 5):
        rows = retry_list.rows(120)
        sender = Recorder()
        tickers = [
            retry_list.ticker(sender, Settings(batch_size=25), holder=f"host:{number}:token")
            for number in range(schedulers)
        ]

        def run(ticker: Ticker) -> None:
            while retry_list.retry_rows():
                ticker.tick()

        together(*(lambda ticker=ticker: run(ticker) for ticker in tickers))
        assert sorted(sender.ids) == sorted(rows)
        retry_list.sql("DELETE FROM order_task_leases")


def test_tickets_are_sent_after_their_commit(retry_list: RetryList) -> None:
    """S4, T9: a worker that gets the ticket at once finds the lease; a crash before the send loses nothing."""
    rows = retry_list.rows(3)
    seen: list[set[str]] = []
    sender = Recorder(before=lambda tickets: seen.append(set(retry_list.lease_rows()) - set(retry_list.retry_rows())))
    retry_list.ticker(sender).tick()
    assert seen == [set(rows)]


def test_a_lost_lock_ends_the_tick_and_nothing_is_sent_twice(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S5, S6: the holder is paused for longer than the lock's time between two of its batches."""
    rows = retry_list.rows(100)
    other = Recorder()
    second = retry_list.ticker(
        other, Settings(batch_size=20), holder="host:2:b", stopping=lambda: len(other.bursts) == 1
    )

    def pause() -> bool:
        # Asked between two batches, in the thread that writes them: the holder cannot touch its lock meanwhile.
        if len(retry_list.retry_rows()) == 60 and not other.bursts:
            retry_list.age_lock(61.0)
            second.tick()
        return False

    first_sender = Recorder()
    first = retry_list.ticker(first_sender, Settings(batch_size=20), holder="host:1:a", stopping=pause)
    report = first.tick()
    assert report.lock_lost
    assert report.next_in == 1.0, "as when another one had the lock from the beginning"
    assert report.dispatched == 40, "what was committed before the pause is sent"
    assert len(other.ids) == 20
    assert len(set(first_sender.ids + other.ids)) == report.dispatched + 20
    assert set(first_sender.ids + other.ids) | set(retry_list.retry_rows()) == set(rows)
    assert re.search(r"the lock on the retry list was taken over from host:1:a:\w+; this tick stops", caplog.text)
    assert re.search(r"Took over the lock on the retry list from host:1:a", caplog.text)
    assert retry_list.lock_row() is None


def test_a_holder_that_lost_its_lock_does_not_clear_the_others(retry_list: RetryList) -> None:
    """S6: renewal and clearing only of one's own row (redbeat #127)."""
    retry_list.rows(2)

    def steal(tickets: Sequence[Ticket]) -> None:
        retry_list.age_lock(61.0)
        assert thief.take()

    thief = retry_list.lock("host:2:b")
    report = retry_list.ticker(Recorder(before=steal), Settings(batch_size=1)).tick()
    assert report.lock_lost
    row = retry_list.lock_row()
    assert row is not None
    assert row["worker_host_name"] == thief.fence


def test_the_next_batch_is_written_while_the_broker_takes_the_last_one(retry_list: RetryList) -> None:
    """And never more than one of them: a stop, or a death, leaves two batches unsent at most."""
    if retry_list.kind == "sqlite":
        pytest.skip("it has one writer, and the test looks meanwhile")
    rows = retry_list.rows(100)
    left: list[int] = []

    def look(tickets: Sequence[Ticket]) -> None:
        wanted = {1: 80, 2: 40, 3: 20, 4: 0}.get(len(sender.bursts) + 1)
        if wanted is not None and wanted < 80:
            eventually(lambda: len(retry_list.retry_rows()) <= wanted, "the next batch is written")
        left.append(len(retry_list.retry_rows()))

    sender = Recorder(before=look)
    report = retry_list.ticker(sender, Settings(batch_size=20)).tick()
    assert (report.dispatched, sorted(sender.ids)) == (100, sorted(rows))
    # The first batch is sent before anything else is done: perhaps the broker is away.
    assert left == [80, 40, 20, 0, 0]


def test_an_error_of_sending_beside_the_next_batch_is_not_lost(retry_list: RetryList) -> None:
    retry_list.rows(60)

    def fail(tickets: Sequence[Ticket]) -> None:
        if len(sender.bursts) == 1:
            raise ZeroDivisionError

    sender = Recorder(before=fail)
    with pytest.raises(ZeroDivisionError):
        retry_list.ticker(sender, Settings(batch_size=20)).tick()
    assert retry_list.lock_row() is None


def test_no_lock_no_work(retry_list: RetryList, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: while another has the lock, or when taking it fails in whatever way, nothing is sent."""
    rows = retry_list.rows(2)
    sender = Recorder()
    ticker = retry_list.ticker(sender)
    retry_list.take_lock()
    assert ticker.tick().busy

    def broken(lock: EntityLock) -> bool:
        raise RuntimeError("no lock today")

    monkeypatch.setattr(EntityLock, "take", broken)
    with pytest.raises(RuntimeError):
        ticker.tick()
    assert sender.ids == []
    assert set(retry_list.retry_rows()) == set(rows)


def test_poison_rows_do_not_keep_the_others_from_the_same_tick(retry_list: RetryList) -> None:
    """S3: ten rows that cannot be dispatched stand before 100 good ones, and the batches are small."""
    poison = retry_list.rows(10, late_seconds=60.0, request_id="poison")
    good = retry_list.rows(100)
    refuse(retry_list, "order_task_leases", "INSERT", when="NEW.request_id = 'poison'")
    sender = Recorder()
    report = retry_list.ticker(sender, Settings(batch_size=5)).tick()
    assert sorted(sender.ids) == sorted(good)
    assert report.dispatched == 100
    assert set(retry_list.retry_rows()) == set(poison)


def test_a_ticket_that_the_broker_does_not_take_is_in_nobodys_way(retry_list: RetryList) -> None:
    """S3: one of each batch is refused, the others go out in the same tick; the refused ones are due in a period."""
    rows = retry_list.rows(40)
    refused = set(rows[::10])
    sender = Recorder(unconfirmed=lambda ticket: ticket.task_id in refused)
    report = retry_list.ticker(sender, Settings(batch_size=10, schedule_period_seconds=5.0)).tick()
    assert sorted(sender.ids) == sorted(rows)
    assert (report.dispatched, report.unsent) == (36, 4)
    for lease in refused:
        assert -30 < retry_list.seconds_until("order_task_leases", "expires_at", lease) <= 5.0


def test_a_silent_broker_gets_one_burst_and_the_rest_stays_on_the_list(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """S11: bounded, rows kept; the log does not claim what was not done."""
    caplog.set_level("INFO")
    rows = retry_list.rows(40)
    sender = Recorder(unconfirmed=lambda ticket: True)
    report = retry_list.ticker(sender, Settings(batch_size=10)).tick()
    assert len(sender.bursts) == 1
    assert (report.dispatched, report.unsent, report.next_in) == (0, 10, None)
    assert len(retry_list.retry_rows()) == 30
    assert "Retry list: 0 dispatched" in _lines(caplog)[0]
    assert "10 not confirmed by the broker" in _lines(caplog)[0]
    retry_list.sql("UPDATE order_task_leases SET expires_at = created_at")
    sender.unconfirmed = lambda ticket: False
    retry_list.ticker(sender, Settings(batch_size=10)).tick()
    assert set(sender.ids) == set(rows)
    assert retry_list.retry_rows() == {}


def test_a_stop_ends_the_tick_after_the_current_batch_and_clears_the_lock(retry_list: RetryList) -> None:
    """S12."""
    retry_list.rows(100)
    stopping = threading.Event()
    sender = Recorder(before=lambda tickets: stopping.set())
    retry_list.ticker(sender, Settings(batch_size=10), stopping=stopping.is_set).tick()
    assert len(sender.ids) == 10
    assert len(retry_list.retry_rows()) == 90
    assert retry_list.lock_row() is None


def test_a_stop_while_a_batch_is_written_and_one_is_sent_leaves_neither_unsent(retry_list: RetryList) -> None:
    """S12: the second is under way to the broker when the third is committed, and then comes the stop."""
    if retry_list.kind == "sqlite":
        pytest.skip("it has one writer, and the test looks meanwhile")
    rows = retry_list.rows(100)
    stopping = threading.Event()

    def stop(tickets: Sequence[Ticket]) -> None:
        if len(sender.bursts) == 1:
            eventually(lambda: len(retry_list.retry_rows()) == 70, "the third batch is written")
            stopping.set()

    sender = Recorder(before=stop)
    report = retry_list.ticker(sender, Settings(batch_size=10), stopping=stopping.is_set).tick()
    assert report.dispatched == 30
    assert set(sender.ids) | set(retry_list.retry_rows()) == set(rows)
    assert len(retry_list.retry_rows()) == 70
    assert retry_list.lock_row() is None


@pytest.mark.parametrize("burst", [1, 2])
def test_a_stop_is_looked_at_before_each_batch_of_either_kind(retry_list: RetryList, burst: int) -> None:
    """S12: between the re-sends and the dispatch of a round, and between two rounds."""
    retry_list.leases(4)
    retry_list.rows(4)
    stopping = threading.Event()
    sender = Recorder(before=lambda tickets: stopping.set() if len(sender.bursts) == burst - 1 else None)
    retry_list.ticker(sender, Settings(batch_size=2), stopping=stopping.is_set).tick()
    assert len(sender.bursts) == burst
    assert retry_list.lock_row() is None


@pytest.mark.parametrize(("seconds_each", "looks"), [(0.1, {1}), (0.6, {3, 4, 5})])
def test_in_a_long_tick_leases_are_looked_at_once_a_second(
    retry_list: RetryList, seconds_each: float, looks: set[int]
) -> None:
    """Not beside each batch, which costs a tenth of the drain; nor only at its start, since it may last for minutes."""
    retry_list.rows(9)
    clock = Clock()
    sender = Recorder(before=lambda tickets: clock.advance(seconds_each))
    ticker = retry_list.ticker(sender, Settings(batch_size=1), clock=clock)
    run, made = ticker._expiry.run, []

    def counting(**more: bool) -> Any:
        made.append(clock())
        return run(**more)

    ticker._expiry.run = counting  # type: ignore[method-assign]
    assert ticker.tick().dispatched == 9
    assert len(made) in looks
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(made))


def test_a_stop_need_not_wait_for_the_broker(retry_list: RetryList) -> None:
    """S11: the lock can be given back while a burst hangs; the tick then finds that it has lost it."""
    retry_list.rows(3)
    phases: list[Phase] = []

    def hang(tickets: Sequence[Ticket]) -> None:
        phases.append(ticker.phase)
        ticker.release()
        assert retry_list.lock_row() is None

    ticker = retry_list.ticker(Recorder(before=hang), Settings(batch_size=1))
    report = ticker.tick()
    assert phases == [Phase.SENDING]
    assert report.lock_lost
    assert len(retry_list.retry_rows()) == 2
    assert ticker.phase is Phase.IDLE


def test_too_many_outstanding_tickets_slow_dispatch_down_and_starve_nobody(retry_list: RetryList) -> None:
    """The backlog stays in the database: a tenth of a batch in each period. Re-sends are outside the cap."""
    clock = Clock()
    settings = Settings(max_outstanding_tickets=30, batch_size=20, schedule_period_seconds=15.0)
    waiting = retry_list.leases(30, ended_seconds=-600.0)
    expired = retry_list.leases(5)
    rows = retry_list.rows(40)
    sender = Recorder()
    ticker = retry_list.ticker(sender, settings, clock=clock)
    report = ticker.tick()
    assert (report.dispatched, report.resent, report.capped) == (2, 5, True)
    assert set(expired) <= set(sender.ids)
    assert report.next_in == 1.0
    for _ in range(3):
        clock.advance(1.0)
        report = ticker.tick()
        assert (report.dispatched, report.capped) == (0, True), "the period is not over"
        assert report.next_in == 1.0
    clock.advance(12.0)
    assert ticker.tick().dispatched == 2
    # As soon as workers have taken some there is room for as many.
    for lease in waiting[:12]:
        transact(
            retry_list.engine,
            lambda connection, lease=lease: leases.claim(
                connection, lease, holder="w", lease_seconds=20.0, also_crashed=True
            ),
        )
    clock.advance(1.0)
    assert ticker.tick().dispatched == 3
    assert len(retry_list.retry_rows()) == len(rows) - 7


def test_it_knows_when_the_next_thing_is_due(retry_list: RetryList) -> None:
    ticker = retry_list.ticker()
    assert ticker.tick().next_in is None
    retry_list.leases(holder="w", ended_seconds=-50.0)
    next_in = ticker.tick().next_in
    assert next_in is not None
    assert 25 < next_in <= 50
    retry_list.rows(late_seconds=-20.0)
    next_in = ticker.tick().next_in
    assert next_in is not None
    assert 0 < next_in <= 20
    retry_list.rows()
    assert ticker.tick().next_in == 0.0, "something was done, so look again"


def test_a_row_that_waits_for_its_orders_lease_wakes_nobody(retry_list: RetryList) -> None:
    [busy] = retry_list.new_orders()
    retry_list.leases(orders_of=[busy], holder="w", ended_seconds=-50.0)
    retry_list.rows(orders_of=[busy])
    report = retry_list.ticker().tick()
    assert not report.did_something
    assert report.next_in is not None
    assert 25 < report.next_in <= 50


def test_nothing_due_costs_one_statement_and_no_lock(retry_list: RetryList) -> None:
    """S14: look first, lock later."""
    retry_list.rows(200, late_seconds=-600.0)
    retry_list.leases(200, holder="w", ended_seconds=-600.0)
    ticker = retry_list.ticker()
    statements: list[str] = []
    sa.event.listen(
        retry_list.engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *rest: statements.append(statement),
    )
    ticker.tick()
    selects = [statement for statement in statements if not statement.startswith("BEGIN")]
    assert len(selects) == 1
    assert selects[0].startswith("SELECT")


def test_a_dead_schedulers_lock_is_broken_also_while_nothing_is_due(
    retry_list: RetryList, caplog: pytest.LogCaptureFixture
) -> None:
    """Promise P5; else it stands until the next thing is due, and ``doctor`` goes on telling of it."""
    ticker = retry_list.ticker()
    retry_list.take_lock("dead:1:token:nonce", age_seconds=30.0)
    assert ticker.tick().next_in is None
    assert retry_list.lock_row() is not None
    retry_list.age_lock(61.0)
    report = ticker.tick()
    assert (report.busy, report.did_something, retry_list.lock_row()) == (False, False, None)
    assert "Took over the lock on the retry list from dead:1:token:nonce" in caplog.text
    assert report.next_in is None
    # It knows when the next thing is due as after any other look.
    retry_list.leases(holder="w", ended_seconds=-50.0)
    retry_list.take_lock("dead:1:token:nonce", age_seconds=61.0)
    waits = ticker.tick().next_in
    assert waits is not None
    assert 25 < waits <= 50


def test_leases_are_recovered_only_once_the_database_is_trusted(retry_list: RetryList) -> None:
    """A database outage is not a crash: whoever holds a lease gets one whole lease time to renew it."""
    clock = Clock()
    [lease] = retry_list.leases(holder=ZOMBIE)
    ticker = retry_list.ticker(settings=Settings(lease_seconds=20.0), trusts=False, clock=clock)
    drift = retry_list.follow(ticker, clock)
    report = ticker.tick()
    assert (report.recovered, report.next_in) == (0, 20.0)
    for _ in range(2):
        clock.advance(9.5)
        assert ticker.tick().recovered == 0
    clock.advance(1.5)
    assert ticker.tick().recovered == 1
    assert lease not in retry_list.lease_rows()
    # A clock that jumps ends every lease at once.
    retry_list.leases(holder=ZOMBIE)
    drift.append(600.0)
    assert ticker.tick().recovered == 0
    clock.advance(10.5)
    assert ticker.tick().recovered == 0
    clock.advance(10.5)
    assert ticker.tick().recovered == 1


def test_an_outage_between_two_looks_is_not_taken_for_a_crash(retry_list: RetryList) -> None:
    """Nobody here has seen it; the holder, who has, gets a moment to renew."""
    clock = Clock()
    ticker = retry_list.ticker(settings=Settings(lease_seconds=20.0, renew_seconds=5.0), trusts=False, clock=clock)
    retry_list.follow(ticker, clock)
    for _ in range(3):
        ticker.tick()
        clock.advance(10.0)
    ticker.tick()
    clock.advance(16.0)
    retry_list.leases(holder=ZOMBIE)
    report = ticker.tick()
    assert (report.recovered, report.next_in) == (0, GRACE_SECONDS)
    clock.advance(GRACE_SECONDS)
    assert ticker.tick().recovered == 1


def test_while_the_database_is_not_trusted_yet_it_does_not_oversleep_a_row(retry_list: RetryList) -> None:
    retry_list.leases(holder=ZOMBIE)
    retry_list.rows(late_seconds=-2.0)
    assert 0.0 < (retry_list.ticker(trusts=False).tick().next_in or 0.0) <= 2.0


def test_an_outage_in_the_middle_of_a_tick_costs_the_trust(
    retry_list: RetryList, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_list.rows()
    ticker = retry_list.ticker()
    ticker.trust._needed_seconds = 20.0
    ticker.trust._clock = clock = Clock()
    retry_list.follow(ticker, clock)
    ticker.trust.saw(0.0)
    clock.advance(30.0)
    assert ticker.trust.allows_recovery

    def away(*args: object, **kwargs: object) -> None:
        raise sa.exc.DBAPIError("SELECT 1", {}, Exception("gone"), connection_invalidated=True)

    monkeypatch.setattr(retry_rows, "due", away)
    with pytest.raises(sa.exc.DBAPIError):
        ticker.tick()
    assert ticker.trust.remaining_seconds == 20.0
    assert retry_list.lock_row() is None


def test_leases_from_the_far_future_are_pulled_in_by_the_next_tick(retry_list: RetryList) -> None:
    """P6: the database's clock was set back."""
    [lease] = retry_list.leases(holder=ZOMBIE, ended_seconds=-86_400.0)
    retry_list.ticker(settings=Settings(lease_seconds=20.0)).tick()
    assert retry_list.seconds_until("order_task_leases", "expires_at", lease) <= 20
    assert retry_list.lock_row() is None


def test_a_parked_row_stops_nobody(retry_list: RetryList) -> None:
    """P8: 'infinity' is what people write into PostgreSQL to park a row."""
    if retry_list.kind != "postgresql":
        pytest.skip("there is no such value")
    parked = retry_list.rows(2)
    retry_list.sql("UPDATE order_retry_tasks SET retry_at = 'infinity'")
    [very_late] = retry_list.rows()
    retry_list.sql(f"UPDATE order_retry_tasks SET retry_at = '-infinity' WHERE id = '{very_late}'")
    [good] = retry_list.rows()
    sender = Recorder()
    ticker = retry_list.ticker(sender)
    assert ticker.tick().dispatched == 2
    assert sorted(sender.ids) == sorted([very_late, good])
    retry_list.sql("DELETE FROM order_task_leases")
    assert ticker.tick().dispatched == 0
    with retry_list.engine.connect() as connection:
        left = connection.exec_driver_sql("SELECT id FROM order_retry_tasks").scalars().all()
    assert set(left) == set(parked)


def test_a_session_in_another_time_zone_changes_nothing(retry_list: RetryList) -> None:
    """Times are UTC and the server's, whatever the session, the role or the database prefers."""
    if retry_list.kind == "sqlite":
        pytest.skip("there is no session time zone")
    soon = retry_list.rows(3, late_seconds=-600.0)
    due = retry_list.rows(3, late_seconds=1.0)
    other = create_engine(retry_list.url)
    query = "SET TIME ZONE 'Asia/Tokyo'" if retry_list.kind == "postgresql" else "SET time_zone = '+09:00'"
    sa.event.listen(other, "checkout", lambda connection, record, proxy: connection.cursor().execute(query))
    sender = Recorder()
    report = Ticker(other, holder="host:1:t", sender=sender, settings=Settings()).tick()
    assert sorted(sender.ids) == sorted(due)
    assert set(retry_list.retry_rows()) == set(soon)
    assert report.late_seconds < 60.0
    for lease in due:
        assert 5 < retry_list.seconds_until("order_task_leases", "expires_at", lease) <= 30
    other.dispose()


def test_every_error_of_a_tick_leaves_the_lock_cleared(retry_list: RetryList) -> None:
    """S13: the next tick, here or elsewhere, need not wait for the lock's time-out."""
    rows = retry_list.rows(3)

    def fail(tickets: Sequence[Ticket]) -> None:
        raise RuntimeError("a bug in the sender")

    sender = Recorder(before=fail)
    ticker = retry_list.ticker(sender)
    with pytest.raises(RuntimeError):
        ticker.tick()
    assert retry_list.lock_row() is None
    sender.before = lambda tickets: None
    retry_list.sql("UPDATE order_task_leases SET expires_at = created_at")
    ticker.tick()
    assert sorted(sender.ids) == sorted(rows), "what was committed and not sent is sent again"


def test_connections_killed_between_two_ticks_are_survived(retry_list: RetryList) -> None:
    """T13: the pool is full of dead connections."""
    if retry_list.kind == "sqlite":
        pytest.skip("there is no connection to kill")
    sender = Recorder()
    ticker = retry_list.ticker(sender)
    rows = retry_list.rows(2)
    ticker.tick()
    _kill_connections(retry_list)
    rows += retry_list_rows_elsewhere(retry_list)
    report = _first_that_works(ticker)
    assert report.dispatched == 2
    assert sorted(sender.ids) == sorted(rows)


def retry_list_rows_elsewhere(retry_list: RetryList) -> list[str]:
    elsewhere = RetryList(retry_list.url)
    rows = elsewhere.rows(2)
    elsewhere.engine.dispose()
    return rows


def _first_that_works(ticker: Ticker):  # type: ignore[no-untyped-def]
    # The first dead connection empties the pool, so that one tick at most fails.
    try:
        return ticker.tick()
    except Exception:
        return ticker.tick()


def _kill_connections(retry_list: RetryList) -> None:
    other = create_engine(retry_list.url)
    with other.connect() as connection:
        if retry_list.kind == "postgresql":
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        else:
            query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            for number in connection.exec_driver_sql(query).scalars().all():
                connection.exec_driver_sql(f"KILL {number}")
    other.dispose()


def test_recovered_tasks_and_their_orders_survive_any_number_of_ticks(retry_list: RetryList) -> None:
    """P1: after whatever mixture of leases and rows, each PENDING order has exactly one next step per task."""
    order_ids = retry_list.new_orders(30)
    chooser = random.Random(7)
    for order_id in order_ids:
        match chooser.randrange(4):
            case 0:
                retry_list.leases(orders_of=[order_id], holder=ZOMBIE)
            case 1:
                retry_list.leases(orders_of=[order_id], sent_count=chooser.randrange(12))
            case 2:
                retry_list.rows(orders_of=[order_id])
            case 3:
                retry_list.leases(orders_of=[order_id], holder=ZOMBIE)
                retry_list.rows(orders_of=[order_id], retry_task="update_order")
    ticker = retry_list.ticker(settings=Settings(batch_size=7))
    for _ in range(3):
        ticker.tick()
    steps: dict[str, int] = dict.fromkeys(order_ids, 0)
    for row in [*retry_list.retry_rows().values(), *retry_list.lease_rows().values()]:
        steps[row["order_id"]] += 1
    assert all(steps[order_id] >= 1 for order_id in order_ids)
    assert all(retry_list.order(order_id).status == orders.PENDING for order_id in order_ids)
