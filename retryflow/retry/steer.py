"""What clients and operators do to an order from outside: update, cancel, retry, delete, and tickets without a
lease."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from retryflow.errors import OrderNotFound, WrongOrderState
from retryflow.model import ailments, events, leases, orders, retry_rows
from retryflow.model.orders import ERROR, PENDING
from retryflow.model.task_state import UPDATE_TASK, TaskState
from retryflow.model.transaction import transact
from retryflow.retry.plan import clean_line
from retryflow.retry.sending import SchedulerWaker, Ticket, TicketSender
from retryflow.retry.settings import Settings
from retryflow.retry.submit import FIRST_TASK, NewOrder, send

CANCELLED = "cancelled"


def update_order(
    engine: sa.Engine,
    order_id: str,
    meta: Mapping[str, Any],
    *,
    request_id: str | None = None,
    waker: SchedulerWaker | None = None,
) -> None:
    """Give a PENDING order new meta; a task will look at it as soon as no other task of the order is out.

    The content goes into the order at once, so that updates which meet each other lose nothing: the row only says
    "look again".

    :param meta: replaces the order's meta.
    :raises OrderNotFound: there is no such order.
    :raises WrongOrderState: it has ended.
    :raises InvalidOrder: ``meta`` is no JSON object.
    """
    NewOrder(type="any", meta=meta)

    def work(connection: sa.Connection) -> None:
        if not orders.update_pending(connection, order_id, meta=dict(meta)):
            raise _refusal(connection, order_id, "only a PENDING order can be updated")
        row = orders.get(connection, order_id)
        assert row is not None
        # Work of its own: with the step of the task that waits, a backend would take it for that one's repetition.
        state = TaskState.first(
            order_id,
            UPDATE_TASK,
            project_id=row.project_id,
            request_id=request_id,
            step=1 + max(leases.step_of_order(connection, order_id), retry_rows.step_of_order(connection, order_id)),
        )
        retry_rows.put(connection, state, after_seconds=0.0)
        events.add(connection, order_id, events.UPDATED, task=UPDATE_TASK)

    transact(engine, work)
    if waker is not None:
        waker.wake()


def cancel_order(engine: sa.Engine, order_id: str, *, reason: str = "cancelled by request") -> None:
    """End a PENDING order: ERROR with sub_status ``cancelled``. A running task is told, and its outcome is dropped.

    :param reason: is kept on one line, with blanks for control characters.
    :raises OrderNotFound: there is no such order.
    :raises WrongOrderState: it has ended already.
    """

    reason = clean_line(reason)

    def work(connection: sa.Connection) -> bool:
        retry_rows.delete_of_order(connection, order_id)
        leases.delete_of_order(connection, order_id)
        values = {"status": ERROR, "sub_status": CANCELLED, "error_status_code": "499", "error_reason": reason}
        if not orders.update_pending(connection, order_id, **values):
            raise _refusal(connection, order_id, "only a PENDING order can be cancelled")
        events.add(connection, order_id, events.CANCELLED, detail=reason)
        return True

    def was_cancelled(connection: sa.Connection) -> bool | None:
        row = orders.get(connection, order_id)
        return True if row is not None and (row.status, row.sub_status) == (ERROR, CANCELLED) else None

    transact(engine, work, read_back=was_cancelled)


def retry_order(engine: sa.Engine, order_id: str, *, settings: Settings, sender: TicketSender | None = None) -> None:
    """Start an order that is in ERROR over again: a new lease, all counters at zero.

    :raises OrderNotFound: there is no such order.
    :raises WrongOrderState: it is not in ERROR.
    """
    task_id = str(uuid.uuid4())
    wait = settings.resend_after_seconds(1)

    def work(connection: sa.Connection) -> Ticket:
        # Rows that slipped through while it ended are not to be mixed with the new start.
        retry_rows.delete_of_order(connection, order_id)
        leases.delete_of_order(connection, order_id)
        if not orders.reopen(connection, order_id):
            raise _refusal(connection, order_id, "only an order in ERROR can be retried")
        row = orders.get(connection, order_id)
        assert row is not None
        # Not with the step of an earlier piece of work, for whose repetition a backend would take it.
        step = 1 + ailments.next_step(connection, order_id)
        given = events.request_given(events.of_order(connection, order_id))
        state = TaskState.first(order_id, FIRST_TASK, project_id=row.project_id, request_id=given, step=step)
        leases.insert(
            connection, task_id, state, expires_in_seconds=wait if sender else 0.0, sent_count=1 if sender else 0
        )
        events.add(connection, order_id, events.REOPENED, task_id=task_id, detail=events.request_detail(given))
        return Ticket(task_id, order_id, FIRST_TASK, row.project_id, given, wait)

    def was_reopened(connection: sa.Connection) -> Ticket | None:
        row = orders.get(connection, order_id)
        if row is None or not events.was_written(connection, order_id, events.REOPENED, task_id=task_id):
            return None
        given = events.request_given(events.of_order(connection, order_id))
        return Ticket(task_id, order_id, FIRST_TASK, row.project_id, given, wait)

    ticket = transact(engine, work, read_back=was_reopened)
    if sender is not None:
        send(engine, [ticket], sender=sender, settings=settings)


def delete_order(engine: sa.Engine, order_id: str) -> None:
    """Delete an order with everything that belongs to it; a running task's outcome is dropped.

    :raises OrderNotFound: there is no such order.
    """

    def work(connection: sa.Connection) -> bool:
        retry_rows.delete_of_order(connection, order_id)
        leases.delete_of_order(connection, order_id)
        if not orders.delete(connection, order_id):
            raise OrderNotFound(f"there is no order {order_id}; `retryflow order list` shows those there are")
        return True

    def is_gone(connection: sa.Connection) -> bool | None:
        return True if orders.get(connection, order_id) is None else None

    transact(engine, work, read_back=is_gone)


def admit_foreign_ticket(
    engine: sa.Engine,
    order_id: str,
    task: str,
    *,
    request_id: str | None,
    waker: SchedulerWaker | None = None,
) -> bool:
    """Serve a ticket from a client that knows nothing of leases: it never makes a lease, only a retry row due now.

    :returns: ``False`` when there is nothing to do: the order has ended or is unknown, or has a next step already.
    """

    def work(connection: sa.Connection) -> bool:
        row = orders.get(connection, order_id)
        if row is None or row.status != PENDING:
            return False
        if leases.of_order(connection, order_id) or retry_rows.exists_for(connection, order_id, task):
            return False
        # A late copy of a ticket whose task has been run must not run it again: the order has its next step.
        if task != UPDATE_TASK and retry_rows.count_of_order(connection, order_id):
            return False
        state = TaskState.first(order_id, task, project_id=row.project_id, request_id=request_id)
        retry_rows.put(connection, state, after_seconds=0.0)
        return True

    admitted = transact(engine, work)
    if admitted and waker is not None:
        waker.wake()
    return admitted


def _refusal(connection: sa.Connection, order_id: str, rule: str) -> Exception:
    row = orders.get(connection, order_id)
    if row is None:
        return OrderNotFound(f"there is no order {order_id}; `retryflow order list` shows those there are")
    return WrongOrderState(f"order {order_id} is {row.status}; {rule}")
