"""HTTPS by the server itself: its certificate, the client that trusts it, and the session of a browser."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
import urllib3

from stillhash.errors import InvalidInput, Unreachable
from stillhash.server import Settings, add_key
from stillhash.server.settings import load_certificate
from tests.cli.test_main import stillhash
from tests.client.awaited_client import CLIENTS
from tests.collection.fixtures import copied
from tests.server.serve_command import serve_command

Certificate = tuple[Path, Path]  # files of a certificate and of its private key

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is missing")


@pytest.fixture
def certify(tmp_path: Path) -> Callable[..., Certificate]:
    """Make a certificate of this machine that signs itself, in files of this name."""

    def make(name: str = "server", *options: str) -> Certificate:
        certificate, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
        command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        command += [*(options or ("-nodes",)), "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        return certificate, key

    return make


def peer(url: str) -> tuple[str | None, str]:
    """Return the version of TLS that a server speaks, and its certificate."""
    address = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((str(address.hostname), address.port or 443), timeout=60) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return secure.version(), ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"")


# ---- files ----


def test_a_valid_certificate_is_accepted(certify: Callable[..., Certificate]) -> None:
    certificate, key = certify()
    assert load_certificate(certificate, key).minimum_version == ssl.TLSVersion.TLSv1_2
    Settings(tls_cert=certificate, tls_key=key).validate()
    with pytest.raises(InvalidInput, match=r"^host"):  # a certificate is no key
        Settings(host="0.0.0.0", tls_cert=certificate, tls_key=key).validate()


def test_invalid_certificates_are_refused(certify: Callable[..., Certificate], tmp_path: Path) -> None:
    (certificate, key), (other, other_key) = certify(), certify("other")
    locked_certificate, locked_key = certify("locked", "-passout", "pass:secret")
    empty = tmp_path / "empty"
    empty.touch()
    for one, two, match in (
        (certificate, None, "^tls-key: expected both"),
        (None, key, "^tls-cert: expected both"),
        (certificate, tmp_path / "none", "^tls-key: cannot read"),
        (tmp_path / "none", key, "^tls-cert: cannot read"),
        (tmp_path, key, "^tls-cert: cannot read"),
        (certificate, other_key, "^tls-cert, tls-key"),
        (other, key, "^tls-cert, tls-key"),
        (certificate, empty, "^tls-cert, tls-key"),
        (empty, key, "^tls-cert, tls-key"),
        (key, certificate, "^tls-cert, tls-key"),
        (locked_certificate, locked_key, "^tls-cert, tls-key: .*password"),
    ):
        with pytest.raises(InvalidInput, match=match):
            Settings(tls_cert=one, tls_key=two).validate()


@pytest.mark.medium
def test_the_command_refuses_before_it_opens_anything(certify: Callable[..., Certificate], tmp_path: Path) -> None:
    certificate, _ = certify()
    done = stillhash("serve", str(tmp_path / "no collection"), "--tls-cert", str(certificate))
    assert done.returncode == 2 and "tls-key" in done.stderr and "Traceback" not in done.stderr


def test_the_client_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a certificate")
    for ca in (tmp_path / "none", tmp_path / "text", str(tmp_path / "none"), 7):
        for new_client in CLIENTS:
            with pytest.raises(InvalidInput, match=r"^ca"):
                new_client("https://127.0.0.1:1", ca=ca)


# ---- a server ----


@pytest.mark.slow
def test_https(template: Path, tmp_path: Path, certify: Callable[..., Certificate]) -> None:
    path, (certificate, key), (other, _) = copied(template, tmp_path / "c"), certify(), certify("other")
    token = add_key(tmp_path / "keys", "ann", "write")
    options = ("--keys", tmp_path / "keys", "--tls-cert", certificate, "--tls-key", key)
    with serve_command(tmp_path / "log", path, *options) as server:
        assert server.url.startswith("https://127.0.0.1:")
        version, presented = peer(server.url)
        assert version in ("TLSv1.2", "TLSv1.3") and presented.split() == certificate.read_text().split()
        for new_client in CLIENTS:
            with new_client(server.url, token, ca=certificate) as client:
                assert client.count() == 320 and client.flush() > 0
            with new_client(server.url, token, ca=str(certificate)) as client:
                assert client.count() == 320
            for ca in (None, other):  # which does not vouch for this server
                with new_client(server.url, token, ca=ca) as client, pytest.raises(Unreachable, match="certificate"):
                    client.count()
            plain = server.url.replace("https:", "http:")
            with new_client(plain, token, retries=0) as client, pytest.raises(Unreachable):
                client.count()
        with urllib3.PoolManager(ca_certs=str(certificate)) as pool:
            login = {"method": "POST", "url": f"{server.url}/login", "body": urlencode({"key": token})}
            headers = {"content-type": "application/x-www-form-urlencoded", "origin": server.url}
            reply = pool.request(**login, headers=headers, redirect=False)
            assert reply.status == 303 and "; Secure" in reply.headers["set-cookie"]
            session = {"cookie": reply.headers["set-cookie"].partition(";")[0]}
            assert pool.request("GET", f"{server.url}/c/c", headers=session, redirect=False).status == 200
