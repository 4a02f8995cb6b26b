"""What the page for plugin authors shows is what runs."""

import http.server
import json
import re
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from oslo_config import cfg

from retryflow.plugin.interface import ResultStatus
from retryflow.plugin.manager import CertificatePluginManager
from retryflow.retry.context import OrderView, TaskContext
from retryflow.retry.outcome import Continue, Done, Fail, Outcome, Poll, Retry
from retryflow.tasks.certificate import CertificateOrderType

PAGE = Path(__file__).parents[2] / "doc" / "source" / "plugins.rst"


def shown() -> dict[str, Any]:
    """What all Python blocks of the page define, when they are run one after the other."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE.read_text())
    for block in blocks:
        exec(compile(textwrap.dedent(block), str(PAGE), "exec"), names)
    return names


class Authority(http.server.BaseHTTPRequestHandler):
    """As the page's example expects it."""

    state: ClassVar[dict[str, Any]] = {}
    keys: ClassVar[list[str | None]] = []

    def _answer(self) -> None:
        self.keys.append(self.headers["Idempotency-Key"])
        body = json.dumps(self.state).encode()
        self.send_response(self.state.get("http", 200))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = _answer  # noqa: N815

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def authority() -> Iterator[str]:
    Authority.state = {}
    Authority.keys = []
    server = http.server.HTTPServer(("127.0.0.1", 0), Authority)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(url: str, task: str, *, meta: dict[str, str], state: dict[str, str] | None = None) -> Outcome:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    plugin = shown()["ExamplePlugin"](conf)
    conf.set_override("url", url, "example_ca")
    order_type = CertificateOrderType(conf, plugins=CertificatePluginManager({"example": plugin}))
    order = OrderView("1", None, "certificate", meta, "example" if state else None, state or {})
    return order_type.handlers()[task](TaskContext(task_id="t", order_id="1", task=task), order)


def test_the_example_plugin_does_what_the_page_says(authority: str) -> None:
    meta, state = {"ca": "example", "csr": "x"}, {"number": "17"}

    Authority.state = {"number": 17}
    issued = run(authority, "process_type_order", meta=meta)
    assert isinstance(issued, Poll)
    assert (issued.state, issued.after_seconds, issued.task) == (state, 3600.0, "check_certificate_status")
    assert Authority.keys == ["1:0"]

    Authority.state = {"state": "pending"}
    assert isinstance(run(authority, "check_certificate_status", meta=meta, state=state), Poll)
    Authority.state = {"state": "issued", "certificate": "PEM", "chain": "ROOT"}
    assert isinstance(run(authority, "check_certificate_status", meta=meta, state=state), Done)
    Authority.state = {"state": "rejected", "reason": "Too short."}
    rejected = run(authority, "check_certificate_status", meta=meta, state=state)
    assert isinstance(rejected, Fail)
    assert rejected.reason == "Too short."
    assert isinstance(run(authority, "update_order", meta=meta, state=state), Continue)
    assert isinstance(run(authority, "process_type_order", meta={"ca": "example"}), Fail)
    assert isinstance(run(authority, "process_type_order", meta={"ca": "another"}), Fail)


def test_an_authority_that_is_away_is_tried_again_without_a_word_of_the_plugin(authority: str) -> None:
    meta = {"ca": "example", "csr": "x"}
    Authority.state = {"http": 503}
    assert isinstance(run(authority, "process_type_order", meta=meta), Retry)
    assert isinstance(run("http://127.0.0.1:1", "process_type_order", meta=meta), Retry)
    assert isinstance(run("http://no-such-host.invalid", "process_type_order", meta=meta), Retry)


def test_the_example_order_types_do_what_the_page_says() -> None:
    names = shown()
    conf = cfg.ConfigOpts()
    context = TaskContext(task_id="t", order_id="1", task="any")
    order = OrderView("1", None, "backup", {"volume": "a"}, None, {"copy": "c"})
    backup = names["BackupOrderType"](conf)
    assert isinstance(backup.process_type_order(context, OrderView("1", None, "backup", {})), Fail)
    assert backup.check_certificate_status(context, order) == Done(result={"copy": "c"})
    assert backup.update_order(context, order) == Continue()
    assert "verify_copy" in names["SteppedOrderType"](conf).handlers()
    assert names["PatientOrderType"].transient_errors == (names["StorageBusy"],)


def test_the_page_tells_of_every_status() -> None:
    text = PAGE.read_text()
    assert [status.name for status in ResultStatus if f"``{status.name}``" not in text] == []
