"""A connection that is really lost in COMMIT, between server and client: the writer reads back what became of it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from retryflow.model import locks
from retryflow.model.engine import create_engine
from retryflow.model.transaction import is_disconnect, transact
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit
from retryflow.retry.tick import Ticker
from tests.fixtures.rabbit import eventually
from tests.fixtures.retry_list import SERVERS, Recorder, RetryList
from tests.fixtures.tcp_proxy import TcpProxy

pytestmark = pytest.mark.parametrize("retry_list", SERVERS, indirect=True)


class DeafProxy(TcpProxy):
    """A proxy that can go on passing to the server what comes from the client, and swallow the answers."""

    swallowing = False

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        super()._pass_on(source, _Swallowing(self, sink) if source.getpeername() == self._upstream else sink)


class _Swallowing:
    def __init__(self, proxy: DeafProxy, sink: socket.socket) -> None:
        self._proxy, self._sink = proxy, sink

    def sendall(self, data: bytes) -> None:
        if not self._proxy.swallowing:
            self._sink.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


@contextmanager
def _proxied(retry_list: RetryList, **options: Any) -> Iterator[tuple[sa.Engine, DeafProxy]]:
    parts = urlsplit(retry_list.url)
    upstream = (parts.hostname or "127.0.0.1", parts.port or {"postgresql": 5432, "mysql": 3306}[retry_list.kind])
    proxy = DeafProxy(*upstream)
    url = sa.make_url(retry_list.url).set(host="127.0.0.1", port=proxy.port)
    engine = create_engine(url.render_as_string(hide_password=False), **options)
    try:
        yield engine, proxy
    finally:
        engine.dispose()
        proxy.close()


def _lose_answer(engine: sa.Engine, proxy: DeafProxy, *, of: str, done: Callable[[], bool]) -> list[str]:
    """Let the server do the first COMMIT of a transaction with such a statement, and cut the connection before the
    answer arrives.

    :param of: how the statement begins.
    :param done: whether the commit can be seen.
    """
    story: list[str] = []

    def execute(connection: sa.Connection, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith(of) and not story:
            story.append("statement")

    def commit(connection: sa.Connection) -> None:
        if story != ["statement"]:
            return
        story.append("commit")
        proxy.swallowing = True

        def cut() -> None:
            eventually(done, "the server has committed")
            proxy.cut()
            proxy.swallowing = False

        threading.Thread(target=cut, daemon=True).start()

    sa.event.listen(engine, "before_cursor_execute", execute)
    sa.event.listen(engine, "commit", commit)
    return story


def test_a_commit_whose_answer_was_lost_is_found_to_be_done(retry_list: RetryList) -> None:
    with _proxied(retry_list) as (engine, proxy):
        calls: list[int] = []
        _lose_answer(engine, proxy, of="INSERT INTO entity_locks", done=lambda: retry_list.lock_row() is not None)
        answer = transact(
            engine,
            lambda connection: (calls.append(1), locks.insert(connection, "a:1:b:c"))[1],
            read_back=lambda connection: "done" if locks.look(connection) else None,
        )
        assert answer == "done"
        assert len(calls) == 1


def test_a_commit_that_never_arrived_is_found_not_to_be_done_and_is_done_again(retry_list: RetryList) -> None:
    with _proxied(retry_list) as (engine, proxy):
        cuts: list[bool] = []

        def commit(connection: sa.Connection) -> None:
            if not cuts:
                cuts.append(True)
                proxy.cut()

        sa.event.listen(engine, "commit", commit)
        calls: list[int] = []
        transact(
            engine,
            lambda connection: (calls.append(1), locks.insert(connection, "a:1:b:c"))[1],
            read_back=lambda connection: "done" if locks.look(connection) else None,
        )
        assert len(calls) == 2
        assert retry_list.lock_row() is not None


@pytest.mark.parametrize("at", ["statement", "commit"])
def test_a_server_that_never_answers_counts_as_lost(retry_list: RetryList, at: str) -> None:
    """The connection stands, and whatever stands between acknowledges all that is sent: the kernel sees nothing."""
    with _proxied(retry_list, answer_seconds=1.0, pool_size=1, max_overflow=0) as (engine, proxy):
        with engine.connect():
            pass

        def work(connection: sa.Connection) -> None:
            proxy.swallowing = at == "statement"
            connection.execute(sa.text("SELECT 1"))
            proxy.swallowing = True

        with pytest.raises(Exception, match=r"answer|time|Lost|unclear|COMMIT") as caught:
            transact(engine, work, attempts=1)
        assert is_disconnect(caught.value)
        proxy.swallowing = False
        assert transact(engine, lambda connection: connection.execute(sa.text("SELECT 2")).scalar(), attempts=1) == 2


def test_a_batch_whose_answer_was_lost_is_sent_once_and_at_once(retry_list: RetryList) -> None:
    """S4: neither sent twice, nor left until its leases end."""
    rows = retry_list.rows(5)
    sender = Recorder()
    with _proxied(retry_list) as (engine, proxy):
        _lose_answer(engine, proxy, of="INSERT INTO order_task_leases", done=lambda: retry_list.retry_rows() == {})
        report = Ticker(engine, holder="host:1:t", sender=sender, settings=Settings()).tick()
    assert report.dispatched == 5
    assert sorted(sender.ids) == sorted(rows)
    assert retry_list.lock_row() is None


def test_the_tickets_of_orders_whose_commit_got_no_answer_are_sent(retry_list: RetryList) -> None:
    """They would wait for the scheduler's look at leases that nobody has claimed."""
    sender = Recorder()
    with _proxied(retry_list) as (engine, proxy):
        _lose_answer(engine, proxy, of="INSERT INTO order_events", done=lambda: bool(retry_list.lease_rows()))
        order_ids = submit(engine, [NewOrder(type="probe")] * 3, settings=Settings(), sender=sender)
    assert sorted(sender.ids) == sorted(retry_list.lease_rows())
    assert sorted(ticket.order_id for ticket in sender.tickets) == sorted(order_ids)


def test_a_lock_whose_taking_got_no_answer_is_not_left_behind(retry_list: RetryList) -> None:
    """S7, S9: the error comes out, nothing is sent, and nobody waits for the lock's time-out."""
    retry_list.rows(5)
    sender = Recorder()
    with _proxied(retry_list) as (engine, proxy):
        _lose_answer(engine, proxy, of="INSERT INTO entity_locks", done=lambda: retry_list.lock_row() is not None)
        ticker = Ticker(engine, holder="host:1:t", sender=sender, settings=Settings())
        with pytest.raises(Exception, match=r".") as caught:
            ticker.tick()
        assert is_disconnect(caught.value)
        assert sender.ids == []
        assert retry_list.lock_row() is None
        assert ticker.tick().dispatched == 5
