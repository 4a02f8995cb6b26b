"""What an order shows of the secrets in it."""

from typing import Any

import pytest

from retryflow.cli.masking import MASK, is_secret_name, masked
from retryflow.model import orders
from retryflow.model.transaction import transact
from tests.fixtures.busy import Busy
from tests.fixtures.certificates import new_csr, pem
from tests.fixtures.command import Command

PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQgeheim\n-----END PRIVATE KEY-----\n"
SECRET = """
    password passwd PASSWORD userPassword dbpassword db_pass userpass pass passphrase passcode pass_word
    PW pw user_pw userPW pwd pin user-pin otp jwt psk
    secret client_secret clientSecret SECRET_KEY token accessToken x-auth-token tokens credential credentials
    auth basic_auth authorization Authorization proxy-authorization authorizationHeader bearer bearer_token
    cookie cookies Set-Cookie session_cookie hmac hmac_key
    api_key apikey apiKey APIKey X-Api-Key private_key privateKey privatekey private_key_pem ssh_key sshkey sshKey
    signing_key signingKey encryptionKey encryption_key ENCRYPTION_KEY encryptionKeys tls.key server_key access_key
    master_key key_password
"""
HARMLESS = """
    passport passport_number passive compass bypass passed key keys key_size key_type keySize keyType key_id
    access_key_id key_algorithm public_key publicKey publickey PublicKey ssh_public_key public_key_pem primary_key
    sort_key keyword monkey turnkey
    pinned pinning spin author authority authentic auth_url authorization_url cookie_name bearer_type hmac_algorithm
    csr name subject_dn serial pwned
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_a_name_that_says_it_is_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS.split())
def test_a_name_that_only_looks_like_it(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password: p11", "password: ***"),
        ("login with user: me, db_password: p11, port: 1", "login with user: me, db_password: ***, port: 1"),
        ("PW=p11;host=h", "PW=***;host=h"),
        ('token: "p 11" and more', "token: *** and more"),
        ("API key: p11", "API key: ***"),
        ("Authorization: Basic bWU6cDEx\nAccept: x", "Authorization: ***\nAccept: x"),
        ("Cookie: session=p11; other=p11", "Cookie: ***"),
        ("curl with Bearer eyJhbGciOi.p11 to it", "curl with Bearer *** to it"),
        ("postgresql://me:p11@host/name", "postgresql://me:***@host/name"),
        (PRIVATE_KEY, MASK),
        (f"key and more\n{PRIVATE_KEY.replace('PRIVATE', 'RSA PRIVATE')}", MASK),
        ("the bearer of this certificate", "the bearer of this certificate"),
        ("passport: 11, pinned: yes, spin: 2", "passport: 11, pinned: yes, spin: 2"),
        ("-----BEGIN X-----\nab/PW==\n-----END X-----", "-----BEGIN X-----\nab/PW==\n-----END X-----"),
    ],
)
def test_a_text_in_which_a_secret_stands(text: str, shown: str) -> None:
    assert masked({"note": [text]}) == {"note": [shown]}


def test_what_tells_nothing_is_shown() -> None:
    told: dict[str, Any] = {"token": None, "password": "", "requires_auth": True, "pin": 1234, "cookies": ["a"]}
    assert masked(told) == {**told, "pin": MASK, "cookies": MASK}


def test_a_certificate_request_is_shown_as_it_is() -> None:
    meta = {"csr": pem(new_csr())}
    assert masked(meta) == meta


def test_a_private_key_is_shown_in_no_field_and_no_format(retryflow: Command, busy: Busy) -> None:
    result = {"certificate": f"PEM C\n{PRIVATE_KEY}", "chain": "PEM A", "note": PRIVATE_KEY, "signingKey": "geheim"}
    values = {"status": "ACTIVE", "result": result, "meta": {"extra": PRIVATE_KEY, "Authorization": "geheim"}}
    transact(busy.engine, lambda connection: orders.update_pending(connection, "stuck", **values))
    for form in ("json", "table", "yaml", "value"):
        answer = retryflow("order", "show", "stuck", "-f", form, database=busy.url)
        assert (answer.status, "geheim" in answer.out) == (0, False)
    shown = retryflow("order", "show", "stuck", "-f", "json", database=busy.url).json
    assert (shown["certificate"], shown["chain"]) == (MASK, "PEM A")
