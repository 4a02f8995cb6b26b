"""Who is addressed on the message bus: the names that workers, schedulers and clients agree on."""

import oslo_messaging
from oslo_config import cfg


def worker_target(conf: cfg.ConfigOpts) -> oslo_messaging.Target:
    """What a worker listens on, and what its endpoints serve: upstream Barbican's names by default."""
    return oslo_messaging.Target(
        topic=conf.queue.topic,
        namespace=conf.queue.namespace,
        version=conf.queue.version,
        server=conf.queue.server_name,
    )


def ticket_target(conf: cfg.ConfigOpts) -> oslo_messaging.Target:
    """Where tickets are sent: to the topic, so that any one worker takes it."""
    return oslo_messaging.Target(topic=conf.queue.topic, namespace=conf.queue.namespace, version=conf.queue.version)


def scheduler_target(conf: cfg.ConfigOpts) -> oslo_messaging.Target:
    """Where wake-ups are sent: to every scheduler."""
    return oslo_messaging.Target(
        topic=conf.queue.scheduler_topic, namespace=conf.queue.namespace, version=conf.queue.version, fanout=True
    )
