"""The message broker: can it be reached, and is the workers' queue there, kept on disk and listened to?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from retryflow.cli.checks.finding import WARNING, Finding
from retryflow.cli.sending import names_a_broker

if TYPE_CHECKING:
    from retryflow.cli.store import Store

CHECK = "broker"


def check(conf: cfg.ConfigOpts, *, needed: bool = True) -> Iterator[Finding]:
    """Look at RabbitMQ; other transports, and the standalone daemon's own, are not looked at.

    :param needed: whether a broker is needed, so that one that nobody has named is a finding.
    """
    if not names_a_broker(conf):
        from retryflow.queue.transport import is_in_process

        database = conf.database.connection or "sqlite"
        if needed and not (is_in_process(conf) or database.startswith("sqlite")):
            yield Finding(
                check=CHECK,
                severity=WARNING,
                what="[DEFAULT] transport_url is not set: barbican-worker and barbican-task-scheduler take the broker "
                "on their own host, rabbit://localhost:5672/",
                remedy="set it to the broker of all of them, rabbit://user:password@host:5672/virtual_host; only "
                "retryflow-standalone needs none",
            )
        return
    from retryflow.queue.connection import BROKER_TROUBLE, BrokerConnection
    from retryflow.queue.transport import broker_of, get_transport, is_rabbit

    transport = get_transport(conf)
    if not is_rabbit(transport):
        return
    try:
        connection = BrokerConnection(transport, connect_timeout_seconds=conf.queue.publish_timeout_seconds)
    except BROKER_TROUBLE as error:
        refused = _is_refusal(error)
        yield Finding(
            check=CHECK,
            what=f"the broker {broker_of(transport)} {'refuses this user' if refused else 'cannot be reached'}: "
            f"{' '.join(str(error).split())[:200]}",
            remedy="set user, password and virtual host in [DEFAULT] transport_url to what the broker knows "
            "(`rabbitmqctl list_vhosts` and `list_permissions` show it), or give it these"
            if refused
            else "start it, or set [DEFAULT] transport_url to the one that is meant",
        )
        return
    try:
        yield from _queue(connection, conf)
    finally:
        connection.close_gracefully(1.0)


def is_standalone(store: Store, *, alive_within_seconds: float) -> bool:
    """Whether a process is at work that is worker and scheduler in one, which needs no broker."""
    from retryflow.model import processes

    kinds: dict[tuple[str, int], set[str]] = {}
    for row in store.read(processes.all_rows):
        if row.unseen_seconds <= alive_within_seconds:
            kinds.setdefault((row.host, row.pid), set()).add(row.kind)
    return any(len(found) > 1 for found in kinds.values())


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the broker itself has said no: to the password, or to the virtual host."""
    import amqp

    while error is not None:
        if isinstance(error, amqp.AccessRefused | amqp.NotAllowed):
            return True
        error = error.__cause__ or error.__context__
    return False


def _queue(connection: Any, conf: cfg.ConfigOpts) -> Iterator[Finding]:
    import amqp

    topic = conf.queue.topic
    try:
        found = connection.connection.channel().queue_declare(topic, passive=True)
    except amqp.NotFound:
        yield Finding(
            check="queue",
            what=f"there is no queue {topic}: no worker has ever started on this broker",
            remedy="start barbican-worker; all of them must have the same [queue] topic and [DEFAULT] control_exchange",
        )
        return
    rabbit = conf.oslo_messaging_rabbit
    if not (rabbit.rabbit_quorum_queue or rabbit.amqp_durable_queues):
        # The broker does not tell; but it lets nobody declare a queue otherwise than it is, which is looked at below.
        yield Finding(
            check="queue",
            severity=WARNING,
            what=f"the queue {topic} is configured not to be durable: a restart of the broker empties it, and RabbitMQ "
            "from 4.3 on refuses it",
            remedy="set [oslo_messaging_rabbit] rabbit_quorum_queue or amqp_durable_queues to true, stop the workers, "
            "delete the queue, and start them again: tickets are sent again by the schedulers",
        )
    if not found.consumer_count:
        yield Finding(
            check="queue",
            what=f"nobody listens on the queue {topic}, in which {found.message_count} tickets wait",
            remedy="start barbican-worker",
        )
    try:
        # The broker tells what a queue is like only by refusing to declare it otherwise.
        connection.declare_topic_consumer(conf.control_exchange, topic)
    except amqp.PreconditionFailed as error:
        yield Finding(
            check="queue",
            severity=WARNING,
            what=f"the queue {topic} is not of the kind that is configured: {' '.join(str(error).split())[:200]}",
            remedy="stop the workers, delete the queue, and start them again: tickets are sent again by the schedulers",
        )
