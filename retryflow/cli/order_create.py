"""``retryflow order create``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from retryflow.cli import order_show
from retryflow.cli.base import Show
from retryflow.cli.order_input import read_meta
from retryflow.cli.progress import Progress
from retryflow.cli.sending import ticket_sender
from retryflow.cli.words import seconds_of

STILL_PENDING = 3


class OrderCreate(Show):
    """Submit an order, and with --wait tell what happens to it until it has ended.

    Exit status with --wait: 0 the order is ACTIVE, 1 it is in ERROR, 3 the time ran out (the order goes on).
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--type", required=True, help="the order's type, for example certificate")
        parser.add_argument(
            "--csr", metavar="FILE", help="certificate signing request, PEM or DER; - is standard input"
        )
        parser.add_argument(
            "--meta",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="an entry of the order's meta; KEY:=VALUE for JSON other than text; may be repeated",
        )
        parser.add_argument(
            "--meta-file", metavar="FILE", help="the order's meta as a JSON object; - is standard input"
        )
        parser.add_argument(
            "--id", help="the order's id, so that submitting twice makes one order; made up if not given"
        )
        parser.add_argument("--project", help="the project that the order belongs to")
        parser.add_argument("--request-id", help="stands in each log line about the order (default: req- and its id)")
        parser.add_argument("--wait", action="store_true", help="wait until the order has ended")
        parser.add_argument(
            "--timeout", type=seconds_of, metavar="TIME", help="with --wait: wait no longer than this (90s, 15m)"
        )
        self._parser = parser
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        if parsed_args.timeout is not None and not parsed_args.wait:
            self._parser.error("--timeout says how long to --wait; give both, or neither")
        order_id = self._submit(parsed_args)
        if parsed_args.wait:
            self._wait(order_id, parsed_args.timeout)
        shown, _ = order_show.show(self.store, order_id, lease_seconds=self.app.conf.lease.lease_seconds)
        if not parsed_args.wait:
            names = ("id", "status", "type", "project_id", "request_id", "created_at", "next_step")
            shown = {name: shown[name] for name in names}
        return self.fields(shown)

    def _submit(self, parsed_args: argparse.Namespace) -> str:
        from retryflow.retry.settings import Settings
        from retryflow.retry.submit import NewOrder, submit

        new = NewOrder(
            type=parsed_args.type,
            meta=read_meta(csr=parsed_args.csr, meta_file=parsed_args.meta_file, pairs=parsed_args.meta),
            project_id=parsed_args.project,
            request_id=parsed_args.request_id,
            id=parsed_args.id,
        )
        conf = self.app.conf
        self.store.require_schema()
        with ticket_sender(conf) as sender:
            [order_id] = submit(self.store.engine, [new], settings=Settings.from_conf(conf), sender=sender)
        if sender is not None and not sender.all_taken:
            self.say("order %s is submitted; the broker has not taken its ticket, a scheduler sends it later", order_id)
        elif parsed_args.wait:
            self.say("order %s is submitted", order_id)
        return order_id

    def _wait(self, order_id: str, timeout_seconds: float | None) -> None:
        progress = Progress(self.store, order_id, say=lambda line: self.say("%s", line))
        try:
            status = progress.until_ended(timeout_seconds)
        except KeyboardInterrupt:
            self.say("no longer waiting; the order goes on, see: retryflow order show %s", order_id)
            raise
        self.exit_status = {"ACTIVE": 0, "ERROR": 1}.get(status, STILL_PENDING)
        if self.exit_status == STILL_PENDING:
            self.say("still PENDING when the time ran out; the order goes on, see: retryflow order show %s", order_id)
