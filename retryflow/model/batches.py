"""Statements on several tasks at once: the claims and finishes that meet in a worker (see ``retryflow.retry.group``).

They are made once, because making a statement costs more than sending it.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from retryflow.model.clock import now, seconds_between
from retryflow.model.leases import nobodys
from retryflow.model.orders import PENDING
from retryflow.model.several import Several, among
from retryflow.model.tables import order_events, order_plugin_metadata, order_retry_tasks, order_task_leases, orders
from retryflow.model.task_state import RENAMED, SHARED, UPDATE_TASK, TaskState
from retryflow.model.upsert import excluded, upsert

_leases = order_task_leases.c
_rows = order_retry_tasks.c
_OF_A_LINE = ("order_id", "event", "task", "task_id", "holder", "seconds", "detail")


def claim(several: Several, task_ids: Sequence[str], *, holder: str, lease_seconds: float) -> None:
    """Take those of these waiting leases that are free and have not crashed."""
    parameters = {"ids": sorted(task_ids), "new_holder": holder, "lease_seconds": lease_seconds}
    several.add(_claim(several.dialect), parameters)


@functools.cache
def _claim(dialect: sa.Dialect) -> Any:
    # The same guards as in leases.claim, and in leases.delete_held below; each row is fenced by itself.
    return (
        order_task_leases.update()
        .where(among(_leases.id, dialect), nobodys(), _leases.crash_count == 0)
        .values(
            holder=sa.bindparam("new_holder", type_=_leases.holder.type),
            started_at=now(),
            expires_at=now(sa.bindparam("lease_seconds", type_=sa.Float)),
        )
    )


def delete_held(several: Several, task_ids: Sequence[str], *, holder: str) -> int:
    """End one's own leases.

    :returns: the answer's place; its row count tells how many were ours: with fewer than asked for, roll everything
        back.
    """
    return several.add(_delete_held(several.dialect), {"ids": sorted(task_ids), "mine": holder})


@functools.cache
def _delete_held(dialect: sa.Dialect) -> Any:
    mine = sa.bindparam("mine", type_=_leases.holder.type)
    return order_task_leases.delete().where(among(_leases.id, dialect), _leases.holder == mine)


def delete_retry_rows(several: Several, order_ids: Sequence[str]) -> None:
    """Delete the retry rows of these orders, but those of updates."""
    if order_ids:
        several.add(_delete_rows(several.dialect), {"ids": sorted(order_ids)})


@functools.cache
def _delete_rows(dialect: sa.Dialect) -> Any:
    return order_retry_tasks.delete().where(among(_rows.order_id, dialect), _rows.retry_task != UPDATE_TASK)


def waiting_rows(several: Several, order_ids: Sequence[str]) -> int:
    """Look for what else is to be done for these orders, which this transaction has locked.

    :returns: the answer's place; its rows are ``(order_id, due_in_seconds)``.
    """
    return several.add(_waiting(several.dialect), {"ids": sorted(order_ids)})


@functools.cache
def _waiting(dialect: sa.Dialect) -> Any:
    return sa.select(_rows.order_id, seconds_between(now(), _rows.retry_at)).where(among(_rows.order_id, dialect))


def update_pending(several: Several, values: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Change orders that have not ended.

    :param values: by order id, the columns to write.
    :returns: the answers' places; the sum of their row counts tells how many had not ended.
    """
    same: dict[str, list[str]] = {}
    for order_id in sorted(values):
        same.setdefault(repr(sorted(values[order_id].items())), []).append(order_id)
    places: list[int] = []
    others: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for order_ids in same.values():
        columns = values[order_ids[0]]
        names = tuple(sorted(columns))
        parameters: dict[str, Any] = {f"new_{name}": value for name, value in columns.items()}
        if len(order_ids) > 1:
            places.append(several.add(_update_equally(names, several.dialect), parameters | {"ids": order_ids}))
        else:
            others.setdefault(names, []).append(parameters | {"the_order": order_ids[0]})
    return places + [several.add(_update_one(names), *rows) for names, rows in others.items()]


@functools.cache
def _update_equally(names: tuple[str, ...], dialect: sa.Dialect) -> Any:
    return _update(names).where(among(orders.c.id, dialect))


@functools.cache
def _update_one(names: tuple[str, ...]) -> Any:
    return _update(names).where(orders.c.id == sa.bindparam("the_order", type_=orders.c.id.type))


def _update(names: tuple[str, ...]) -> sa.Update:
    values = {name: sa.bindparam(f"new_{name}", type_=orders.c[name].type) for name in names}
    return orders.update().where(orders.c.status == PENDING).values(updated_at=now(), **values)


def save_states(several: Several, states: Mapping[str, Mapping[str, str]]) -> None:
    """Add to the plugin states, by order id."""
    values = [
        {"new_order_id": order_id, "new_key": key, "new_value": states[order_id][key]}
        for order_id in sorted(states)
        for key in sorted(states[order_id])
    ]
    if values:
        several.add(_save_state(several.dialect), *values)


@functools.cache
def _save_state(dialect: sa.Dialect) -> Any:
    table = order_plugin_metadata
    values = {name: sa.bindparam(f"new_{name}", type_=table.c[name].type) for name in ("order_id", "key", "value")}
    update = {"value": excluded(dialect, table, "value")}
    return upsert(dialect, table, values, key=("order_id", "key"), update=update)


def put_retry_rows(several: Several, follow_ons: Sequence[tuple[TaskState, float, bool, bool]]) -> None:
    """Put tasks on the retry list; merged as in ``retry_rows.put``.

    :param follow_ons: state, seconds until it is due, whether its retry clock starts, whether its poll clock starts.
    """
    if not follow_ons:
        return
    parameters = [
        {
            **{f"new_{name}": value for name, value in state.retry_values().items()},
            "new_id": str(uuid.uuid4()),
            "after_seconds": after_seconds,
            "starts_retry_clock": int(starts_retry_clock),
            "starts_poll_clock": int(starts_poll_clock),
        }
        for state, after_seconds, starts_retry_clock, starts_poll_clock in follow_ons
    ]
    several.add(_put(several.dialect), *parameters)


@functools.cache
def _put(dialect: sa.Dialect) -> Any:
    plain = ["id", "order_id", *RENAMED.values(), *(name for name in SHARED if not name.endswith("_since"))]
    values: dict[str, Any] = {name: sa.bindparam(f"new_{name}", type_=_rows[name].type) for name in plain}
    for clock in ("retry", "poll"):
        begun = sa.bindparam(f"new_{clock}_since", type_=_rows[f"{clock}_since"].type)
        starts = sa.bindparam(f"starts_{clock}_clock", type_=sa.Integer)
        values[f"{clock}_since"] = sa.case((starts == 1, now()), else_=begun)
    values["retry_at"] = now(sa.bindparam("after_seconds", type_=sa.Float))
    values["created_at"] = now()
    new_time = excluded(dialect, order_retry_tasks, "retry_at")
    earlier = sa.case((_rows.retry_at <= new_time, _rows.retry_at), else_=new_time)
    return upsert(dialect, order_retry_tasks, values, key=("order_id", "retry_task"), update={"retry_at": earlier})


def add_events(several: Several, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines of histories, each with all of order_id, event, task, task_id, holder, seconds and detail."""
    if several.dialect.name == "postgresql":
        several.add(_insert_events(), {name: [line[name] for line in lines] for name in _OF_A_LINE})
    else:
        several.add(_INSERT_EVENT, *lines)


_INSERT_EVENT = order_events.insert().values(at=now(), last_at=now(), count=sa.literal_column("1"))


@functools.cache
def _insert_events() -> Any:
    # Without the columns' lengths: a cast to these would cut in silence.
    types = {name: sa.Double() if name == "seconds" else sa.String() for name in _OF_A_LINE}
    arrays = [sa.bindparam(name, type_=ARRAY(type_)) for name, type_ in types.items()]
    # One text for any number of lines; SQLAlchemy would compile VALUES of several lines anew each time.
    names = (sa.column(name, type_) for name, type_ in types.items())
    lines = sa.func.unnest(*arrays).table_valued(*names).render_derived()
    values = {
        **{name: lines.c[name] for name in types},
        "at": now(),
        "last_at": now(),
        "count": sa.literal_column("1"),
    }
    source = sa.select(*values.values())
    return order_events.insert().from_select(list(values), source, include_defaults=False)
