"""Checks before a daemon starts: each value by itself, then the values against each other."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain

from oslo_config import cfg

from retryflow.conf import queue
from retryflow.conf.reading import bad_value
from retryflow.conf.registration import CONF
from retryflow.conf.unknown import file_with
from retryflow.errors import ConfigurationError

SHUTDOWN_MARGIN_SECONDS = 10


def validate(conf: cfg.ConfigOpts = CONF) -> None:
    """Refuse values that are out of range or that contradict each other.

    :raises retryflow.errors.ConfigurationError: one line that names the options, says why and what to change.
    """
    for complaint in chain(unreadable(conf), contradictions(conf)):
        raise ConfigurationError(complaint)


def contradictions(conf: cfg.ConfigOpts = CONF) -> Iterator[str]:
    """Each contradiction between options, as a line that names them and the remedy."""
    yield from _shutdown(conf)
    yield from _scheduler(conf)
    yield from _worker(conf)
    yield from _retry(conf)


def _shutdown(conf: cfg.ConfigOpts) -> Iterator[str]:
    manager, graceful = conf.manager_shutdown_timeout, conf.graceful_shutdown_timeout
    if graceful < 0:
        yield (
            f"[DEFAULT] graceful_shutdown_timeout ({graceful}) is negative; set it to at least "
            f"{manager + SHUTDOWN_MARGIN_SECONDS:g} seconds, or to 0 for no limit"
        )
    elif graceful > 0 and (manager == 0 or graceful < manager + SHUTDOWN_MARGIN_SECONDS):
        shown = "0: no limit" if manager == 0 else f"{manager:g}"
        remedy = "0 as well" if manager == 0 else f"at least {manager + SHUTDOWN_MARGIN_SECONDS:g}, or 0 for no limit"
        yield (
            f"[DEFAULT] graceful_shutdown_timeout ({graceful}) must exceed [DEFAULT] manager_shutdown_timeout "
            f"({shown}) by at least {SHUTDOWN_MARGIN_SECONDS} seconds, else the process ends before it has given "
            f"interrupted tasks back; set graceful_shutdown_timeout to {remedy}"
        )


def _scheduler(conf: cfg.ConfigOpts) -> Iterator[str]:
    group = conf.scheduler
    if group.retry_lock_timeout_seconds <= 2 * group.batch_timeout_seconds:
        yield (
            f"[scheduler] retry_lock_timeout_seconds ({group.retry_lock_timeout_seconds:g}) must be more than twice "
            f"[scheduler] batch_timeout_seconds ({group.batch_timeout_seconds:g}), else a scheduler at work looks dead "
            "and loses its lock; raise the former or lower the latter"
        )
    if conf.queue.publish_timeout_seconds >= group.batch_timeout_seconds:
        yield (
            f"[queue] publish_timeout_seconds ({conf.queue.publish_timeout_seconds:g}) must be less than [scheduler] "
            f"batch_timeout_seconds ({group.batch_timeout_seconds:g}), since sending is part of a batch; lower the "
            "former or raise the latter"
        )
    if group.ticket_resend_maximum_seconds < group.ticket_resend_seconds:
        yield (
            f"[scheduler] ticket_resend_maximum_seconds ({group.ticket_resend_maximum_seconds:g}) is less than "
            f"[scheduler] ticket_resend_seconds ({group.ticket_resend_seconds:g}), where the doubling begins; raise "
            "the former or lower the latter"
        )


def _worker(conf: cfg.ConfigOpts) -> Iterator[str]:
    if conf.lease.renew_seconds * 3 > conf.lease.lease_seconds:
        yield (
            f"[lease] renew_seconds ({conf.lease.renew_seconds:g}) must be at most a third of [lease] lease_seconds "
            f"({conf.lease.lease_seconds:g}), else one failed renewal costs a lease; lower the former or raise the "
            "latter"
        )
    if conf.executor_thread_pool_size < 1:
        yield (
            f"[DEFAULT] executor_thread_pool_size ({conf.executor_thread_pool_size}) leaves no thread to run a task "
            "in; set it to 1 or more"
        )
    elif queue.read_ahead(conf) > conf.executor_thread_pool_size:
        yield (
            f"[queue] read_ahead ({conf.queue.read_ahead}) is more than [DEFAULT] executor_thread_pool_size "
            f"({conf.executor_thread_pool_size}), so tickets would wait here while other workers are idle; lower the "
            "former or raise the latter"
        )
    if not conf.certificate.enabled_certificate_plugins:
        yield (
            "[certificate] enabled_certificate_plugins is empty, so no certificate order could ever be served; name "
            "a plugin, for example simple_certificate"
        )


def _retry(conf: cfg.ConfigOpts) -> Iterator[str]:
    group = conf.retry
    if group.maximum_interval_seconds < group.initial_interval_seconds:
        yield (
            f"[retry] maximum_interval_seconds ({group.maximum_interval_seconds:g}) is less than [retry] "
            f"initial_interval_seconds ({group.initial_interval_seconds:g}), where the backoff begins; raise the "
            "former or lower the latter"
        )


def unreadable(conf: cfg.ConfigOpts = CONF) -> Iterator[str]:
    """Each value that is not what its option takes, as a line that names it and the remedy.

    oslo.config looks at a value of a file only when it is asked for, which may be hours after the start.
    """
    for group, values, name in _every_option(conf):
        try:
            value = values[name]
        except cfg.Error as error:
            told = bad_value(error, option=f"[{group}] {name}", file=file_with(conf, group, name))
            yield f"{told}; mend the configuration and start again"
        else:
            # It is neither below a minimum nor above a maximum.
            if isinstance(value, float) and math.isnan(value):
                yield f"[{group}] {name} is not a number; mend the configuration and start again"


def _every_option(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Mapping[str, object], str]]:
    for name in conf:
        try:
            group = conf[name]
        except cfg.Error:
            group = None
        if isinstance(group, cfg.ConfigOpts.GroupAttr):
            yield from ((name, group, member) for member in group)
        else:
            yield "DEFAULT", conf, name
