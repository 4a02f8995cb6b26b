"""A local certificate authority: key and root certificate in a directory, one certificate per order and request."""

import datetime
import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retryflow.errors import PluginUnavailable
from retryflow.plugin.simple_certificate.csr import subject_alternative_name
from retryflow.plugin.simple_certificate.files import read_or_create

KEY_FILE = "ca.key"
CERTIFICATE_FILE = "ca.pem"
_ROOT_DAYS = 3650
# Clocks of those who verify may be a little behind ours.
_BACKDATED = datetime.timedelta(minutes=1)
_PEM = serialization.Encoding.PEM


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class CertificateAuthority:
    """Signs requests with the key in ``directory``; any number of processes may share that.

    Key and root certificate are made on first use. Each certificate is written to ``issued/`` before it is given out,
    by order and request, so that the same request of an order never gets a second one, whatever crashes in between.

    :param directory: made with mode 0700 when needed; the key file gets 0600.
    :param now: the current time.
    """

    def __init__(self, directory: Path, *, now: Callable[[], datetime.datetime] = _utc_now) -> None:
        self._directory = directory
        self._now = now

    def root_pem(self) -> str:
        """The authority's own certificate.

        :raises retryflow.errors.PluginUnavailable: its files cannot be used.
        """
        return self._root()[1].public_bytes(_PEM).decode()

    def issued(self, csr: x509.CertificateSigningRequest, *, order_id: str) -> str | None:
        """The certificate (PEM) that this request of the order has got already, else ``None``.

        :raises retryflow.errors.PluginUnavailable: the authority's files cannot be used.
        """
        try:
            return self._issued_path(csr, order_id).read_text()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error

    def sign(self, csr: x509.CertificateSigningRequest, *, order_id: str, days: int) -> str:
        """The certificate (PEM) for this request of the order; the same one each time.

        :param csr: one that :func:`~retryflow.plugin.simple_certificate.csr.read_csr` gave.
        :param days: validity of a new certificate; it ends with the authority's own at the latest.
        :raises retryflow.errors.PluginUnavailable: the authority's files cannot be used, or its certificate has ended.
        """
        key, root = self._root()

        def certificate() -> bytes:
            return self._signed(csr, key=key, root=root, days=days).public_bytes(_PEM)

        try:
            return read_or_create(self._issued_path(csr, order_id), certificate, mode=0o644).decode()
        except OSError as error:
            raise self._unusable(error) from error

    def _root(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        try:
            pem = read_or_create(self._directory / KEY_FILE, _new_key, mode=0o600)
            key = serialization.load_pem_private_key(pem, password=None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError("not an EC key")
            made = read_or_create(self._directory / CERTIFICATE_FILE, lambda: self._new_root(key), mode=0o644)
            root = x509.load_pem_x509_certificate(made)
            if root.public_key() != key.public_key():
                raise ValueError("certificate and key do not belong together")
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise PluginUnavailable(
                f"the authority in {self._directory} is damaged ({error}): put {KEY_FILE} and {CERTIFICATE_FILE} back "
                "from a copy, or remove both to have a new authority made"
            ) from error
        return key, root

    def _new_root(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        now = self._now()
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "retryflow"),
                x509.NameAttribute(NameOID.COMMON_NAME, "Demonstration certificate authority"),
            ]
        )
        public = key.public_key()
        root = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + datetime.timedelta(days=_ROOT_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        return root.public_bytes(_PEM)

    def _signed(
        self, csr: x509.CertificateSigningRequest, *, key: ec.EllipticCurvePrivateKey, root: x509.Certificate, days: int
    ) -> x509.Certificate:
        now = self._now()
        if now >= root.not_valid_after_utc:
            raise PluginUnavailable(
                f"the certificate of the authority in {self._directory} has ended: "
                f"remove {KEY_FILE} and {CERTIFICATE_FILE} to have a new authority made"
            )
        public = csr.public_key()
        usages = ["digital_signature"]
        if isinstance(public, rsa.RSAPublicKey):
            usages.append("key_encipherment")
        root_identifier = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(root.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - _BACKDATED, root.not_valid_before_utc))
            .not_valid_after(min(now + datetime.timedelta(days=days), root.not_valid_after_utc))
            # Of what the client asks for only the names are granted; above all nobody becomes an authority by asking.
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(*usages), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root_identifier), critical=False
            )
        )
        names = subject_alternative_name(csr)
        if names is not None:
            # RFC 5280, 4.2.1.6: critical where there is no subject.
            builder = builder.add_extension(names, critical=not list(csr.subject))
        return builder.sign(key, hashes.SHA256())

    def _issued_path(self, csr: x509.CertificateSigningRequest, order_id: str) -> Path:
        # Both are given by the client: hashed, they cannot lead out of the directory.
        request = csr.public_bytes(serialization.Encoding.DER)
        name = hashlib.sha256(order_id.encode("utf-8", "surrogatepass") + b"\0" + request).hexdigest()
        return self._directory / "issued" / f"{name}.pem"

    def _unusable(self, error: OSError) -> PluginUnavailable:
        return PluginUnavailable(
            f"the authority cannot use {error.filename or self._directory} ({error.strerror}): "
            "look at the permissions and the space of [simple_certificate] ca_directory"
        )


def _new_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key_usage(*granted: str) -> x509.KeyUsage:
    usages = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{usage: usage in granted for usage in usages})
