"""A server that lets a user not in is told from one that is away."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from retryflow.model.engine import create_engine
from retryflow.model.refusal import is_refusal
from retryflow.model.transaction import is_disconnect
from tests.fixtures.command import Command
from tests.fixtures.servers import need

SSL_REQUEST = 80877103
GSS_REQUEST = 80877104


@contextmanager
def postgresql_that_says(code: str, message: str) -> Iterator[str]:
    """The URL of what answers each connection as PostgreSQL does when it refuses it.

    The server of these tests trusts everybody, and another's rules are not ours to change.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as received:
                request = SSL_REQUEST
                while request in (SSL_REQUEST, GSS_REQUEST):
                    length, request = struct.unpack("!II", received.read(8))
                    received.read(length - 8)
                    if request in (SSL_REQUEST, GSS_REQUEST):
                        connection.sendall(b"N")
                fields = b"".join(
                    kind + text.encode() + b"\0" for kind, text in ((b"S", "FATAL"), (b"C", code), (b"M", message))
                )
                connection.sendall(b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield f"postgresql+psycopg://me:geheim@127.0.0.1:{listener.getsockname()[1]}/x"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def error_of(url: str) -> Exception:
    engine = create_engine(url)
    try:
        with pytest.raises(Exception, match=r".") as caught, engine.connect():
            pass
    finally:
        engine.dispose()
    return caught.value


REFUSALS = [
    ("28000", 'role "me" does not exist'),
    ("28000", 'role "me" is not permitted to log in'),
    ("28P01", 'password authentication failed for user "me"'),
    ("28000", 'Peer authentication failed for user "me"'),
    ("28000", 'no pg_hba.conf entry for host "127.0.0.1", user "me", database "x", no encryption'),
    ("28000", 'pg_hba.conf rejects connection for host "127.0.0.1", user "me", database "x", no encryption'),
    ("42501", 'permission denied for database "x"'),
]


@pytest.mark.parametrize(("code", "message"), REFUSALS)
def test_a_user_whom_postgresql_does_not_let_in_is_refused(code: str, message: str) -> None:
    """And for whoever is at work already it is an outage as before: a password that is being changed."""
    with postgresql_that_says(code, message) as url:
        error = error_of(url)
    assert message in str(error)
    assert (is_refusal(error), is_disconnect(error)) == (True, True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("57P03", "the database system is starting up"),
        ("57P03", "the database system is shutting down"),
        ("53300", "sorry, too many clients already"),
        ("08P01", "server login has been failing, try again later (server_login_retry)"),
    ],
)
def test_what_passes_by_itself_is_no_refusal(code: str, message: str) -> None:
    with postgresql_that_says(code, message) as url:
        error = error_of(url)
    assert (is_refusal(error), is_disconnect(error)) == (False, True)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_user_whom_a_server_does_not_know_is_refused(kind: str) -> None:
    url = sa.make_url(need(kind)).set(username="retryflow_nobody", password="geheim", database="x")
    assert is_refusal(error_of(url.render_as_string(hide_password=False)))


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_where_nobody_listens_nobody_refuses(driver: str) -> None:
    error = error_of(f"{driver}://me@127.0.0.1:1/x")
    assert (is_refusal(error), is_disconnect(error)) == (False, True)


@pytest.mark.parametrize("words", ["stats", "db current", "doctor"])
def test_a_command_says_that_the_database_refuses_the_user(retryflow: Command, words: str) -> None:
    with postgresql_that_says(*REFUSALS[2]) as url:
        answer = retryflow(*words.split(), database=url)
    if words == "doctor":
        assert (answer.status, "refuses this user" in " ".join(answer.out.split("|"))) == (1, True), answer.out
    else:
        answer.assert_refused("refuses this user", "password authentication failed", "mend user or password")
    assert "geheim" not in answer.out + answer.err
