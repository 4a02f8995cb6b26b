"""Baselines: the same work by the plain drivers, with nothing around it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import amqp
import sqlalchemy as sa

from tests.fixtures.rabbit import Rabbit

BATCH = 500
WINDOW = 2000
TICKET = b'{"oslo.version": "2.0", "oslo.message": "' + b"x" * 350 + b'"}'


@contextlib.contextmanager
def connection(url: str) -> Iterator[Any]:
    """A connection of the driver itself."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    raw = engine.raw_connection()
    try:
        yield raw.driver_connection
    finally:
        raw.close()
        engine.dispose()


def move_rows(url: str, count: int) -> float:
    """Turn the first ``count`` retry rows into leases by two statements a batch.

    :returns: seconds.
    """
    columns = "order_id, {task}, {args}, {kwargs}, retry_count, poll_count, crash_count, step, created_at"
    target = columns.format(task="task", args="args", kwargs="kwargs")
    source = columns.format(task="retry_task", args="retry_args", kwargs="retry_kwargs")
    mark = "?" if url.startswith("sqlite") else "%s"
    with connection(url) as driver:
        cursor = driver.cursor()
        began = time.perf_counter()
        for _ in range(0, count, BATCH):
            cursor.execute(f"SELECT id FROM order_retry_tasks ORDER BY retry_at, id LIMIT {BATCH}")
            ids = [row[0] for row in cursor.fetchall()]
            marks = ", ".join([mark] * len(ids))
            cursor.execute(
                f"INSERT INTO order_task_leases (id, {target}, expires_at, sent_count, renewals) "
                f"SELECT id, {source}, created_at, 1, 0 FROM order_retry_tasks WHERE id IN ({marks})",
                ids,
            )
            cursor.execute(f"DELETE FROM order_retry_tasks WHERE id IN ({marks})", ids)
            driver.commit()
        return time.perf_counter() - began


def publish(rabbit: Rabbit, count: int) -> float:
    """Publish messages with py-amqp, confirms coming in as they come.

    :returns: seconds until all are confirmed.
    """
    with rabbit.channel() as channel:
        channel.confirm_select()
        confirmed = [0]

        def on_ack(tag: int, multiple: bool) -> None:
            confirmed[0] = max(confirmed[0], tag) if multiple else confirmed[0] + 1

        channel.events["basic_ack"].add(on_ack)
        message = amqp.Message(TICKET, delivery_mode=2)
        began = time.perf_counter()
        for sent in range(1, count + 1):
            channel.basic_publish(message, exchange=rabbit.name, routing_key=rabbit.topic, mandatory=True)
            while sent - confirmed[0] > WINDOW:
                channel.connection.drain_events(timeout=10)
        while confirmed[0] < count and rabbit_has_more(channel):
            pass
        return time.perf_counter() - began


def rabbit_has_more(channel: Any) -> bool:
    """Wait for the next confirm."""
    try:
        channel.connection.drain_events(timeout=1.0)
    except TimeoutError:
        return False
    return True


def run_orders(url: str, order_ids: Sequence[str], *, threads: int) -> float:
    """What a task costs a database at least: a claim and a finish of each order, two transactions, several threads.

    :returns: seconds.
    """
    mark = "?" if url.startswith("sqlite") else "%s"
    left = list(order_ids)

    def work() -> None:
        with connection(url) as driver:
            cursor = driver.cursor()
            while True:
                try:
                    order_id = left.pop()
                except IndexError:
                    return
                cursor.execute(f"UPDATE order_task_leases SET holder = 'x' WHERE order_id = {mark}", [order_id])
                cursor.execute(f"SELECT * FROM order_task_leases WHERE order_id = {mark}", [order_id])
                cursor.fetchall()
                driver.commit()
                cursor.execute(f"DELETE FROM order_task_leases WHERE order_id = {mark}", [order_id])
                cursor.execute(f"UPDATE orders SET status = 'ACTIVE' WHERE id = {mark}", [order_id])
                cursor.execute(
                    f"INSERT INTO order_events (order_id, at, last_at, event) SELECT id, created_at, created_at, 'done'"
                    f" FROM orders WHERE id = {mark}",
                    [order_id],
                )
                driver.commit()

    return timed_threads(work, threads)


def timed_threads(work: Callable[[], None], threads: int) -> float:
    """Run ``work`` in several threads.

    :returns: seconds until the last has ended.
    """
    running = [threading.Thread(target=work) for _ in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return time.perf_counter() - began


def insert_orders(url: str, count: int, *, batch: int) -> float:
    """What a submission costs a database at least: three rows for each order.

    :returns: seconds.
    """
    mark = "?" if url.startswith("sqlite") else "%s"
    moment = "'2026-01-01 00:00:00'"
    statements = [
        f"INSERT INTO orders (id, type, meta, status, created_at, updated_at)"
        f" VALUES ({mark}, 'probe', '{{}}', 'PENDING', {moment}, {moment})",
        f"INSERT INTO order_task_leases (id, order_id, task, args, kwargs, created_at, expires_at)"
        f" VALUES ({mark}, {mark}, 'process_type_order', '[]', '{{}}', {moment}, {moment})",
        f"INSERT INTO order_events (order_id, event, at, last_at) VALUES ({mark}, 'submitted', {moment}, {moment})",
    ]
    with connection(url) as driver:
        cursor = driver.cursor()
        began = time.perf_counter()
        for at in range(0, count, batch):
            ids = [f"raw-{time.time_ns()}-{n}" for n in range(at, min(count, at + batch))]
            cursor.executemany(statements[0], [(each,) for each in ids])
            cursor.executemany(statements[1], [(each, each) for each in ids])
            cursor.executemany(statements[2], [(each,) for each in ids])
            driver.commit()
        return time.perf_counter() - began
