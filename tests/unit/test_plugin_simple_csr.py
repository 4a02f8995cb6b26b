"""Which requests the demonstration authority takes, and what it tells a client whose request it does not take."""

import base64

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from hypothesis import given
from hypothesis import strategies as st

from retryflow.plugin.simple_certificate.csr import UnusableRequest, read_csr
from tests.fixtures.certificates import new_csr, pem

CSR = new_csr()
# Made once with the openssl program, since the library that reads it does not make such a thing any more.
SIGNED_WITH_SHA1 = """\
-----BEGIN CERTIFICATE REQUEST-----
MIICUTCCATkCAQAwDDEKMAgGA1UEAwwBeDCCASIwDQYJKoZIhvcNAQEBBQADggEP
ADCCAQoCggEBAOzdjR611mMWxrAklXpeiLHn7b1EHLv6ahNrk7IMDtAOnnVnVm+5
dTVFkPYtQI7EIO/6eiEyFuRYJDbJoqdE32deyOk53ry99wUpaxyCUSXnEYx5UtWB
Kmg3o0ZHnT75Le3igcsiu9TVULs8Hm0ugD10GlrRl54xQmhICSSr4nQ9pHPSeDyx
iSfQhihabYbBSbeVAfnCXORkWSLxss936yZgjKQJcZpxQUFI8eURE6RPCn6RnIcH
osWVqCT3QfBooBBDpSlbJxLabMVsOtYr63KHsILN/zbvff+MdOpN+S/7bBKsKQfq
CTEPRV2meGoRqCeNNrqqnQ/MCY5jCAhrHbsCAwEAAaAAMA0GCSqGSIb3DQEBBQUA
A4IBAQA5+6GhXSFdZnK1RjYcRxYD0ySPhTapg2Z3mja72wA4gl1GDCWL9lgeAw+U
zAdypHtscD+Zm9SZpY+TIz8EdaRRdzHrvLCeG7da6401SV1nbcduwb6fFPh6/P7t
IDWYyy4IFz8WdF0P/cpRh4WFupjSfHfvIrJOn4T2hicNEwvLzRDUqSs/zGX3CW3a
QbzAk45EiqMAjoQDVOynZ6nOQkCrEs6eBfe9tISmkzaaU2fDJ2YQZPYwZwFrfjcp
yzr9E0nt+zH9ul4m6XMNYv29070uq/hwEOA9BCgjTSorsJKvxJ3aK7+ZAUm1YCPt
4MqGsKyHkl1AvpfJ+ViBbwPey9G/
-----END CERTIFICATE REQUEST-----
"""
DER = CSR.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    "text",
    [
        pem(CSR),
        "\n\n" + pem(CSR),
        pem(CSR).replace("\n", "\r\n"),
        pem(CSR).replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"),
        base64.b64encode(pem(CSR).encode()).decode(),
        base64.encodebytes(pem(CSR).encode()).decode(),
        base64.b64encode(DER).decode(),
        base64.encodebytes(DER).decode(),
    ],
    # Without names the texts are the names; being new in each process, they would differ between those of pytest-xdist.
    ids=["pem", "spaced", "crlf", "new", "base64-pem", "base64-pem-lines", "base64-der", "base64-der-lines"],
)
@pytest.mark.parametrize("key", ["csr", "request_data"])
def test_a_request_is_read_as_pem_or_base64_under_our_name_and_barbicans(text: str, key: str) -> None:
    assert read_csr({key: text}) == CSR


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=lambda key: type(key).__name__,
)
def test_the_usual_keys_are_taken(key: CertificateIssuerPrivateKeyTypes) -> None:
    csr = new_csr(key=key)
    assert read_csr({"csr": pem(csr)}) == csr


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (rsa.generate_private_key(65537, 1024), "1024 bits"),
        (ec.generate_private_key(ec.SECP256K1()), "secp256k1"),
        (dsa.generate_private_key(2048), "kind of the public key"),
        (ed448.Ed448PrivateKey.generate(), "kind of the public key"),
    ],
    ids=["rsa1024", "secp256k1", "dsa", "ed448"],
)
def test_other_keys_are_refused_with_the_reason(key: CertificateIssuerPrivateKeyTypes, sentence: str) -> None:
    with pytest.raises(UnusableRequest, match=sentence):
        read_csr({"csr": pem(new_csr(key=key))})


def test_a_broken_digest_is_refused() -> None:
    with pytest.raises(UnusableRequest, match="SHA-1"):
        read_csr({"csr": SIGNED_WITH_SHA1})


def test_nobody_gets_a_certificate_for_another_s_key() -> None:
    # The signature stands at the end: its last byte but one is changed.
    forged = bytearray(DER)
    forged[-2] ^= 1
    with pytest.raises(UnusableRequest, match=r"signature .* does not fit"):
        read_csr({"csr": base64.b64encode(bytes(forged)).decode()})


def test_a_private_key_sent_by_mistake_is_recognised_and_not_repeated() -> None:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(UnusableRequest, match="regard that key as disclosed") as caught:
        read_csr({"csr": key.decode()})
    assert key.decode().splitlines()[1] not in str(caught.value)


def test_a_request_that_names_nobody_is_refused() -> None:
    with pytest.raises(UnusableRequest, match="names nobody"):
        read_csr({"csr": pem(new_csr(subject=False))})
    read_csr({"csr": pem(new_csr(subject=False, names=("a.example.org",)))})


@pytest.mark.parametrize("meta", [{}, {"csr": None}, {"other": "x"}])
def test_a_missing_request_is_told_with_what_to_send(meta: dict[str, object]) -> None:
    with pytest.raises(UnusableRequest, match="no certificate signing request: send it as PEM"):
        read_csr(meta)


@pytest.mark.parametrize(
    ("value", "says"), [("", "is empty: send it as PEM"), (" \n", "is empty"), (5, "is not text"), ([], "is not text")]
)
def test_an_empty_request_is_told_from_one_that_is_no_text(value: object, says: str) -> None:
    with pytest.raises(UnusableRequest, match=says):
        read_csr({"csr": value})


@pytest.mark.parametrize(
    "value", ["", "  ", 5, ["x"], {"pem": "x"}, True, "x" * 70000, "not a request", "é" * 9, "\ud800"]
)
def test_a_bad_request_is_told_with_a_sentence(value: object) -> None:
    with pytest.raises(UnusableRequest) as caught:
        read_csr({"csr": value})
    assert str(caught.value).endswith(".")


@given(st.one_of(st.text(), st.binary().map(lambda raw: base64.b64encode(raw).decode())))
def test_no_text_is_more_than_refused(text: str) -> None:
    with pytest.raises(UnusableRequest):
        read_csr({"csr": text})


@given(position=st.integers(0, len(DER) - 1), value=st.integers(0, 255))
def test_a_damaged_request_is_never_more_than_refused(position: int, value: int) -> None:
    damaged = bytearray(DER)
    damaged[position] = value
    try:
        read_csr({"csr": base64.b64encode(bytes(damaged)).decode()})
    except UnusableRequest as error:
        sentence = str(error)
        assert sentence.endswith(".")
