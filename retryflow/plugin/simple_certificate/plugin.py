"""The built-in certificate plugin: a demonstration authority that shows how orders wait (specification, NF-3)."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from oslo_config import cfg

from retryflow.errors import LeaseLost
from retryflow.plugin.interface import (
    CertificatePluginBase,
    CertificateRequest,
    CertificateResult,
    PluginContext,
    ResultStatus,
)
from retryflow.plugin.simple_certificate.authority import CertificateAuthority
from retryflow.plugin.simple_certificate.csr import UnusableRequest, checked_csr, csr_pem, read_csr

_REQUEST_TYPES = ("custom", "simple-cmc")
_ISSUED_ALREADY = "The certificate has been issued already."


class SimpleCertificatePlugin(CertificatePluginBase):
    """Waits ``[simple_certificate] delay_before_update_seconds``, then signs with a local key.

    Kept state: ``csr``, the request that was accepted; ``certificate`` and ``chain``, once it is signed.

    :param sleep: sleeps for some seconds.
    """

    def __init__(self, conf: cfg.ConfigOpts, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(conf)
        self._sleep = sleep

    def supports(self, order_meta: Mapping[str, Any]) -> bool:
        """Whatever brings its own request; Barbican's other request types need an authority that makes keys."""
        return order_meta.get("request_type", _REQUEST_TYPES[0]) in _REQUEST_TYPES

    def issue_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        """Accept the request after a look at it, and have it checked upon later."""
        if self._is_out():
            return _unavailable()
        try:
            csr = read_csr(request.order_meta)
        except UnusableRequest as error:
            return _refused(error)
        request.plugin_state["csr"] = csr_pem(csr)
        return self._waiting()

    def check_certificate_status(self, request: CertificateRequest) -> CertificateResult:
        """Sign, or give what has been signed already."""
        if self._is_out():
            return _unavailable()
        state = request.plugin_state
        if not state.get("certificate"):
            try:
                csr = _accepted_csr(request)
            except UnusableRequest as error:
                return _refused(error)
            self._take_time(request.context)
            authority = self._authority()
            state["certificate"] = authority.sign(
                csr, order_id=request.order_id, days=self.conf.simple_certificate.certificate_days
            )
            state["chain"] = authority.root_pem()
            request.checkpoint()
        return _generated(certificate=state["certificate"], chain=state["chain"])

    def modify_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        """Take the order's new request in place of the old one, as long as nothing is signed."""
        if self._is_out():
            return _unavailable()
        if self._is_issued(request):
            return CertificateResult(status=ResultStatus.INVALID_OPERATION, status_message=_ISSUED_ALREADY)
        try:
            csr = read_csr(request.order_meta)
        except UnusableRequest as error:
            return _refused(error)
        request.plugin_state["csr"] = csr_pem(csr)
        return CertificateResult(status=ResultStatus.WAITING_FOR_CA, status_message="The new request was accepted.")

    def cancel_certificate_request(self, request: CertificateRequest) -> CertificateResult:
        """Nothing to do before signing, too late after it."""
        if self._is_out():
            return _unavailable()
        if self._is_issued(request):
            return CertificateResult(status=ResultStatus.INVALID_OPERATION, status_message=_ISSUED_ALREADY)
        return CertificateResult(status=ResultStatus.REQUEST_CANCELLED)

    def _authority(self) -> CertificateAuthority:
        return CertificateAuthority(Path(self.conf.simple_certificate.ca_directory).expanduser())

    def _is_out(self) -> bool:
        outage_file = self.conf.simple_certificate.outage_file
        return bool(outage_file) and Path(outage_file).expanduser().exists()

    def _is_issued(self, request: CertificateRequest) -> bool:
        if request.plugin_state.get("certificate"):
            return True
        try:
            csr = _accepted_csr(request)
        except UnusableRequest:
            return False
        # A worker may have died between signing and keeping the state.
        return self._authority().issued(csr, order_id=request.order_id) is not None

    def _waiting(self) -> CertificateResult:
        return CertificateResult(
            status=ResultStatus.WAITING_FOR_CA,
            retry_after_seconds=self.conf.simple_certificate.delay_before_update_seconds,
            retry_method="check_certificate_status",
        )

    def _take_time(self, context: PluginContext) -> None:
        """Be as slow as configured. A stop does not shorten it: most calls of an authority cannot be hurried either."""
        left_seconds = self.conf.simple_certificate.signing_seconds
        while left_seconds > 0:
            if context.lease_lost:
                raise LeaseLost("the task belongs to another worker by now: nothing was signed here")
            self._sleep(min(left_seconds, 0.2))
            left_seconds -= 0.2


def _accepted_csr(request: CertificateRequest) -> x509.CertificateSigningRequest:
    accepted = request.plugin_state.get("csr")
    # Not the order's meta first: that may hold an update which was refused.
    return checked_csr(accepted) if accepted else read_csr(request.order_meta)


def _generated(*, certificate: str, chain: str) -> CertificateResult:
    signed = x509.load_pem_x509_certificate(certificate.encode())
    return CertificateResult(
        status=ResultStatus.CERTIFICATE_GENERATED,
        certificate=certificate,
        chain=chain,
        # The authority is the root itself, so there is nothing between.
        intermediates="",
        details={
            "serial": f"{signed.serial_number:x}",
            "not_before": signed.not_valid_before_utc.isoformat(),
            "not_after": signed.not_valid_after_utc.isoformat(),
        },
    )


def _unavailable() -> CertificateResult:
    return CertificateResult(
        status=ResultStatus.CA_UNAVAILABLE_FOR_REQUEST,
        status_message="The certificate authority is out of service (rehearsal of an outage).",
    )


def _refused(error: UnusableRequest) -> CertificateResult:
    return CertificateResult(status=ResultStatus.CLIENT_DATA_ISSUE_SEEN, status_message=str(error))
