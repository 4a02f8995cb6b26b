"""Submit: an order and the lease of its first task in one transaction, then the ticket."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_log import log as logging

from retryflow import faults
from retryflow.errors import InvalidOrder
from retryflow.model import events, leases
from retryflow.model.clock import now
from retryflow.model.orders import PENDING
from retryflow.model.tables import order_events, order_task_leases, orders
from retryflow.model.task_state import TaskState
from retryflow.model.transaction import driver_error, transact
from retryflow.retry.sending import Ticket, TicketSender
from retryflow.retry.settings import Settings

if TYPE_CHECKING:
    # Only who calls submit_in_session has it imported already.
    from sqlalchemy import orm

    _Waiting = list[tuple[orm.SessionTransaction | None, Sequence[Ticket]]]

LOG = logging.getLogger(__name__)
FIRST_TASK = "process_type_order"
_WAITING = "retryflow_tickets"
_LENGTHS = {"id": 36, "type": 255, "project_id": 64, "request_id": 64}


@dataclass(frozen=True, kw_only=True)
class NewOrder:
    """What a client asks for.

    :param type: a name of the ``retryflow.order_types`` namespace; an unknown one ends in ERROR with a reason.
    :param meta: a JSON object; what it must hold is the order type's business.
    :param id: chosen by the caller, so that submitting twice is harmless; at most 36 printable characters, as all texts
        here without a blank at either end. Made up if ``None``.
    :param request_id: stands in each log line about the order; without one it is ``req-`` and the order's id.
    :raises InvalidOrder: a value has the wrong type, is empty or too long, holds control characters, or is no JSON.
    """

    type: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    project_id: str | None = None
    request_id: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        for name, length in _LENGTHS.items():
            value = getattr(self, name)
            if value is None and name != "type":
                continue
            if not isinstance(value, str) or not 1 <= len(value) <= length or not _is_plain(value):
                raise InvalidOrder(
                    f"order {name} must be a text of 1 to {length} characters, all of them printable, and no blank at "
                    f"either end; it is {value!r:.80}"
                )
        if not isinstance(self.meta, Mapping):
            raise InvalidOrder(f"order meta must be a JSON object; it is {type(self.meta).__name__}")
        try:
            # As text, since half a character (a lone surrogate) cannot be shown, or sent to a backend.
            json.dumps(dict(self.meta), allow_nan=False, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise InvalidOrder(f"order meta must be JSON of whole characters; {half!r} is half of one") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOrder(f"order meta must be JSON: {error}") from None


def _is_plain(text: str) -> bool:
    """Such a text can be searched for in a log, and writes neither a line of its own there nor on a terminal."""
    return text.isprintable() and text == text.strip()


@dataclass(frozen=True)
class Submission:
    """What was written.

    :param order_ids: of all orders, in the order they were given; those that had been submitted before included.
    :param tickets: to be sent after the transaction is committed; if that is forgotten, the scheduler sends them.
    """

    order_ids: Sequence[str]
    tickets: Sequence[Ticket]


def write_orders(
    connection: sa.Connection, new: Sequence[NewOrder], *, settings: Settings, will_send: bool = True
) -> Submission:
    """Write orders and leases in the caller's transaction.

    :param will_send: whether the caller sends the tickets itself after its commit; otherwise the scheduler does, at
        its next look.
    :returns: the ids and the tickets.
    :raises oslo_db.exception.DBDuplicateEntry: another client submits an order of the same id at this moment; roll back
        and do it again.
    """
    wanted = [(order.id or str(uuid.uuid4()), order) for order in new]
    named = [order.id for order in new if order.id]
    known = set(connection.execute(sa.select(orders.c.id).where(orders.c.id.in_(named))).scalars()) if named else set()
    fresh = {order_id: order for order_id, order in wanted if order_id not in known}
    tickets = []
    order_rows, lease_rows, event_rows = [], [], []
    first_wait = settings.resend_after_seconds(1) if will_send else 0.0
    for order_id, order in fresh.items():
        task_id = str(uuid.uuid4())
        state = TaskState.first(order_id, FIRST_TASK, project_id=order.project_id, request_id=order.request_id)
        order_rows.append(
            {"id": order_id, "project_id": order.project_id, "type": order.type, "meta": dict(order.meta)}
        )
        lease_rows.append({"id": task_id, "sent_count": 1 if will_send else 0, **state.lease_values()})
        detail = events.request_detail(order.request_id)
        event_rows.append({"order_id": order_id, "task": FIRST_TASK, "detail": detail})
        tickets.append(_first_ticket(task_id, order_id, order, settings))
    if fresh:
        moment = {"created_at": now(), "updated_at": now()}
        connection.execute(orders.insert().values(status=PENDING, **moment), order_rows)
        connection.execute(order_task_leases.insert().values(created_at=now(), expires_at=now(first_wait)), lease_rows)
        connection.execute(
            order_events.insert().values(event=events.SUBMITTED, at=now(), last_at=now(), count=1), event_rows
        )
    return Submission([order_id for order_id, _ in wanted], tickets)


def _first_ticket(task_id: str, order_id: str, order: NewOrder, settings: Settings) -> Ticket:
    return Ticket(
        task_id=task_id,
        order_id=order_id,
        task=FIRST_TASK,
        project_id=order.project_id,
        request_id=order.request_id,
        ttl_seconds=settings.resend_after_seconds(1),
    )


def submit(
    engine: sa.Engine, new: Sequence[NewOrder], *, settings: Settings, sender: TicketSender | None = None
) -> list[str]:
    """Submit orders: after this has returned they reach ACTIVE or ERROR, or are PENDING with a next step.

    :param sender: where tickets go; without one the scheduler sends them at its next look.
    :returns: the orders' ids, as given or made up.
    """
    # The ids are fixed before the transaction, so that one that runs again after an unclear commit finds its own
    # orders.
    fixed = [order if order.id else replace(order, id=str(uuid.uuid4())) for order in new]

    def write(connection: sa.Connection) -> Submission:
        submission = write_orders(connection, fixed, settings=settings, will_send=sender is not None)
        faults.point("submit.before_commit")
        return submission

    def read_back(connection: sa.Connection) -> Submission | None:
        by_id = {str(order.id): order for order in fixed}
        there = connection.execute(sa.select(orders.c.id).where(orders.c.id.in_(sorted(by_id)))).scalars().all()
        if len(there) < len(by_id):
            return None
        # Nothing else would send their tickets before the scheduler does for want of a claim.
        tickets = [
            _first_ticket(task_id, order_id, by_id[order_id], settings)
            for task_id, order_id in leases.waiting_of_orders(connection, sorted(by_id))
        ]
        return Submission([str(order.id) for order in fixed], tickets)

    for attempt in (1, 2, 3):
        try:
            submission = transact(engine, write, read_back=read_back)
            break
        except db_exc.DBDuplicateEntry:
            if attempt == 3:
                raise
    faults.point("submit.after_commit")
    if sender is not None and submission.tickets:
        send(engine, submission.tickets, sender=sender, settings=settings)
    return list(submission.order_ids)


def submit_in_session(
    session: orm.Session, new: Sequence[NewOrder], *, settings: Settings, sender: TicketSender | None = None
) -> list[str]:
    """Submit orders in the caller's own transaction: they exist if, and only if, the caller's work is committed.

    :param session: whatever it commits or rolls back decides; the tickets go out right after its commit.
    :param sender: where tickets go, the same for all calls with one session; without one the scheduler sends them at
        its next look.
    :returns: the orders' ids.
    :raises oslo_db.exception.DBDuplicateEntry: another client submits an order of the same id at this moment; roll back
        and do it again.
    """
    connection = session.connection()
    engine = connection.engine
    submission = write_orders(connection, new, settings=settings, will_send=sender is not None)

    waiting: _Waiting | None = session.info.get(_WAITING)
    if waiting is None:
        waiting = session.info[_WAITING] = []

        def committed(session: orm.Session) -> None:
            savepoint = session.get_nested_transaction()
            if savepoint is not None:
                # Only what surrounds it makes its work last.
                waiting[:] = [(savepoint.parent if of is savepoint else of, tickets) for of, tickets in waiting]
                return
            sent, waiting[:] = list(waiting), []
            if sender is not None:
                for _of, tickets in sent:
                    if tickets:
                        send(engine, tickets, sender=sender, settings=settings)

        def rolled_back(session: orm.Session) -> None:
            savepoint = session.get_nested_transaction()
            waiting[:] = [] if savepoint is None else [(of, tickets) for of, tickets in waiting if of is not savepoint]

        sa.event.listen(session, "after_commit", committed)
        sa.event.listen(session, "after_rollback", rolled_back)
    waiting.append((session.get_nested_transaction() or session.get_transaction(), submission.tickets))
    return list(submission.order_ids)


def send(engine: sa.Engine, tickets: Sequence[Ticket], *, sender: TicketSender, settings: Settings) -> None:
    """Send what is committed already: whoever submits must not be told of an error and do it again."""
    try:
        send_and_mark(engine, tickets, sender=sender, settings=settings, again_after_seconds=0.0)
    except Exception as error:  # noqa: BLE001 - their leases end by themselves, and then the tickets are sent again
        LOG.warning(
            "%d tickets are sent again by the scheduler: %s",
            len(tickets),
            " ".join(str(driver_error(error)).split())[:200],
        )


def send_and_mark(
    engine: sa.Engine,
    tickets: Sequence[Ticket],
    *,
    sender: TicketSender,
    settings: Settings,
    again_after_seconds: float,
) -> int:
    """Send tickets whose leases are committed; those that the broker did not confirm are due for re-sending soon.

    :param again_after_seconds: when an unconfirmed one is to be sent again.
    :returns: how many were confirmed.
    """
    failed = sender.send(tickets, timeout_seconds=settings.publish_timeout_seconds)
    faults.point("send.after")
    if failed:
        transact(engine, lambda connection: leases.expire_unsent(connection, failed, after_seconds=again_after_seconds))
    return len(tickets) - len(failed)
