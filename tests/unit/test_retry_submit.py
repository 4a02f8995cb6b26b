"""Submit: order and lease in one transaction, the ticket after its commit (FAILURES T9)."""

from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exc
from sqlalchemy import orm

from retryflow.errors import InvalidOrder
from retryflow.model import leases
from retryflow.model.orders import PENDING
from retryflow.model.tables import order_task_leases, orders
from retryflow.model.transaction import transact
from retryflow.retry.claim import NotClaimed, claim
from retryflow.retry.sending import Ticket
from retryflow.retry.submit import NewOrder, submit, submit_in_session, write_orders
from tests.fixtures.contract import Desk, Outbox, at_once, new_id


class ClaimingSender:
    """A broker so quick that a worker claims while the sender still sends."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.claims: list[object] = []

    def send(self, tickets: Sequence[Ticket], *, timeout_seconds: float) -> set[str]:
        for ticket in tickets:
            self.claims.append(
                claim(self._desk.engine, ticket.task_id, holder="w", lease_seconds=20.0, also_crashed=False)
            )
        return set()


def test_t9_a_worker_that_gets_the_ticket_at_once_finds_the_order_committed(desk: Desk) -> None:
    """FAILURES T9: commit, then send."""
    sender = ClaimingSender(desk)
    submit(desk.engine, [NewOrder(type="probe")] * 3, settings=desk.settings, sender=sender)
    assert [type(found).__name__ for found in sender.claims] == ["Claimable"] * 3


def test_a_submitted_order_is_pending_with_a_lease_that_its_ticket_names(desk: Desk) -> None:
    outbox = Outbox()
    new = NewOrder(type="probe", meta={"a": [1, "é"]}, project_id="p", request_id="req-1", id=new_id())
    [order_id] = submit(desk.engine, [new], settings=desk.settings, sender=outbox)
    assert order_id == new.id
    order, lease, [ticket] = desk.order(order_id), desk.lease(order_id), outbox.tickets
    assert (order.status, order.meta, order.project_id) == (PENDING, {"a": [1, "é"]}, "p")
    assert (lease.id, lease.holder, lease.sent_count) == (ticket.task_id, None, 1)
    assert (ticket.order_id, ticket.task, ticket.project_id) == (order_id, "process_type_order", "p")
    assert ticket.request_id == lease.request_id == "req-1"
    # The ticket lives as long as it takes until the scheduler sends it again, so that copies do not pile up.
    assert ticket.ttl_seconds == desk.settings.ticket_resend_seconds
    assert 0 < lease.expires_in_seconds <= desk.settings.ticket_resend_seconds


def test_a_ticket_that_the_broker_did_not_confirm_is_due_for_sending_again(desk: Desk) -> None:
    [order_id] = submit(desk.engine, [NewOrder(type="probe")], settings=desk.settings, sender=Outbox(broken=True))
    assert desk.lease(order_id).expires_in_seconds <= 0


def test_without_a_sender_the_scheduler_is_to_send_at_its_next_look(desk: Desk) -> None:
    lease = desk.lease(desk.submit())
    assert (lease.sent_count, lease.expires_in_seconds <= 0) == (0, True)


def test_submitting_the_same_id_twice_is_harmless(desk: Desk) -> None:
    outbox, new = Outbox(), NewOrder(type="probe", id=new_id())
    assert submit(desk.engine, [new], settings=desk.settings, sender=outbox) == [new.id]
    assert submit(desk.engine, [new, new], settings=desk.settings, sender=outbox) == [new.id, new.id]
    assert len(outbox.tickets) == 1
    assert desk.history(str(new.id)) == ["submitted"]


def test_clients_that_submit_the_same_id_at_once_make_one_order(desk: Desk) -> None:
    for _ in range(5):
        outbox, new = Outbox(), NewOrder(type="probe", id=new_id())

        def submit_it(new: NewOrder = new, outbox: Outbox = outbox) -> list[str]:
            return submit(desk.engine, [new], settings=desk.settings, sender=outbox)

        assert at_once(*[submit_it] * 4) == [[new.id]] * 4
        assert len(outbox.tickets) == 1
        assert desk.is_moving(str(new.id))


def test_what_the_caller_rolls_back_leaves_nothing(desk: Desk) -> None:
    new = NewOrder(type="probe", id=new_id())

    def work(connection: sa.Connection) -> None:
        write_orders(connection, [new], settings=desk.settings)
        raise RuntimeError("the caller's own work failed")

    with pytest.raises(RuntimeError):
        transact(desk.engine, work)
    assert desk.order(str(new.id)) is None
    assert desk.lease(str(new.id)) is None


def test_a_savepoint_sends_nothing_before_the_commit_around_it(desk: Desk) -> None:
    """T9: released, it is still not committed."""
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("it has a transaction of its own way with savepoints")
    outbox = Outbox()
    with orm.Session(desk.engine) as session:
        with session.begin_nested(), session.begin_nested():
            [order_id] = submit_in_session(session, [NewOrder(type="probe")], settings=desk.settings, sender=outbox)
        assert outbox.tickets == []
        session.rollback()
        session.commit()
        assert outbox.tickets == []
        with session.begin_nested():
            [order_id] = submit_in_session(session, [NewOrder(type="probe")], settings=desk.settings, sender=outbox)
        session.commit()
    assert [ticket.order_id for ticket in outbox.tickets] == [order_id]


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_tickets_along(desk: Desk) -> None:
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("it has a transaction of its own way with savepoints")
    outbox = Outbox()
    with orm.Session(desk.engine) as session:
        [kept] = submit_in_session(session, [NewOrder(type="probe")], settings=desk.settings, sender=outbox)
        savepoint = session.begin_nested()
        submit_in_session(session, [NewOrder(type="probe")], settings=desk.settings, sender=outbox)
        savepoint.rollback()
        session.commit()
    assert [ticket.order_id for ticket in outbox.tickets] == [kept]


def test_who_has_submitted_is_not_told_of_an_error_after_the_commit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """He would submit again, and have two orders; the scheduler sends the ticket when its lease ends."""

    def away(*_args: object, **_more: object) -> None:
        raise db_exc.DBConnectionError

    monkeypatch.setattr(leases, "expire_unsent", away)
    [order_id] = submit(desk.engine, [NewOrder(type="probe")], settings=desk.settings, sender=Outbox(broken=True))
    assert desk.is_moving(order_id)
    assert "1 tickets are sent again by the scheduler" in caplog.text


def test_many_orders_are_submitted_in_one_transaction_in_the_order_given(desk: Desk) -> None:
    outbox = Outbox()
    ids = [new_id() for _ in range(300)]
    assert (
        submit(desk.engine, [NewOrder(type="probe", id=x) for x in ids], settings=desk.settings, sender=outbox) == ids
    )
    assert [ticket.order_id for ticket in outbox.tickets] == ids
    with desk.engine.connect() as connection:
        count = connection.scalar(
            sa.select(sa.func.count()).select_from(orders.join(order_task_leases)).where(orders.c.id.in_(ids))
        )
    assert count == 300


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": ""},
        {"type": "x" * 256},
        {"type": 7},
        {"type": "a\x00b"},
        {"type": "probe", "meta": [1]},
        {"type": "probe", "meta": {"a": {1, 2}}},
        {"type": "probe", "meta": {"a": float("nan")}},
        {"type": "probe", "id": "x" * 37},
        {"type": "probe", "id": ""},
        {"type": "probe", "project_id": "p" * 65},
        {"type": "probe", "request_id": 5},
        {"type": "probe", "project_id": "lone surrogate \ud800"},
        {"type": "probe", "meta": {"a": ["lone surrogate \ud800"]}},
        {"type": "probe", "meta": {"lone surrogate \ud800": 1}},
    ],
)
def test_what_could_never_be_stored_is_refused_with_one_line(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOrder) as caught:
        NewOrder(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_a_ticket_of_an_order_that_was_never_committed_claims_nothing(desk: Desk) -> None:
    assert claim(desk.engine, new_id(), holder="w", lease_seconds=20.0, also_crashed=False) is NotClaimed.GONE
