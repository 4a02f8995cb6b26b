"""``retryflow order retry``, ``cancel`` and ``delete``."""

from __future__ import annotations

import argparse

from retryflow.cli import words
from retryflow.cli.each import EachOrder
from retryflow.cli.hooks import tell_backend
from retryflow.cli.sending import ticket_sender


class OrderRetry(EachOrder):
    """Start orders that are in ERROR over again, with all counters at zero."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.retry.settings import Settings
        from retryflow.retry.steer import retry_order

        settings = Settings.from_conf(self.app.conf)
        self.store.require_schema()
        with ticket_sender(self.app.conf) as sender:

            def retry(order_id: str) -> str:
                retry_order(self.store.engine, order_id, settings=settings, sender=sender)
                return f"order {order_id} is PENDING again"

            self.each(parsed_args.orders, retry)
        if sender is not None and not sender.all_taken:
            self.say("the broker has not taken each ticket; a scheduler sends them later")


class OrderCancel(EachOrder):
    """Cancel PENDING orders: they end in ERROR, and the backend is told.

    A task that is running is told as well, and whatever it returns is dropped.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--reason",
            default="cancelled by an operator",
            help="is kept as the order's error_reason (default: %(default)s)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.retry.steer import cancel_order

        self.store.require_schema()

        def cancel(order_id: str) -> str:
            cancel_order(self.store.engine, order_id, reason=parsed_args.reason)
            warning = tell_backend(self.store, self.app.conf, order_id)
            told = f"order {order_id} is cancelled"
            return f"{told}; warning: {warning}" if warning else told

        self.each(parsed_args.orders, cancel)


class OrderDelete(EachOrder):
    """Delete orders with their history and certificates; asks first. A PENDING order is better cancelled."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from retryflow.retry.steer import delete_order

        self.store.require_schema()
        several = words.count(len(parsed_args.orders), "order")
        self.ask(f"Delete {several} with everything that belongs to them, for ever?", agreed=parsed_args.yes)

        def delete(order_id: str) -> str:
            delete_order(self.store.engine, order_id)
            return f"order {order_id} is deleted"

        self.each(parsed_args.orders, delete)
