"""The demonstration behind ``bin/demo``: three certificate orders, a refused one, an outage, a stop in mid-task.

The daemon is a real process and its orders are real ones; this program does what a client does (submit) and what an
operator does (look, rehearse an outage, stop the daemon).
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

from retryflow.conf.backend import select_threading

select_threading()

import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from oslo_db.exception import DBError

from retryflow.model.engine import READ_ONLY, create_engine
from retryflow.model.tables import daemon_processes, order_events, order_task_leases, orders
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit

HANG_SECONDS = 90.0
LOOK_SECONDS = 0.1
SIGNING_SECONDS = 3.0

CONFIGURATION = """\
[DEFAULT]
state_path = {directory}

[scheduler]
# 15 in production; here nobody wants to wait.
schedule_period_seconds = 1

[retry]
# 15 seconds, doubling up to an hour, in production.
initial_interval_seconds = 1
maximum_interval_seconds = 2

[simple_certificate]
# How long the authority keeps each order waiting (days, at a real one), and how long it takes to sign.
delay_before_update_seconds = 1.5
signing_seconds = {signing_seconds}
# While this file exists the authority is down.
outage_file = {directory}/outage
"""

WORDS = {
    "submitted": "PENDING: submitted",
    "polling": "PENDING: accepted by its authority, which needs a while",
    "retrying": "PENDING: authority out of service, will be tried again",
    "done": "ACTIVE: has its certificate",
    "failed": "ERROR: refused",
}
COLOURS = {"done": "1;32", "failed": "1;31", "retrying": "33"}


class DemoFailed(Exception):
    """Something did not happen as it should; the message says what."""


class Screen:
    """What the reader sees; colours only on a terminal, and not where NO_COLOR is set."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._began = time.monotonic()
        self._steps = 0

    def step(self, title: str) -> None:
        self._steps += 1
        print(f"\n{self._painted(f'{self._steps}. {title}', '1')}", flush=True)

    def say(self, text: str) -> None:
        print(f"   {text}", flush=True)

    def event(self, who: str, text: str, *, colour: str = "0") -> None:
        elapsed = self._painted(f"{time.monotonic() - self._began:5.1f} s", "2")
        print(f"   {elapsed}  {who:<10} {self._painted(text, colour)}", flush=True)

    def _painted(self, text: str, colour: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._colours else text


@dataclass
class Request:
    """One order of the demonstration."""

    name: str
    kind: str
    pem: str
    order_id: str = ""

    @property
    def host(self) -> str:
        """The name that the certificate is for."""
        return f"{self.name}.example.org"


def new_requests() -> list[Request]:
    """Three requests that can be signed, one of each kind of key, and one that cannot."""
    keys: list[tuple[str, str, Any]] = [
        ("www", "RSA, 2048 bits", rsa.generate_private_key(65537, 2048)),
        ("api", "EC, P-256", ec.generate_private_key(ec.SECP256R1())),
        ("mail", "Ed25519", ed25519.Ed25519PrivateKey.generate()),
        ("weak", "RSA, only 1024 bits", rsa.generate_private_key(65537, 1024)),
    ]
    return [Request(name, kind, _csr(f"{name}.example.org", key)) for name, kind, key in keys]


def _csr(host: str, key: Any) -> str:
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    return csr.public_bytes(serialization.Encoding.PEM).decode()


class Daemon:
    """``retryflow-standalone`` as a process of its own, with its log in a file."""

    def __init__(self, directory: Path) -> None:
        self.configuration = directory / "retryflow.conf"
        self.log = directory / "daemon.log"
        self.configuration.write_text(CONFIGURATION.format(directory=directory, signing_seconds=SIGNING_SECONDS))
        self._read = 0
        program = [sys.executable, "-m", "retryflow.cmd.standalone", "--config-file", str(self.configuration)]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal is for the demonstration, which then stops the daemon.
            self.process = subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)

    def new_lines(self) -> list[str]:
        """What was logged since the last look, without time stamp and module."""
        text = self.log.read_bytes()
        whole = text.rfind(b"\n") + 1
        fresh, self._read = text[self._read : whole].decode("utf-8", "replace"), whole
        return [re.sub(r"^\S+ \S+ \d+ ([A-Z]+) \S+ \[[^]]*\] ", r"\1  ", line) for line in fresh.splitlines()]

    def end(self) -> None:
        """Make sure that nothing is left behind."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Watch:
    """Shows each change of the orders' state as it happens."""

    engine: sa.Engine
    screen: Screen
    daemon: Daemon
    requests: list[Request] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    _running: set[str] = field(default_factory=set)

    def until(self, done: Callable[[], bool], what: str, *, daemon_may_end: bool = False) -> None:
        """Look until ``done`` says so.

        :raises DemoFailed: the daemon ended, or it takes far too long.
        """
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            self.look()
            if done():
                return
            if not daemon_may_end and self.daemon.process.poll() is not None:
                raise DemoFailed(f"the daemon ended with status {self.daemon.process.returncode} while waiting: {what}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"this has not happened within {HANG_SECONDS:.0f} seconds: {what}")
            time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Show what is new."""
        names = {request.order_id: request.name for request in self.requests if request.order_id}
        if not names:
            return
        with self._reading() as connection:
            leases = connection.execute(
                sa.select(order_task_leases).where(order_task_leases.c.holder.is_not(None))
            ).all()
            history = connection.execute(sa.select(order_events).order_by(order_events.c.id)).all()
        for lease in leases:
            if lease.id not in self._running:
                self._running.add(lease.id)
                self.screen.event(names[lease.order_id], f"task {lease.task} is running", colour="36")
        for line in history:
            # Not line.count, which is a method of the row.
            count = line._mapping["count"]
            if self._seen.get(line.id) != count:
                self._seen[line.id] = count
                self._show(names[line.order_id], line)

    def _show(self, name: str, line: Any) -> None:
        text = WORDS.get(line.event) or f"{line.event}: {line.detail or ''}"
        self.screen.event(name, text, colour=COLOURS.get(line.event, "0"))

    def status(self, request: Request) -> Any:
        """The order's row."""
        with self._reading() as connection:
            return connection.execute(sa.select(orders).where(orders.c.id == request.order_id)).one()

    def is_running(self, request: Request, task: str) -> bool:
        """Whether a worker is at this task of the order now."""
        lease = order_task_leases.c
        held = sa.select(lease.id).where(
            lease.order_id == request.order_id, lease.task == task, lease.holder.is_not(None)
        )
        with self._reading() as connection:
            return connection.execute(held).first() is not None

    def retries(self, request: Request) -> int:
        """How often the order's task has failed for the time being."""
        event = order_events.c
        count = sa.select(sa.func.count()).where(event.order_id == request.order_id, event.event == "retrying")
        with self._reading() as connection:
            return int(connection.execute(count).scalar_one())

    def daemon_is_ready(self) -> bool:
        """Whether the daemon has made its tables and entered itself."""
        try:
            with self._reading() as connection:
                return connection.execute(sa.select(daemon_processes.c.pid)).first() is not None
        except (sa.exc.SQLAlchemyError, DBError):
            return False

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self.engine.connect().execution_options(**{READ_ONLY: True}) as connection:
            yield connection


def verified(certificate: str, chain: str, *, host: str, directory: Path) -> str:
    """Verify a certificate as a client would, with the library and, where there is one, the openssl program.

    :returns: who has verified it.
    :raises DemoFailed: one of them does not accept it.
    """
    leaf = x509.load_pem_x509_certificate(certificate.encode())
    store = Store(x509.load_pem_x509_certificates(chain.encode()))
    try:
        PolicyBuilder().store(store).build_server_verifier(x509.DNSName(host)).verify(leaf, [])
    except VerificationError as error:
        raise DemoFailed(f"the certificate of {host} cannot be verified: {error}") from error
    openssl = shutil.which("openssl")
    if openssl is None:
        return "cryptography"
    leaf_file, chain_file = directory / f"{host}.pem", directory / "chain.pem"
    leaf_file.write_text(certificate)
    chain_file.write_text(chain)
    answer = subprocess.run(
        [openssl, "verify", "-CAfile", str(chain_file), str(leaf_file)], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise DemoFailed(f"openssl does not accept the certificate of {host}: {answer.stdout} {answer.stderr}")
    return "cryptography and openssl"


class Demonstration:
    """The steps, in the order in which they are shown.

    :param directory: for the daemon's files.
    :raises DemoFailed: (each step) something did not happen.
    """

    def __init__(self, directory: Path, screen: Screen) -> None:
        self._directory = directory
        self._screen = screen

    def run(self) -> None:
        self._screen.step("Make certificate signing requests")
        self._requests = new_requests()
        for request in self._requests:
            self._screen.say(f"{request.host}: {request.kind}")
        www, api, mail, weak = self._requests
        self._screen.step("Start the daemon")
        self._daemon = Daemon(self._directory)
        try:
            self._wait_for_daemon()
            self._order_a_good_and_a_bad_one(www, weak)
            self._rehearse_an_outage(api)
            self._stop_in_the_middle(mail)
            self._show_results()
        except DemoFailed:
            self._screen.say("The last lines of the daemon's log:")
            for line in self._daemon.log.read_text("utf-8", "replace").splitlines()[-20:]:
                self._screen.say(f"  {line}")
            raise
        finally:
            self._daemon.end()

    def _wait_for_daemon(self) -> None:
        daemon = self._daemon
        self._screen.say(f"retryflow-standalone --config-file {daemon.configuration}")
        self._screen.say(f"It is process {daemon.process.pid}: worker and scheduler in one, on SQLite.")
        self._screen.say(f"It logs to {daemon.log}")
        engine = create_engine(f"sqlite:///{self._directory / 'retryflow.sqlite'}")
        self._watch = Watch(engine, self._screen, daemon, self._requests)
        self._watch.until(self._watch.daemon_is_ready, "the daemon is ready")

    def _order_a_good_and_a_bad_one(self, good: Request, bad: Request) -> None:
        self._screen.step(f"Order certificates for {good.name} (good) and {bad.name} (will be refused)")
        self._order(good)
        self._order(bad)
        self._watch.until(
            lambda: self._has_ended(good, "ACTIVE") and self._has_ended(bad, "ERROR"), "one is ACTIVE, one is refused"
        )

    def _rehearse_an_outage(self, request: Request) -> None:
        self._screen.step(f"The authority goes down; order a certificate for {request.name} meanwhile")
        outage = self._directory / "outage"
        outage.touch()
        self._order(request)
        self._watch.until(lambda: self._watch.retries(request) >= 2, "the order was tried twice")
        outage.unlink()
        self._screen.event("", "the authority is back", colour="1")
        self._watch.until(lambda: self._has_ended(request, "ACTIVE"), f"{request.name} is ACTIVE")

    def _stop_in_the_middle(self, request: Request) -> None:
        self._screen.step(f"Stop the daemon in the middle of a task (signing, for {request.name})")
        daemon = self._daemon
        self._order(request)
        self._watch.until(
            lambda: self._watch.is_running(request, "check_certificate_status"), f"{request.name} is being signed"
        )
        # Only so that the reader sees that it was really in the middle.
        time.sleep(SIGNING_SECONDS / 4)
        daemon.new_lines()
        daemon.process.send_signal(signal.SIGTERM)
        self._screen.event("", "SIGTERM is sent; what the daemon says from now on:", colour="1")

        def has_stopped() -> bool:
            over = daemon.process.poll() is not None
            for line in daemon.new_lines():
                self._screen.event("", line.replace(request.order_id, request.name), colour="2")
            return over

        self._watch.until(has_stopped, "the daemon has stopped", daemon_may_end=True)
        self._watch.look()
        if daemon.process.returncode != 0 or not self._has_ended(request, "ACTIVE"):
            raise DemoFailed(
                f"the daemon stopped with status {daemon.process.returncode}, {request.name} is not ACTIVE"
            )
        self._screen.event("", "the daemon has finished the task, then stopped with exit status 0", colour="1;32")

    def _show_results(self) -> None:
        self._screen.step("The results")
        serials = set()
        for request in self._requests[:3]:
            result = self._watch.status(request).result
            by = verified(result["certificate"], result["chain"], host=request.host, directory=self._directory)
            serials.add(result["serial"])
            self._screen.say(f"{request.host:<17} certificate {result['serial'][:12]}..., verified by {by}")
        if len(serials) != 3:
            raise DemoFailed("the three certificates do not have three serial numbers")
        bad = self._requests[3]
        refused = self._watch.status(bad)
        self._screen.say(f"{bad.host:<17} refused with {refused.error_status_code}: {refused.error_reason}")

    def _order(self, request: Request) -> None:
        new = NewOrder(type="certificate", meta={"csr": request.pem}, request_id=f"req-{request.name}")
        (request.order_id,) = submit(self._watch.engine, [new], settings=Settings())

    def _has_ended(self, request: Request, status: str) -> bool:
        row = self._watch.status(request)
        if row.status not in ("PENDING", status):
            raise DemoFailed(f"order {request.name} is {row.status} instead of {status}: {row.error_reason}")
        return bool(row.status == status)


def main() -> int:
    """Run the demonstration; the exit status is 0 if everything happened as it should."""
    parser = argparse.ArgumentParser(prog="bin/demo", description="Shows what retryflow does, in less than a minute.")
    parser.add_argument("--keep", action="store_true", help="leave the demonstration's directory for a look at it")
    keep = parser.parse_args().keep
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = Path(tempfile.mkdtemp(prefix="retryflow-demo-"))
    began = time.monotonic()
    try:
        Demonstration(directory, Screen()).run()
    except DemoFailed as error:
        keep = True
        print(f"\nThe demonstration failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the daemon was stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read along has gone; there is nobody to tell anything.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        if keep:
            print(f"\nEverything is in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"\nAll as promised, in {time.monotonic() - began:.0f} seconds. Go on with README.rst, section A short tour.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
