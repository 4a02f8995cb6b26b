"""Reads the certificate signing request out of an order's meta and checks what the client sent."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from retryflow.errors import RetryflowError

META_KEYS = ("csr", "request_data")
"""Where the request may stand: ours first, then the name in Barbican's certificate orders."""

MAXIMUM_CHARACTERS = 64 * 1024
_RSA_BITS = range(2048, 8192 + 1)
_CURVES = ("secp256r1", "secp384r1", "secp521r1")
_BROKEN_DIGESTS = (hashes.MD5, hashes.SHA1)
_HOW_TO = "send it as PEM text, or as base64 of PEM or DER, under the key csr of the order's meta"


class UnusableRequest(RetryflowError):
    """The client's certificate signing request cannot be used; the message is a sentence for the client."""


def read_csr(order_meta: Mapping[str, Any]) -> x509.CertificateSigningRequest:
    """The request of an order, checked: its form, its own signature, and its key (RSA, EC or Ed25519).

    :raises UnusableRequest: there is none, or it cannot be used.
    """
    for key in META_KEYS:
        if order_meta.get(key) is not None:
            return checked_csr(order_meta[key])
    raise UnusableRequest(f"The order has no certificate signing request: {_HOW_TO}.")


def checked_csr(text: object) -> x509.CertificateSigningRequest:
    """:raises UnusableRequest: ``text`` is no certificate signing request that can be used."""
    if not isinstance(text, str):
        raise UnusableRequest(f"The certificate signing request is not text: {_HOW_TO}.")
    if not text.strip():
        raise UnusableRequest(f"The certificate signing request is empty: {_HOW_TO}.")
    if len(text) > MAXIMUM_CHARACTERS:
        raise UnusableRequest(f"The certificate signing request is longer than {MAXIMUM_CHARACTERS // 1024} KiB.")
    csr = _parsed(text.strip())
    _check_key(csr)
    _check_signature(csr)
    _check_names(csr)
    return csr


def subject_alternative_name(csr: x509.CertificateSigningRequest) -> x509.SubjectAlternativeName | None:
    """The further names that the request asks for, or ``None``."""
    try:
        return csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _parsed(text: str) -> x509.CertificateSigningRequest:
    raw = text.encode("utf-8", "replace")
    try:
        if not raw.startswith(b"-----"):
            raw = base64.b64decode(b"".join(raw.split()), validate=True)
        if not raw.lstrip().startswith(b"-----"):
            return x509.load_der_x509_csr(raw)
        if b"-----BEGIN CERTIFICATE REQUEST" not in raw and b"-----BEGIN NEW CERTIFICATE REQUEST" not in raw:
            # Most of all private keys are sent by mistake, and their owner must learn of it.
            raise UnusableRequest(
                "What was sent is PEM, but no certificate signing request (BEGIN CERTIFICATE REQUEST). "
                "If it was a private key, regard that key as disclosed and make a new one."
            )
        return x509.load_pem_x509_csr(raw)
    except (ValueError, binascii.Error, x509.InvalidVersion):
        raise UnusableRequest(f"The certificate signing request cannot be read: {_HOW_TO}.") from None
    except UnsupportedAlgorithm:
        raise UnusableRequest("The certificate signing request uses an algorithm that is not supported.") from None


def _check_key(csr: x509.CertificateSigningRequest) -> None:
    try:
        key = csr.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableRequest("The public key in the certificate signing request is not supported.") from None
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size not in _RSA_BITS:
            raise UnusableRequest(
                f"The RSA key of the certificate signing request has {key.key_size} bits; "
                f"it must have {_RSA_BITS.start} to {_RSA_BITS.stop - 1}."
            )
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name not in _CURVES:
            raise UnusableRequest(f"The curve {key.curve.name} is not supported; use P-256, P-384 or P-521.")
    elif not isinstance(key, ed25519.Ed25519PublicKey):
        raise UnusableRequest("The kind of the public key is not supported; use RSA, EC (P-256) or Ed25519.")


def _check_signature(csr: x509.CertificateSigningRequest) -> None:
    try:
        # Only who has the private key can have signed it, so nobody gets a certificate for another's key.
        good = csr.is_signature_valid
        broken = isinstance(csr.signature_hash_algorithm, _BROKEN_DIGESTS)
    except (ValueError, UnsupportedAlgorithm, InvalidSignature, TypeError):
        good, broken = False, False
    if broken:
        raise UnusableRequest("The certificate signing request is signed with MD5 or SHA-1; use SHA-256.")
    if not good:
        raise UnusableRequest(
            "The signature of the certificate signing request does not fit its public key: "
            "it was damaged on the way, or made with another key."
        )


def _check_names(csr: x509.CertificateSigningRequest) -> None:
    try:
        named = subject_alternative_name(csr)
        # Reading what will be copied, so that nothing is left to fail when the certificate is built.
        _ = csr.subject.public_bytes(), named and named.public_bytes()
    except (ValueError, TypeError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise UnusableRequest("The names in the certificate signing request cannot be read.") from None
    if not list(csr.subject) and not named:
        raise UnusableRequest("The certificate signing request names nobody: it needs a subject or alternative names.")


def csr_pem(csr: x509.CertificateSigningRequest) -> str:
    """The request as PEM text, whatever form the client sent."""
    return csr.public_bytes(serialization.Encoding.PEM).decode()
