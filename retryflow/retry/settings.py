"""The options that decide how the promises are kept, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from retryflow.conf import validate
from retryflow.retry.policy import Limits, RetryPolicy


@dataclass(slots=True)
class Settings:
    """Named as the options are; see ``retryflow/conf`` for their meaning.

    One object is shared by all that work with it, so that a reload reaches them all; nobody else changes its values.
    """

    limits: Limits = field(default_factory=Limits)
    lease_seconds: float = 20.0
    renew_seconds: float = 5.0
    max_run_seconds: float = 0.0
    schedule_period_seconds: float = 15.0
    retry_lock_timeout_seconds: float = 60.0
    batch_size: int = 500
    batch_timeout_seconds: float = 10.0
    max_outstanding_tickets: int = 10_000
    ticket_resend_seconds: float = 30.0
    ticket_resend_maximum_seconds: float = 300.0
    max_sends: int = 10
    publish_timeout_seconds: float = 5.0

    @classmethod
    def from_conf(cls, conf: Any) -> Settings:
        """:param conf: a parsed configuration."""
        retry, scheduler, lease = conf.retry, conf.scheduler, conf.lease
        policy = RetryPolicy(
            initial_interval_seconds=retry.initial_interval_seconds,
            backoff_coefficient=retry.backoff_coefficient,
            maximum_interval_seconds=retry.maximum_interval_seconds,
            maximum_attempts=retry.maximum_attempts,
            jitter=retry.jitter,
        )
        limits = Limits(
            policy=policy,
            give_up_after_seconds=retry.give_up_after_seconds,
            poll_give_up_after_seconds=retry.poll_give_up_after_seconds,
            max_crashes=retry.max_crashes,
            default_poll_seconds=retry.default_poll_seconds,
        )
        return cls(
            limits=limits,
            lease_seconds=lease.lease_seconds,
            renew_seconds=lease.renew_seconds,
            max_run_seconds=lease.max_run_seconds,
            schedule_period_seconds=scheduler.schedule_period_seconds,
            retry_lock_timeout_seconds=scheduler.retry_lock_timeout_seconds,
            batch_size=scheduler.batch_size,
            batch_timeout_seconds=scheduler.batch_timeout_seconds,
            max_outstanding_tickets=scheduler.max_outstanding_tickets,
            ticket_resend_seconds=scheduler.ticket_resend_seconds,
            ticket_resend_maximum_seconds=scheduler.ticket_resend_maximum_seconds,
            max_sends=scheduler.max_sends,
            publish_timeout_seconds=conf.queue.publish_timeout_seconds,
        )

    def reload(self, conf: Any) -> None:
        """Take over what may change while a daemon runs; contradictions leave everything as it is.

        :param conf: a configuration whose files were read anew.
        :raises retryflow.errors.ConfigurationError: the values contradict each other; the old ones stay in force.
        """
        validate(conf)
        new = type(self).from_conf(conf)
        for each in fields(self):
            setattr(self, each.name, getattr(new, each.name))

    def resend_after_seconds(self, sent_count: int) -> float:
        """How long a ticket that was sent ``sent_count`` times is given before it is sent again."""
        doubled = self.ticket_resend_seconds * 2.0 ** min(max(sent_count - 1, 0), 32)
        return min(doubled, self.ticket_resend_maximum_seconds)
