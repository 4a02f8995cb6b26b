"""How a stop treats each piece of work of retryflow's own daemons, and why (task tracking specification, audit)."""

from dataclasses import dataclass
from enum import Enum


class Treatment(Enum):
    """What a stop does with a piece of work."""

    SYNC = "waited for until its method returns"
    ASYNC = "waited for until the future is done that it returns or was submitted with"
    PERIODIC = "waited for while it runs, not begun again"
    UNTRACKED = "not waited for by the tracker"


@dataclass(frozen=True, slots=True)
class Classified:
    """One row of the table."""

    name: str
    treatment: Treatment
    reason: str


RPC_METHODS = (
    Classified(
        "process_type_order",
        Treatment.ASYNC,
        "The task runs in the method and may have asked a CA for a certificate; its outcome is committed together with "
        "those of others, and the future that the method returns is done then.",
    ),
    Classified(
        "check_certificate_status",
        Treatment.ASYNC,
        "The same; interrupted, it would ask the CA once more for nothing.",
    ),
    Classified(
        "update_order",
        Treatment.ASYNC,
        "The same; it may have told the CA of the change.",
    ),
    Classified(
        "run_task",
        Treatment.ASYNC,
        "Stands for a task of any name of any order type: what it does is unknown here, so it is waited for.",
    ),
)
"""Methods of ``OrderManager`` that clients can call."""

ASYNC_JOBS: tuple[Classified, ...] = ()
"""None: every task of an order runs in the thread that began it."""

PERIODIC_TASKS: tuple[Classified, ...] = ()
"""``@periodic_task`` methods of ``OrderManager``: none, the scheduler does what is to be done periodically."""

BACKGROUND = (
    Classified(
        "scheduler",
        Treatment.UNTRACKED,
        "The tick of the scheduler looks at the stop after each batch, and its service waits for that batch.",
    ),
    Classified(
        "lease-keeper",
        Treatment.UNTRACKED,
        "Renews the leases of what is waited for, so it must outlast it; the clean-up stops it last.",
    ),
)
"""Threads of the daemons that no tracker knows, by name."""
