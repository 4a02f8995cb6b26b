"""A database that answers and writes nothing: a standby after a failover, or a user without the rights."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model.orders import ACTIVE
from retryflow.service.status import ExitStatus
from tests.fixtures.deployment import Deployment

NO_TRACEBACK = ("Traceback", "ERROR")


@contextmanager
def read_only(deployment: Deployment) -> Iterator[None]:
    """Let the database take no writes, and break all connections, as a failover does."""
    url = sa.make_url(deployment.database)
    maintenance = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")

    def be(word: str) -> None:
        with maintenance.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {url.database} SET default_transaction_read_only = {word}")
            ended = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
            connection.execute(ended, {"name": url.database})
        deployment.engine.dispose()

    be("on")
    try:
        yield
    finally:
        be("off")
        maintenance.dispose()


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_a_daemon_that_starts_on_a_standby_waits_for_it_to_be_promoted(
    make_deployment: Callable[[str], Deployment], kind: str
) -> None:
    deployment = make_deployment("postgresql")
    deployment.rabbit.declare()
    [order_id] = deployment.submit()
    with read_only(deployment):
        waiting = deployment.start(kind, ready=False)
        waiting.wait_for_log("WARNING .*database refused a transaction; trying on: cannot execute")
    deployment.start("scheduler" if kind == "worker" else "worker")
    assert deployment.wait_until_ended() == {ACTIVE: 1}
    assert deployment.order(order_id).status == ACTIVE
    assert not any(word in waiting.log() for word in NO_TRACEBACK), waiting.log()


def test_a_worker_whose_database_becomes_a_standby_says_so_and_goes_on_afterwards(
    make_deployment: Callable[[str], Deployment],
) -> None:
    deployment = make_deployment("postgresql")
    deployment.start("scheduler")
    worker = deployment.start("worker", {("lease", "renew_seconds"): 0.5})
    with read_only(deployment):
        worker.wait_for_log("WARNING .*Leases cannot be renewed, so nothing new is taken in; trying on: cannot execute")
    worker.wait_for_log("Leases are renewed again")
    deployment.submit()
    assert deployment.wait_until_ended() == {ACTIVE: 1}
    assert not any(word in worker.log() for word in NO_TRACEBACK), worker.log()


@contextmanager
def reader_of(deployment: Deployment) -> Iterator[str]:
    """A user who may only read.

    :returns: the URL with which it connects.
    """
    url = sa.make_url(deployment.database)
    name = f"rf_{secrets.token_hex(4)}"
    user = f"'{name}'@'%%'" if deployment.engine.dialect.name != "postgresql" else name
    owner = sa.create_engine(url, isolation_level="AUTOCOMMIT")

    def run(*statements: str) -> None:
        with owner.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    if deployment.engine.dialect.name == "postgresql":
        run(f"CREATE ROLE {name} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
        take_away = (f"DROP OWNED BY {name}", f"DROP ROLE {name}")
    else:
        run(f"CREATE USER {user}", f"GRANT SELECT ON {url.database}.* TO {user}")
        take_away = (f"DROP USER {user}",)
    try:
        yield url.set(username=name).render_as_string(hide_password=False)
    finally:
        run(*take_away)
        owner.dispose()


@pytest.mark.parametrize("daemon", ["worker", "scheduler"])
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_daemon_whose_user_may_not_write_is_refused_with_one_line(
    make_deployment: Callable[[str], Deployment], kind: str, daemon: str
) -> None:
    deployment = make_deployment(kind)
    options: dict[tuple[str | None, str], Any]
    with reader_of(deployment) as url:
        options = {("database", "connection"): url.replace("%", "%%")}
        refused = deployment.start(daemon, options, ready=False)
        assert refused.wait() == ExitStatus.REFUSED
    [line] = [line.text for line in refused.lines() if "ERROR" in line.text]
    assert "Cannot start: the database lets the user of [database] connection in, but not read and write" in line
    assert "Traceback" not in refused.log()
