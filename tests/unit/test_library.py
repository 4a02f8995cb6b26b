"""What a service does that creates orders in its own code, and the examples of the pages for services."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from retryflow.model import orders, schema
from retryflow.model.engine import create_engine
from retryflow.model.transaction import read
from retryflow.retry.look import look
from retryflow.retry.sending import Ticket
from retryflow.retry.settings import Settings
from retryflow.retry.submit import NewOrder, submit_in_session

PAGES = Path(__file__).resolve().parents[2] / "doc" / "source"


class Sender:
    """Keeps what it is given; whether the orders were committed by then is looked up through another connection."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.tickets: list[Ticket] = []
        self.visible: list[bool] = []

    def send(self, tickets: Sequence[Ticket], *, timeout_seconds: float) -> set[str]:
        self.tickets += tickets
        for ticket in tickets:
            row = read(self.engine, lambda connection, order_id=ticket.order_id: orders.get(connection, order_id))  # type: ignore[misc]
            self.visible.append(row is not None)
        return set()


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    made = create_engine(database_url)
    schema.upgrade(made)
    yield made
    made.dispose()


def test_an_order_in_the_caller_s_session_is_sent_right_after_its_commit(engine: sa.Engine) -> None:
    sender = Sender(engine)
    with orm.Session(engine) as session:
        [order_id] = submit_in_session(session, [NewOrder(type="probe")], settings=Settings(), sender=sender)
        assert sender.tickets == []
        session.commit()
        assert [ticket.order_id for ticket in sender.tickets] == [order_id]
        # The next transaction of the same session sends nothing again.
        session.execute(sa.text("SELECT 1"))
        session.commit()
    assert (len(sender.tickets), sender.visible) == (1, [True])


def test_an_order_in_a_session_that_rolls_back_never_was(engine: sa.Engine) -> None:
    sender = Sender(engine)
    with orm.Session(engine) as session:
        [order_id] = submit_in_session(session, [NewOrder(type="probe")], settings=Settings(), sender=sender)
        session.rollback()
        session.execute(sa.text("SELECT 1"))
        session.commit()
    assert sender.tickets == []
    assert read(engine, lambda connection: orders.get(connection, order_id)) is None


def test_without_a_sender_the_scheduler_finds_the_order_at_once(engine: sa.Engine) -> None:
    with orm.Session(engine) as session:
        submit_in_session(session, [NewOrder(type="probe")], settings=Settings())
        session.commit()
    seen = look(engine).lease_ends_in
    assert seen is not None
    assert seen <= 0


def examples(page: str) -> list[str]:
    """The examples of a page, each as it would be copied."""
    blocks = re.findall(r"(?:\.\. code-block:: python|chooses::)\n\n((?:    .*\n|\n)+)", (PAGES / page).read_text())
    return [textwrap.dedent(block) for block in blocks]


def run(source: str) -> subprocess.CompletedProcess[str]:
    """Run it as a program of its own: in this process the backend of oslo.service is chosen already."""
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("before", ["", "import oslo_messaging\n"], ids=["alone", "after oslo_messaging"])
def test_the_page_s_examples_run_in_a_process_that_has_chosen_nothing(
    tmp_path: Path, sqlite_url: str, before: str
) -> None:
    file = tmp_path / "service.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = fake://\n[database]\nconnection = {sqlite_url}\n")
    schema.upgrade(create_engine(sqlite_url))
    blocks = examples("library.rst")
    assert len(blocks) >= 3
    source = "\n".join(blocks).replace("/etc/my-service/my-service.conf", str(file))
    done = run(before + source)
    assert done.returncode == 0, done.stderr
    row = read(create_engine(sqlite_url), lambda connection: orders.get(connection, "order-0001"))
    assert row is not None
    assert row.meta["csr"] == "second"


OF_SERVICES = [
    (page, example)
    for page in ("queue.rst", "tracking.rst")
    for example in examples(page)
    if example.startswith(("import ", "from "))
]


@pytest.mark.parametrize(("page", "example"), OF_SERVICES, ids=lambda value: value.split("\n", maxsplit=1)[0])
def test_each_example_of_a_service_runs_in_a_process_that_has_chosen_nothing(page: str, example: str) -> None:
    """And the manager that it is for can be imported after it."""
    done = run(f"{example}\nfrom retryflow.service.plain import Manager\n")
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_the_pages_of_services_have_such_examples() -> None:
    assert {page for page, _ in OF_SERVICES} == {"queue.rst", "tracking.rst"}


def test_a_service_that_imported_oslo_messaging_first_is_told_what_to_import_before() -> None:
    done = run("import oslo_messaging\nimport retryflow.service.plain\n")
    assert done.returncode == 1
    assert "import retryflow.queue or retryflow.service.plain before oslo_messaging" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("first", ["retryflow.queue", "retryflow.service.plain"])
def test_what_the_pages_say_to_import_first_is_enough(first: str) -> None:
    done = run(f"import {first}\nimport oslo_messaging, oslo_service.service\nimport retryflow.service.plain\n")
    assert done.returncode == 0, done.stderr


def test_a_process_that_has_chosen_eventlet_keeps_it() -> None:
    chosen = "from oslo_service import backend\nbackend.init_backend(backend.BackendType.EVENTLET)\n"
    done = run(f"{chosen}import retryflow.queue.client\nprint(backend.get_backend_type().value)\n")
    assert (done.returncode, done.stdout) == (0, "eventlet\n"), done.stderr


def test_a_process_that_runs_on_eventlet_s_patches_is_left_alone() -> None:
    patched = "import eventlet\neventlet.monkey_patch()\nfrom oslo_service import backend\n"
    done = run(f"{patched}import retryflow.queue.client\nprint(backend.get_backend_type().value)\n")
    assert (done.returncode, done.stdout) == (0, "eventlet\n"), done.stderr
