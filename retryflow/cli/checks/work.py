"""The orders and their next steps: is anybody there to take them, and does everything move on?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from retryflow.cli import words
from retryflow.cli.checks.finding import WARNING, Finding

if TYPE_CHECKING:
    from retryflow.cli.store import Store

_SHOWN = 3


def check(store: Store, conf: cfg.ConfigOpts, *, overdue_seconds: float) -> Iterator[Finding]:
    """Everything that should have moved on.

    :param overdue_seconds: what is so long overdue would have been taken up by a scheduler that works.
    """
    from retryflow.model import census

    numbers = store.read(
        partial(census.take, alive_within_seconds=conf.lease.lease_seconds, window_seconds=overdue_seconds)
    )
    yield from _daemons(numbers)
    yield from _stuck_lock(store, conf, overdue_seconds)
    yield from _overdue(store, overdue_seconds)
    yield from _without_next_step(store, overdue_seconds)
    yield from _of_ended_orders(store)
    yield from _unknown_tasks(store, conf)


def _daemons(numbers: Any) -> Iterator[Finding]:
    to_do = numbers.orders.get("PENDING", 0)
    for kind, program in (("worker", "barbican-worker"), ("scheduler", "barbican-task-scheduler")):
        if not numbers.alive.get(kind, 0) and to_do:
            yield Finding(
                check=f"no-{kind}",
                what=f"{words.count(to_do, 'order')} PENDING, and no {kind} is alive",
                remedy=f"start {program} (or retryflow-standalone)",
            )


def _stuck_lock(store: Store, conf: cfg.ConfigOpts, overdue_seconds: float) -> Iterator[Finding]:
    from retryflow.model import locks
    from retryflow.model.transaction import transact

    lock = store.read(locks.look)
    if lock is None or -1.0 <= lock.age_seconds <= overdue_seconds:
        return

    def fix() -> str:
        broken = transact(store.engine, partial(locks.break_seen, seen=lock.worker_host_name, batches=lock.batches))
        return "broken" if broken else "it was touched or taken over meanwhile"

    touched = words.distance(lock.age_seconds)
    yield Finding(
        check="stuck-lock",
        what=f"the lock on the retry list was touched {touched}, by {lock.worker_host_name}, and nobody has taken it "
        "over",
        remedy="start a scheduler, which takes a stale lock over by itself; or: retryflow lock break",
        fix=fix,
    )


def _overdue(store: Store, overdue_seconds: float) -> Iterator[Finding]:
    from retryflow.model import ailments

    remedy = "see that a scheduler is alive and at work (retryflow worker list, its log)"
    kinds = {
        "expired-leases": (ailments.expired_leases(overdue_seconds, held=True), "tasks were lost with their workers"),
        "waiting-leases": (ailments.expired_leases(overdue_seconds, held=False), "tickets should have been sent again"),
        "overdue-retries": (ailments.overdue_rows(overdue_seconds), "retry rows are due"),
    }
    for name, (statement, told) in kinds.items():
        found = store.read(partial(ailments.sample, statement=statement, limit=_SHOWN))
        if found.count:
            yield Finding(
                check=name,
                what=f"{found.count} {told} since more than {words.length(overdue_seconds)}, and no scheduler has "
                f"taken them up: orders {_some(found)}",
                remedy=remedy,
            )


def _without_next_step(store: Store, overdue_seconds: float) -> Iterator[Finding]:
    from retryflow.model import ailments
    from retryflow.model.transaction import transact

    found = store.read(
        partial(ailments.sample, statement=ailments.orders_without_next_step(overdue_seconds), limit=_SHOWN)
    )
    if not found.count:
        return

    def fix() -> str:
        total = 0
        while done := transact(store.engine, partial(ailments.give_next_step, for_seconds=overdue_seconds, limit=100)):
            total += done
        return f"{words.count(total, 'order')} put on the retry list"

    yield Finding(
        check="no-next-step",
        what=f"{words.count(found.count, 'order')} PENDING without a next step: {_some(found)}",
        remedy="retryflow doctor --fix puts them on the retry list",
        fix=fix,
    )


def _of_ended_orders(store: Store) -> Iterator[Finding]:
    from retryflow.model import ailments
    from retryflow.model.transaction import transact

    found = store.read(partial(ailments.sample, statement=ailments.rows_of_ended_orders(), limit=_SHOWN))
    if not found.count:
        return

    def fix() -> str:
        return f"{words.count(transact(store.engine, ailments.delete_rows_of_ended_orders), 'row')} removed"

    yield Finding(
        check="leftovers",
        severity=WARNING,
        what=f"{found.count} leases or retry rows belong to orders that have ended: {_some(found)}",
        remedy="harmless: they go when they are met; retryflow doctor --fix removes them now",
        fix=fix,
    )


def _unknown_tasks(store: Store, conf: cfg.ConfigOpts) -> Iterator[Finding]:
    from retryflow.errors import RetryflowError
    from retryflow.model import ailments
    from retryflow.tasks.registry import OrderTypeRegistry

    planned = store.read(ailments.planned_tasks)
    if not planned:
        return
    registry = OrderTypeRegistry(conf)
    for row in planned:
        try:
            known = row.retry_task in registry.get(row.type).handlers()
            why = f"order type {row.type} has no task {row.retry_task}"
        except RetryflowError as error:
            known, why = False, str(error)
        if not known:
            yield Finding(
                check="unknown-task",
                severity=WARNING,
                what=f"{words.count(row.rows, 'retry row')} that nobody with this installation can run: {why}",
                remedy="install the package that offers it on the workers, or cancel the orders",
            )


def _some(found: Any) -> str:
    more = ", ..." if found.count > len(found.order_ids) else ""
    return ", ".join(found.order_ids) + more
