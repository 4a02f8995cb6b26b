"""The demonstration authority: real certificates, one for each order and request, whatever happens in between."""

import datetime
import multiprocessing
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from oslo_config import cfg

from retryflow import conf as configuration
from retryflow.errors import LeaseLost, PluginUnavailable
from retryflow.plugin.interface import CertificateRequest, CertificateResult, ResultStatus
from retryflow.plugin.simple_certificate import SimpleCertificatePlugin
from retryflow.plugin.simple_certificate.authority import CertificateAuthority
from retryflow.plugin.state import PluginState
from retryflow.retry.context import TaskContext
from tests.fixtures.certificates import new_csr, pem, verify

NAME = "www.example.org"
CSR = new_csr(names=(NAME, "alt.example.org"))


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[cfg.ConfigOpts]:
    conf = cfg.ConfigOpts()
    configuration.register_all(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("ca_directory", str(tmp_path / "ca"), "simple_certificate")
    conf.set_override("outage_file", str(tmp_path / "outage"), "simple_certificate")
    yield conf
    # The groups are shared between all configurations of a process, and overrides stand in them.
    conf.reset()


@pytest.fixture
def plugin(conf: cfg.ConfigOpts) -> SimpleCertificatePlugin:
    return SimpleCertificatePlugin(conf)


def asked(
    *,
    meta: Mapping[str, Any] | None = None,
    kept: Mapping[str, str] | None = None,
    order_id: str = "order-1",
    context: TaskContext | None = None,
) -> CertificateRequest:
    context = context or TaskContext(task_id="t", order_id=order_id, task="check_certificate_status")
    return CertificateRequest(
        order_id=order_id,
        order_meta={"csr": pem(CSR)} if meta is None else meta,
        plugin_state=PluginState(kept),
        idempotency_key=context.idempotency_key,
        context=context,
    )


def issued(plugin: SimpleCertificatePlugin, order_id: str = "order-1") -> CertificateResult:
    request = asked(order_id=order_id)
    plugin.issue_certificate_request(request)
    return plugin.check_certificate_status(asked(order_id=order_id, kept=request.plugin_state.changes()))


class TestAnOrderThatGoesWell:
    def test_issuing_waits_for_the_ca_as_long_as_configured(self, plugin: SimpleCertificatePlugin) -> None:
        request = asked()
        result = plugin.issue_certificate_request(request)
        assert result.status is ResultStatus.WAITING_FOR_CA
        assert result.retry_after_seconds == plugin.conf.simple_certificate.delay_before_update_seconds == 5.0
        assert result.retry_method == "check_certificate_status"
        assert request.plugin_state["csr"] == pem(CSR)

    def test_the_check_gives_a_certificate_that_a_client_accepts(self, plugin: SimpleCertificatePlugin) -> None:
        result = issued(plugin)
        assert result.status is ResultStatus.CERTIFICATE_GENERATED
        assert result.certificate
        assert result.chain
        leaf = verify(result.certificate, result.chain, name="alt.example.org")
        assert leaf.public_key() == CSR.public_key()
        assert leaf.subject == CSR.subject
        assert result.details["serial"] == f"{leaf.serial_number:x}"
        assert datetime.datetime.fromisoformat(result.details["not_after"]) == leaf.not_valid_after_utc

    def test_openssl_accepts_it_too(self, plugin: SimpleCertificatePlugin, tmp_path: Path) -> None:
        result = issued(plugin)
        assert result.certificate
        assert result.chain
        (tmp_path / "leaf.pem").write_text(result.certificate)
        (tmp_path / "root.pem").write_text(result.chain)
        command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", NAME]
        try:
            subprocess.run([*command, "-CAfile", tmp_path / "root.pem", tmp_path / "leaf.pem"], check=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("the openssl program is not installed")

    def test_nobody_becomes_an_authority_by_asking(self, plugin: SimpleCertificatePlugin) -> None:
        key = rsa.generate_private_key(65537, 2048)
        from cryptography.hazmat.primitives import hashes

        csr = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "evil")]))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        result = plugin.check_certificate_status(asked(meta={"csr": pem(csr)}))
        leaf = x509.load_pem_x509_certificate((result.certificate or "").encode())
        assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
        assert (usage.key_cert_sign, usage.key_encipherment) == (False, True)

    def test_each_order_has_its_own_serial(self, plugin: SimpleCertificatePlugin) -> None:
        assert len({issued(plugin, f"order-{n}").details["serial"] for n in range(20)}) == 20


class TestOneCertificateForOneOrder:
    def test_a_crash_after_signing_gives_the_same_certificate(self, plugin: SimpleCertificatePlugin) -> None:
        # The state of the first run is lost, as it is when the worker dies before its finish.
        assert issued(plugin).certificate == issued(plugin).certificate

    def test_two_workers_that_sign_at_once_give_the_same_certificate(self, plugin: SimpleCertificatePlugin) -> None:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: issued(plugin).certificate, range(8)))
        assert len(set(results)) == 1

    def test_what_was_signed_is_kept_before_the_task_ends(self, plugin: SimpleCertificatePlugin) -> None:
        kept: dict[str, str] = {}
        context = TaskContext(task_id="t", order_id="order-1", task="check_certificate_status", checkpoint=kept.update)
        result = plugin.check_certificate_status(asked(context=context))
        assert kept["certificate"] == result.certificate
        assert kept["chain"] == result.chain

    def test_what_was_kept_is_given_without_signing_again(
        self, plugin: SimpleCertificatePlugin, conf: cfg.ConfigOpts, tmp_path: Path
    ) -> None:
        first = issued(plugin)
        kept = {"certificate": first.certificate or "", "chain": first.chain or ""}
        # Another host, with another directory, goes on with the same order.
        conf.set_override("ca_directory", str(tmp_path / "elsewhere"), "simple_certificate")
        assert plugin.check_certificate_status(asked(kept=kept)).certificate == first.certificate
        assert not (tmp_path / "elsewhere").exists()

    def test_a_lost_lease_ends_slow_signing_and_nothing_is_signed(self, conf: cfg.ConfigOpts, tmp_path: Path) -> None:
        conf.set_override("signing_seconds", 60.0, "simple_certificate")
        context = TaskContext(task_id="t", order_id="order-1", task="check_certificate_status")
        plugin = SimpleCertificatePlugin(conf, sleep=lambda _seconds: context.tell_lease_lost())
        with pytest.raises(LeaseLost):
            plugin.check_certificate_status(asked(context=context))
        assert not (tmp_path / "ca").exists()

    def test_a_stop_lets_slow_signing_finish(self, conf: cfg.ConfigOpts) -> None:
        slept: list[float] = []
        conf.set_override("signing_seconds", 3.0, "simple_certificate")
        context = TaskContext(task_id="t", order_id="order-1", task="check_certificate_status")
        context.tell_stopping()
        plugin = SimpleCertificatePlugin(conf, sleep=slept.append)
        assert plugin.check_certificate_status(asked(context=context)).status is ResultStatus.CERTIFICATE_GENERATED
        assert sum(slept) == pytest.approx(3.0)


class TestAnOutage:
    @pytest.mark.parametrize("method", ["issue", "check", "modify", "cancel"])
    def test_while_the_file_exists_the_authority_plays_dead(
        self, plugin: SimpleCertificatePlugin, tmp_path: Path, method: str
    ) -> None:
        operation = {
            "issue": plugin.issue_certificate_request,
            "check": plugin.check_certificate_status,
            "modify": plugin.modify_certificate_request,
            "cancel": plugin.cancel_certificate_request,
        }[method]
        (tmp_path / "outage").touch()
        assert operation(asked()).status is ResultStatus.CA_UNAVAILABLE_FOR_REQUEST
        (tmp_path / "outage").unlink()
        assert operation(asked()).status is not ResultStatus.CA_UNAVAILABLE_FOR_REQUEST


class TestAnUpdate:
    def test_the_new_request_is_the_one_that_is_signed(self, plugin: SimpleCertificatePlugin) -> None:
        first, new = asked(), new_csr("new.example.org")
        plugin.issue_certificate_request(first)
        update = asked(meta={"csr": pem(new)}, kept=first.plugin_state.changes())
        assert plugin.modify_certificate_request(update).status is ResultStatus.WAITING_FOR_CA
        result = plugin.check_certificate_status(asked(kept=dict(update.plugin_state)))
        leaf = x509.load_pem_x509_certificate((result.certificate or "").encode())
        assert leaf.public_key() == new.public_key()

    def test_a_bad_new_request_is_refused_and_the_old_one_is_signed(self, plugin: SimpleCertificatePlugin) -> None:
        first = asked()
        plugin.issue_certificate_request(first)
        update = asked(meta={"csr": "rubbish"}, kept=first.plugin_state.changes())
        assert plugin.modify_certificate_request(update).status is ResultStatus.CLIENT_DATA_ISSUE_SEEN
        result = plugin.check_certificate_status(asked(meta={"csr": "rubbish"}, kept=dict(update.plugin_state)))
        leaf = x509.load_pem_x509_certificate((result.certificate or "").encode())
        assert leaf.public_key() == CSR.public_key()

    @pytest.mark.parametrize("state_was_kept", [True, False])
    @pytest.mark.parametrize("method", ["modify", "cancel"])
    def test_after_signing_it_is_too_late(
        self, plugin: SimpleCertificatePlugin, method: str, state_was_kept: bool
    ) -> None:
        request = asked(kept={"csr": pem(CSR)})
        plugin.check_certificate_status(request)
        kept = dict(request.plugin_state) if state_was_kept else {"csr": pem(CSR)}
        late = asked(meta={"csr": pem(new_csr("new.example.org"))}, kept=kept)
        operation = plugin.modify_certificate_request if method == "modify" else plugin.cancel_certificate_request
        assert operation(late).status is ResultStatus.INVALID_OPERATION

    def test_a_request_that_is_not_signed_yet_can_be_cancelled(self, plugin: SimpleCertificatePlugin) -> None:
        request = asked(kept={"csr": pem(CSR)})
        assert plugin.cancel_certificate_request(request).status is ResultStatus.REQUEST_CANCELLED

    @pytest.mark.parametrize("meta", [{}, {"csr": "rubbish"}])
    def test_a_bad_request_is_the_client_s_fault(self, plugin: SimpleCertificatePlugin, meta: dict[str, str]) -> None:
        result = plugin.issue_certificate_request(asked(meta=meta))
        assert result.status is ResultStatus.CLIENT_DATA_ISSUE_SEEN
        assert result.status_message
        assert result.status_message.endswith(".")


def make_root(directory: str, barrier: Any, answers: Any) -> None:
    barrier.wait(60)
    answers.put(CertificateAuthority(Path(directory)).root_pem())


class TestTheAuthorityItself:
    def test_the_key_is_readable_by_its_owner_only_whatever_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            CertificateAuthority(tmp_path / "ca").root_pem()
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700

    def test_processes_that_start_at_once_agree_on_one_authority(self, tmp_path: Path) -> None:
        spawn = multiprocessing.get_context("spawn")
        barrier, answers = spawn.Barrier(4), spawn.Queue()
        directory = str(tmp_path / "ca")
        processes = [spawn.Process(target=make_root, args=(directory, barrier, answers)) for _ in range(4)]
        for process in processes:
            process.start()
        roots = {answers.get(timeout=60) for _ in processes}
        for process in processes:
            process.join(60)
        assert len(roots) == 1
        assert sorted(path.name for path in (tmp_path / "ca").iterdir()) == ["ca.key", "ca.pem"]

    def test_a_crash_between_key_and_certificate_is_mended_by_the_next_one(self, tmp_path: Path) -> None:
        authority = CertificateAuthority(tmp_path)
        authority.root_pem()
        (tmp_path / "ca.pem").unlink()
        certificate = authority.sign(CSR, order_id="o", days=1)
        verify(certificate, authority.root_pem(), name=NAME)

    @pytest.mark.parametrize("file", ["ca.key", "ca.pem"])
    @pytest.mark.parametrize("content", ["", "rubbish", "the other authority's"])
    def test_damaged_files_are_an_outage_with_the_remedy_not_a_refused_order(
        self, tmp_path: Path, file: str, content: str
    ) -> None:
        authority, other = CertificateAuthority(tmp_path / "ca"), CertificateAuthority(tmp_path / "other")
        authority.root_pem()
        other.root_pem()
        text = (tmp_path / "other" / file).read_text() if content.startswith("the other") else content
        (tmp_path / "ca" / file).write_text(text)
        with pytest.raises(PluginUnavailable, match=r"damaged .* from a copy"):
            authority.sign(CSR, order_id="o", days=1)

    def test_a_directory_that_cannot_be_used_is_an_outage_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        authority = CertificateAuthority(tmp_path / "file" / "ca")
        with pytest.raises(PluginUnavailable, match="ca_directory"):
            authority.sign(CSR, order_id="o", days=1)
        with pytest.raises(PluginUnavailable, match="ca_directory"):
            authority.issued(CSR, order_id="o")

    def test_no_certificate_outlives_the_authority(self, tmp_path: Path) -> None:
        now = datetime.datetime.now(datetime.UTC)
        CertificateAuthority(tmp_path, now=lambda: now - datetime.timedelta(days=3640)).root_pem()
        certificate = CertificateAuthority(tmp_path).sign(CSR, order_id="o", days=365)
        leaf = x509.load_pem_x509_certificate(certificate.encode())
        root = x509.load_pem_x509_certificate(CertificateAuthority(tmp_path).root_pem().encode())
        assert leaf.not_valid_after_utc == root.not_valid_after_utc
        ended = CertificateAuthority(tmp_path, now=lambda: now + datetime.timedelta(days=20))
        with pytest.raises(PluginUnavailable, match="has ended"):
            ended.sign(CSR, order_id="another", days=365)

    @pytest.mark.parametrize("order_id", ["../../x", "/etc/x", "x" * 300, "\ud800", "é"])
    def test_no_order_id_leads_out_of_the_directory(self, tmp_path: Path, order_id: str) -> None:
        CertificateAuthority(tmp_path / "ca").sign(CSR, order_id=order_id, days=1)
        assert [path.name for path in tmp_path.iterdir()] == ["ca"]
        assert len(list((tmp_path / "ca" / "issued").iterdir())) == 1


def test_the_plugin_needs_no_other_room_of_retryflow() -> None:
    code = "import sys, retryflow.plugin.simple_certificate; print(*(m for m in sys.modules if m[:10] == 'retryflow.'))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert {name.split(".")[1] for name in listed.split()} <= {"plugin", "errors"}
