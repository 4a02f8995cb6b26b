"""``retryflow order show``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retryflow.cli import next_step, story, words
from retryflow.cli.base import Show
from retryflow.cli.columns import Maybe, Moment, Told, document
from retryflow.cli.failures import CommandFailed, writing_to
from retryflow.cli.masking import masked, without_private_key
from retryflow.cli.words import storable

if TYPE_CHECKING:
    import sqlalchemy as sa

    from retryflow.cli.store import Store
    from retryflow.model.types import AnyRow

_PEM_FIELDS = ("certificate", "chain")


class OrderShow(Show):
    """Show one order: what it is, what has happened, what happens next."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("order", type=storable, metavar="ORDER", help="the order's id")
        for name in _PEM_FIELDS:
            parser.add_argument(f"--{name}", metavar="FILE", help=f"also write the {name} into this file, as PEM")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        shown, row = show(self.store, parsed_args.order, lease_seconds=self.app.conf.lease.lease_seconds)
        for name in _PEM_FIELDS:
            path = getattr(parsed_args, name)
            if path is not None:
                _write(Path(path), row, name)
                self.say("the %s is in %s", name, path)
        return self.fields(shown)


def show(store: Store, order_id: str, *, lease_seconds: float) -> tuple[dict[str, Any], AnyRow]:
    """Read all that there is about an order.

    :returns: the fields to show, and the order's row.
    :raises retryflow.errors.OrderNotFound: there is no such order.
    """
    from retryflow.model import events, listing, orders

    liveness = next_step.Liveness(lease_seconds)

    def work(connection: sa.Connection) -> tuple[AnyRow, Any, Any, Any]:
        return (
            listing.order_in_full(connection, order_id),
            next_step.of_orders(connection, [order_id], liveness=liveness)[order_id],
            events.of_order(connection, order_id),
            orders.state(connection, order_id),
        )

    row, steps, history, state = store.read(work)
    result = row.result if isinstance(row.result, dict) else {}
    details = {key: value for key, value in result.items() if key not in _PEM_FIELDS} or None
    fields: dict[str, Any] = {
        "id": row.id,
        "status": row.status,
        "sub_status": Maybe(row.sub_status),
        "sub_status_message": Maybe(row.sub_status_message),
        "type": row.type,
        "project_id": Maybe(row.project_id),
        "request_id": _request_id(row.id, steps, history),
        "created_at": Moment(row.created_at, row.created_seconds),
        "updated_at": Moment(row.updated_at, row.updated_seconds),
        "next_step": next_step.column(row.status, steps) if row.status == "PENDING" or steps else Maybe(None),
        "error_status_code": Maybe(row.error_status_code),
        "error_reason": Maybe(row.error_reason),
        "last_error": Maybe(_last_error(steps, history)),
        "plugin_name": Maybe(row.plugin_name),
        "meta": document(masked(row.meta)),
        "plugin_state": document(masked(state) or None),
        "history": story.column(history),
        "result": document(masked(details if result else row.result)),
    }
    for name in _PEM_FIELDS:
        fields[name] = Told(without_private_key(result.get(name)) or None, partial(_tell_pem, name))
    return fields, row


def _last_error(steps: list[dict[str, Any]], history: list[Any]) -> str | None:
    from retryflow.model import events

    bad = (events.RETRYING, events.CRASHED, events.FAILED, events.INTERRUPTED)
    errors = [line.detail for line in history if line.event in bad and line.detail]
    # A row that was set aside, or whose history was purged, knows more than the history.
    kept = [str(step["last_error"]) for step in steps if step["last_error"]]
    return kept[0] if kept else errors[-1] if errors else None


def _request_id(order_id: str, steps: list[dict[str, Any]], history: list[Any]) -> str:
    from retryflow.model import events
    from retryflow.retry.log_context import request_of

    return str(steps[0]["request_id"]) if steps else request_of(order_id, events.request_given(history))


def _tell_pem(name: str, text: str) -> str:
    return f"PEM, {words.count(text.count('-----BEGIN '), 'certificate')} (-c {name} -f value prints it)"


def _write(path: Path, row: AnyRow, name: str) -> None:
    text = row.result.get(name) if isinstance(row.result, dict) else None
    if not text:
        raise CommandFailed(f"order {row.id} has no {name}; it is {row.status}")
    with writing_to(str(path)):
        path.write_text(text)
