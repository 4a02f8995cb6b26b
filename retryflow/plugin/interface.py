"""What a certificate plugin is given, what it answers, and the base class it derives from."""

import abc
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oslo_config import cfg

from retryflow.plugin.state import PluginState


class ResultStatus(enum.StrEnum):
    """How a request stands at its certificate authority; names and texts are those that Barbican's plugins use.

    What becomes of the order is decided in one table, ``retryflow.tasks.certificate_outcomes``.
    """

    WAITING_FOR_CA = "waiting for CA"
    """Accepted, not issued yet: the order is looked at again later. No fault, not counted as an attempt."""

    CERTIFICATE_GENERATED = "certificate generated"
    """Issued: the order becomes ACTIVE with the answer's certificate."""

    CLIENT_DATA_ISSUE_SEEN = "client data issue seen"
    """The authority can never serve what the client sent; ``status_message`` tells the client why."""

    CA_UNAVAILABLE_FOR_REQUEST = "CA unavailable for request"
    """The authority is out of reach for now: the same task is tried again with backoff."""

    REQUEST_CANCELLED = "request cancelled"
    """The authority, or somebody there, has cancelled the request: the order ends."""

    INVALID_OPERATION = "invalid operation"
    """The authority does not allow this operation on the request as it stands."""


class PluginContext(Protocol):
    """What a plugin can ask and tell while it works; the worker's ``TaskContext`` is one."""

    @property
    def stopping(self) -> bool:
        """Whether the process is draining: a long call may end early with "waiting for CA"."""
        ...

    @property
    def lease_lost(self) -> bool:
        """Whether the task now belongs to another worker: stop, nothing of this call will be kept."""
        ...

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds``; ``True`` at once when the process is stopping or the lease is lost."""
        ...

    def checkpoint(self, state: Mapping[str, str]) -> None:
        """Keep plugin state now; plugins call :meth:`CertificateRequest.checkpoint` instead."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CertificateRequest:
    """What each method of a plugin is given.

    :param order_id: the order; an authority that wants a reference of the client can be given this.
    :param order_meta: what the client asked for (a JSON object), as it is now, with all updates.
    :param plugin_state: what this plugin has kept for this order; changes are kept with the answer.
    :param idempotency_key: the same for each repetition of one piece of work (after a crash, a retry, a hand-back),
        another for the next one. Pass it on to the authority, if that knows such keys, so that it issues once.
    :param context: the running task.
    """

    order_id: str
    order_meta: Mapping[str, Any]
    plugin_state: PluginState
    idempotency_key: str
    context: PluginContext

    def checkpoint(self) -> None:
        """Write the changes of :attr:`plugin_state` to the database now, before the method has returned.

        To be called right after a step at the authority that must not be done twice (it has given a request number,
        it has signed): a crash from here on finds the state.

        :raises retryflow.errors.LeaseLost: the task belongs to another worker by now; let the error through.
        """
        self.context.checkpoint(self.plugin_state.changes())


@dataclass(frozen=True, kw_only=True)
class CertificateResult:
    """What a plugin's method answers.

    :param status: how the request stands.
    :param status_message: a sentence for the user; ``None`` gives the status's own sentence.
    :param retry_after_seconds: when to call again, in seconds (Barbican's plugins give milliseconds here); ``None``
        leaves it to the configuration. Only for "waiting for CA" and "CA unavailable".
    :param retry_method: the task to run then (``process_type_order``, ``check_certificate_status`` or
        ``update_order``); ``None`` takes what suits the status.
    :param certificate: the certificate, PEM. Required for "certificate generated".
    :param chain: the certificates from the issuer up to and including the root, PEM, in this order; may be empty.
    :param intermediates: the part of the chain that a server must send along, PEM: without the root; may be empty.
    :param details: more for the order's result (a JSON object), beside these three.
    """

    status: ResultStatus
    status_message: str | None = None
    retry_after_seconds: float | None = None
    retry_method: str | None = None
    certificate: str | None = None
    chain: str | None = None
    intermediates: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class CertificatePluginBase(abc.ABC):
    """A certificate authority as retryflow sees it; a plugin's author derives from this class.

    One object per process serves all worker threads at once: what a method must remember about an order goes into
    ``plugin_state``, not into attributes. A method may be called again for the same piece of work, see
    ``idempotency_key``. It may raise: ``PluginUnavailable``, ``ConnectionError`` and ``TimeoutError`` count as "CA
    unavailable"; ``LeaseLost`` must be let through; anything else ends the order in ERROR with a neutral sentence.

    :param conf: the configuration; a plugin registers its own options on it here.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf

    def supports(self, order_meta: Mapping[str, Any]) -> bool:
        """Whether this plugin can serve such an order. The first enabled one that says so gets it, and keeps it.

        One that the order names is asked as well, and may decline.
        By default yes. A faulty request of a kind that this plugin serves is for
        :meth:`issue_certificate_request` to refuse, since only that can tell the client why.
        """
        return True

    @abc.abstractmethod
    def issue_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        """Ask the authority for the certificate. Called by the task ``process_type_order``."""

    @abc.abstractmethod
    def check_certificate_status(self, request: CertificateRequest) -> CertificateResult:
        """Ask how the request stands. Called by the task of the same name."""

    @abc.abstractmethod
    def modify_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        """Replace the request by what ``order_meta`` says now. Called by the task ``update_order``.

        "Waiting for CA" means accepted. "Invalid operation" and "client data issue" mean refused: the request that
        the authority has goes on, and the user is told.
        """

    @abc.abstractmethod
    def cancel_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        """Tell the authority that nobody waits for the certificate any more. The order has ended already.

        Called outside a task: ``plugin_state`` is what was kept, its changes are not kept any more.
        """
