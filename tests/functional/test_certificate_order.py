"""The main job, end to end: from ``order create --wait`` through real daemons and a real broker to a certificate."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.queue.client import TaskClient
from retryflow.queue.transport import get_transport
from retryflow.retry.submit import NewOrder, submit
from tests.fixtures.certificates import new_csr, pem, verify
from tests.fixtures.deployment import Deployment
from tests.fixtures.rabbit import eventually, overriding

SERVERS = ("postgresql", "mysql")
QUICK_CA = {("simple_certificate", "delay_before_update_seconds"): 0.5}


def retryflow(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator does."""
    environment = {**os.environ, "HOME": str(deployment.directory)}
    return subprocess.run(
        [sys.executable, "-m", "retryflow.cli.main", *arguments, *deployment.config(QUICK_CA)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def listed(deployment: Deployment, *arguments: str) -> Any:
    done = retryflow(deployment, *arguments, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def written_request(directory: Path, name: str) -> str:
    file = directory / f"{name}.csr"
    file.write_text(pem(new_csr(name, names=(name,))))
    return str(file)


@pytest.mark.parametrize("kind", SERVERS)
def test_an_order_waits_for_its_ca_and_comes_out_active_with_a_certificate_that_verifies(
    make_deployment: Callable[[str], Deployment], kind: str
) -> None:
    deployment = make_deployment(kind)
    deployment.start("worker", QUICK_CA)
    deployment.start("scheduler", QUICK_CA)
    name = "www.example.org"
    csr = written_request(deployment.directory, name)
    done = retryflow(
        deployment, "order", "create", "--type", "certificate", "--csr", csr, "--wait", "--timeout", "60", "-f", "json"
    )
    assert done.returncode == 0, done.stderr
    order = json.loads(done.stdout)
    assert order["status"] == "ACTIVE"
    assert [event["event"] for event in order["history"]] == ["submitted", "polling", "done"]
    told = [line.split(" ")[2].rstrip(",") for line in done.stderr.splitlines() if "runs on" not in line]
    assert told == [order["id"], "submitted", "polling", "done"]

    files = {part: deployment.directory / f"{part}.pem" for part in ("certificate", "chain")}
    options = [word for part, file in files.items() for word in (f"--{part}", str(file))]
    assert retryflow(deployment, "order", "show", order["id"], *options).returncode == 0
    verify(files["certificate"].read_text(), files["chain"].read_text(), name=name)
    openssl = shutil.which("openssl")
    if openssl:
        command = [openssl, "verify", "-CAfile", str(files["chain"]), str(files["certificate"])]
        verified = subprocess.run(command, capture_output=True, text=True, check=False)
        assert verified.stdout.strip() == f"{files['certificate']}: OK", verified.stderr
    assert listed(deployment, "retry", "list") == listed(deployment, "lease", "list") == []
    assert {row["kind"] for row in listed(deployment, "worker", "list")} == {"worker", "scheduler"}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_bad_request_ends_in_error_with_a_sentence_and_status_1(
    make_deployment: Callable[[str], Deployment], kind: str
) -> None:
    deployment = make_deployment(kind)
    deployment.start("worker", QUICK_CA)
    deployment.start("scheduler", QUICK_CA)
    create = ["order", "create", "--type", "certificate", "--wait", "--timeout", "60", "-f", "json"]
    done = retryflow(deployment, *create, "--meta", "csr=nonsense")
    assert done.returncode == 1, done.stderr
    order = json.loads(done.stdout)
    assert (order["status"], order["error_status_code"]) == ("ERROR", "400")
    assert "certificate signing request" in order["error_reason"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.slow
def test_two_workers_and_two_schedulers_serve_200_orders_once_each(
    make_deployment: Callable[[str], Deployment], kind: str
) -> None:
    deployment = make_deployment(kind)
    # Workers that share a directory share the authority's key, as the option's help asks for.
    for daemon in ("worker", "scheduler") * 2:
        deployment.start(daemon, QUICK_CA)
    request = pem(new_csr("many.example.org"))
    new = NewOrder(type="certificate", meta={"csr": request}, project_id="p1")
    with overriding(deployment.rabbit.overrides) as conf:
        client = TaskClient(get_transport(conf), conf)
        try:
            submit(deployment.engine, [new] * 200, settings=deployment.settings, sender=client)
        finally:
            client.close()
    assert deployment.wait_until_ended(timeout_seconds=120) == {"ACTIVE": 200}
    with deployment.engine.connect() as connection:
        results = [json.loads(text) for text in connection.execute(sa.text("SELECT result FROM orders")).scalars()]
        done = connection.execute(sa.text("SELECT count(*) FROM order_events WHERE event = 'done'")).scalar_one()
    assert (len({result["serial"] for result in results}), done) == (200, 200)
    for result in results[:5]:
        assert result["certificate"].count("BEGIN CERTIFICATE") == 1
    assert listed(deployment, "retry", "list") == listed(deployment, "lease", "list") == []
    deployment.wait_until_nothing_is_left()
    eventually(lambda: deployment.rabbit.ready() == 0, "the queue is empty")


def test_a_broker_that_is_away_leaves_the_ticket_to_the_scheduler(make_deployment: Callable[[str], Deployment]) -> None:
    deployment = make_deployment("sqlite")
    away = {(None, "transport_url"): "rabbit://guest:geheim@127.0.0.1:1//", ("queue", "publish_timeout_seconds"): 1.0}
    arguments = ["order", "create", "--type", "certificate", "-f", "json", *deployment.config(away)]
    done = subprocess.run(
        [sys.executable, "-m", "retryflow.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    [line] = done.stderr.splitlines()
    assert "a scheduler sends it later" in line
    assert "geheim" not in line
    [step] = json.loads(done.stdout)["next_step"]
    assert (step["step"], step["sent_again_in_seconds"] <= 0) == ("waits for a worker", True)
