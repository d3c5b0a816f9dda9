"""From a kubeconfig to an access, and every way in which one is refused."""

import base64
import ssl
import sys
import tempfile
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.kubernetes_api import credentials as codes
from controlplane.kubernetes_api.credentials import (
    access_from,
    access_in_cluster,
    access_of_kubeconfig,
)
from controlplane.kubernetes_api.tokens import EXEC_FAILED

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def made_until(end: datetime) -> tuple[str, str]:
    """A certificate and its key, as a kubeconfig has them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(end - timedelta(days=365)).not_valid_after(end)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return base64.b64encode(certificate).decode(), base64.b64encode(private).decode()


CERTIFICATE, KEY = made_until(NOW + timedelta(days=30))


def text(user: dict | None = None, **cluster) -> str:
    cluster = {"server": "https://kube.example:6443", "certificate-authority-data": CERTIFICATE, **cluster}
    return orjson.dumps({
        "current-context": "main",
        "contexts": [
            {"name": "main", "context": {"cluster": "c", "user": "u"}},
            {"name": "lost", "context": {"cluster": "elsewhere", "user": "u"}},
            {"name": "nobody", "context": {"cluster": "c", "user": "elsewhere"}},
        ],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret-token"} if user is None else user}],
    }).decode()  # fmt: skip


def refusal(config: str, context: str = "", **options) -> EngineRefused:
    with pytest.raises(EngineRefused) as refused:
        access_of_kubeconfig(config, context, now=NOW, **options)
    assert "secret" not in refused.value.message
    return refused.value


def jwt(end: datetime) -> str:
    claims = base64.urlsafe_b64encode(orjson.dumps({"exp": end.timestamp()})).decode().rstrip("=")
    return f"e30.{claims}.signature"


def test_a_token():
    access = access_of_kubeconfig(text(), now=NOW)
    assert access.server == "https://kube.example:6443"
    assert access.headers() == {"Authorization": "Bearer secret-token"}
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_REQUIRED
    assert access.tls.check_hostname
    assert not access.renew(access.headers())
    assert "secret-token" not in repr(access)
    assert access.warnings == ()


def test_a_certificate():
    access = access_of_kubeconfig(
        text({"client-certificate-data": CERTIFICATE, "client-key-data": KEY}), now=NOW
    )
    assert access.headers() == {}
    assert access.expires_at == NOW + timedelta(days=30)


def test_another_name_of_the_server():
    assert access_of_kubeconfig(text(**{"tls-server-name": "inside"})).server_name == "inside"


@pytest.mark.parametrize(
    "config", ["", "{", "a: b: c", "[]", "contexts: {}", "&a [*a]", "!!python/object:os.system {}", "\x00"]
)
def test_what_is_no_kubeconfig(config):
    with pytest.raises(EngineRefused) as refused:
        access_of_kubeconfig(config)
    assert refused.value.code == codes.KUBECONFIG_UNREADABLE


def test_a_huge_text_is_not_read():
    assert refusal("a" * 300_000).code == codes.KUBECONFIG_UNREADABLE


def bombs() -> list[str]:
    """A few hundred bytes each, which become gigabytes by merge keys and by aliases."""
    merged = "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 9))
    listed = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    return [
        f"m0: &m0 {{k: v}}\n{merged}contexts: [{{name: c}}]",
        f"a0: &a0 [x]\n{listed}contexts: [{{name: *a8}}]",
    ]


@pytest.mark.parametrize("bomb", bombs(), ids=["merged", "listed"])
def test_a_yaml_bomb_is_refused_before_it_grows(bomb):
    assert "aliases" in refusal(bomb).message


def test_names_are_texts_and_short_ones_in_messages():
    odd = "current-context: [c]\ncontexts: [{name: [c], context: {}}, {name: %s}]" % ("n" * 5000)
    assert refusal(odd).code == codes.CONTEXT_UNKNOWN
    assert len(refusal(odd, "w" * 5000).message) < 400


@pytest.mark.parametrize(
    "token",
    [
        "secret\ntoken",
        "secret\rtoken",
        "secret\0token",
        "secret\u2026",
        "secret token",
        "s" * 20_000,
        ["secret"],
    ],
)
def test_a_token_that_no_header_can_carry(token):
    assert refusal(text({"token": token})).code == codes.TOKEN_UNREADABLE


def test_the_end_of_a_line_is_no_part_of_a_token():
    access = access_of_kubeconfig(text({"token": "secret-token\n"}), now=NOW)
    assert access.headers() == {"Authorization": "Bearer secret-token"}


@pytest.mark.parametrize(
    "odd", ["word", {"command": "x\0y"}, {"command": "x", "env": ["secret"]}, {"command": "x", "args": 7}]
)
def test_a_login_program_that_cannot_be_read(odd):
    access = access_of_kubeconfig(text({"exec": odd}), allow_exec=True, now=NOW)
    with pytest.raises((EngineRefused, EngineUnreachable)) as failed:
        access.headers()
    assert "secret" not in str(failed.value)


def test_a_password_in_the_servers_address_is_not_quoted():
    assert refusal(text(server="https://me:secret@kube.example")).code == codes.SERVER_MISSING


def test_bad_yaml_is_not_quoted():
    with pytest.raises(EngineRefused) as refused:
        access_of_kubeconfig("users:\n- token: hunter2 {: x\n  ]")
    assert "hunter2" not in refused.value.message
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("context", "code"),
    [
        ("other", codes.CONTEXT_UNKNOWN),
        ("lost", codes.SERVER_MISSING),
        ("nobody", codes.CREDENTIALS_MISSING),
    ],
)
def test_contexts_that_lead_nowhere(context, code):
    assert refusal(text(), context).code == code


def test_an_unknown_context_is_told_which_there_are():
    assert "main, lost, nobody" in refusal(text(), "other").message


@pytest.mark.parametrize(
    "server",
    [
        "",
        None,
        7,
        "kube.example",
        "https://",
        "ftp://kube",
        "https://me:pw@kube",
        "https://kube:70000",
        "//x",
    ],
)
def test_a_server_that_is_none(server):
    assert refusal(text(server=server)).code == codes.SERVER_MISSING


@pytest.mark.parametrize(
    ("user", "code"),
    [
        ({}, codes.CREDENTIALS_MISSING),
        ({"client-certificate-data": CERTIFICATE}, codes.CREDENTIALS_MISSING),
        ({"token": "t", "auth-provider": {"name": "gcp"}}, codes.AUTH_NOT_SUPPORTED),
        ({"username": "admin", "password": "secret"}, codes.AUTH_NOT_SUPPORTED),
        ({"token": "t", "as": "root"}, codes.AUTH_NOT_SUPPORTED),
        ({"client-certificate": "/etc/admin.crt"}, codes.FILE_PATH_REFUSED),
        ({"tokenFile": "/etc/shadow"}, codes.FILE_PATH_REFUSED),
        ({"exec": {"command": "aws"}}, codes.EXEC_NOT_ALLOWED),
        ({"client-certificate-data": "%%%", "client-key-data": KEY}, codes.CERTIFICATE_UNREADABLE),
        (
            {"client-certificate-data": CERTIFICATE, "client-key-data": "AAAA"},
            codes.CERTIFICATE_UNREADABLE,
        ),
        ({"token": jwt(NOW - timedelta(hours=1))}, codes.CREDENTIALS_EXPIRED),
    ],
)
def test_users_that_are_refused(user, code):
    assert refusal(text(user)).code == code


@pytest.mark.parametrize(
    ("cluster", "code"),
    [
        ({"certificate-authority": "/etc/ca.crt"}, codes.FILE_PATH_REFUSED),
        ({"certificate-authority-data": "AAAA"}, codes.CERTIFICATE_UNREADABLE),
        ({"proxy-url": "http://proxy"}, codes.AUTH_NOT_SUPPORTED),
    ],
)
def test_clusters_that_are_refused(cluster, code):
    assert refusal(text(**cluster)).code == code


def test_a_certificate_that_has_ended():
    certificate, key = made_until(NOW - timedelta(days=1))
    found = refusal(text({"client-certificate-data": certificate, "client-key-data": key}))
    assert found.code == codes.CREDENTIALS_EXPIRED
    assert "2026-11-20 at 12:00 UTC" in found.message


def test_when_a_token_ends_is_known():
    assert access_of_kubeconfig(
        text({"token": jwt(NOW + timedelta(hours=1))}), now=NOW
    ).expires_at == NOW + timedelta(hours=1)


@pytest.mark.parametrize("cluster", [{"insecure-skip-tls-verify": True}, {"server": "http://kube.example"}])
def test_what_is_not_safe_is_allowed_with_a_warning(cluster):
    assert len(access_of_kubeconfig(text(**cluster), now=NOW).warnings) == 1


def plugin(script: str) -> dict:
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": ["-c", script]}}


def test_a_login_program_runs_where_it_is_allowed_and_sees_no_secret(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    script = "import os, json; print(json.dumps({'status': {'token': str('DATABASE_URL' in os.environ)}}))"
    credentials = {"kubeconfig": text(plugin(script)), "context": "main"}
    with pytest.raises(EngineRefused) as refused:
        access_from(credentials)
    assert refused.value.code == codes.EXEC_NOT_ALLOWED
    access = access_from({**credentials, "allow_exec": True})
    assert access.headers() == {"Authorization": "Bearer False"}
    assert access.renew(access.headers())


def test_callers_that_were_refused_the_same_token_share_one_login(tmp_path):
    count = f"open({str(tmp_path / 'logins')!r}, 'a+')"
    script = f"import json; file = {count}; file.write('x'); file.seek(0); found = file.read(); "
    script += "print(json.dumps({'status': {'token': found}}))"
    access = access_of_kubeconfig(text(plugin(script)), allow_exec=True, now=NOW)
    refused = access.headers()
    assert access.renew(refused)
    assert access.headers() == {"Authorization": "Bearer xx"}
    assert access.renew(refused)
    assert access.headers() == {"Authorization": "Bearer xx"}


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ('print(\'{"status": {"token": "secret\\\\ntoken"}}\')', EngineRefused),
        ("raise SystemExit('secret')", EngineUnreachable),
        ("print('secret')", EngineRefused),
        ("print('{}')", EngineRefused),
    ],
)
def test_a_login_program_that_fails(script, error):
    access = access_of_kubeconfig(text(plugin(script)), allow_exec=True, now=NOW)
    with pytest.raises(error) as failed:
        access.headers()
    assert "secret" not in str(failed.value)


def test_a_login_program_that_is_not_there():
    access = access_of_kubeconfig(text({"exec": {"command": "no-such-program"}}), allow_exec=True, now=NOW)
    with pytest.raises(EngineRefused) as refused:
        access.headers()
    assert refused.value.code == EXEC_FAILED


def test_inside_a_cluster(tmp_path):
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(EngineRefused) as refused:
        access_in_cluster(tmp_path, environ)
    assert refused.value.code == codes.NOT_IN_CLUSTER
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(CERTIFICATE))
    (tmp_path / "token").write_text("first\n")
    access = access_in_cluster(tmp_path, environ)
    assert access.server == "https://10.0.0.1:443"
    assert access.headers() == {"Authorization": "Bearer first"}
    with pytest.raises(EngineRefused):
        access_in_cluster(tmp_path, {})


def test_a_mounted_token_is_read_again(tmp_path):
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(CERTIFICATE))
    path = tmp_path / "token"
    path.write_text("first")
    access = access_in_cluster(tmp_path, environ)
    path.write_text("second")
    assert access.token.current() == "first"  # for a minute
    access.token._loader.token_expires_at -= timedelta(seconds=61)
    assert access.token.current() == "second"
    path.write_text("third")
    refused = access.headers()
    assert access.renew(refused)
    assert access.token.current() == "third"
    assert access.renew(refused)  # for another caller, whose answer came later
    refused = access.headers()
    assert not access.renew(refused)
    path.write_text("secret\ntoken")
    with pytest.raises(EngineUnreachable) as failed:
        access.renew(refused)
    assert "secret" not in str(failed.value)
    path.unlink()
    with pytest.raises(EngineUnreachable):
        access.renew(refused)


def test_keys_stay_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    user = {"client-certificate-data": CERTIFICATE, "client-key-data": KEY}
    first, second = access_of_kubeconfig(text(user), now=NOW), access_of_kubeconfig(text(user), now=NOW)
    assert first.expires_at == second.expires_at
    assert list(tmp_path.iterdir()) == []


def test_the_official_loader_sees_no_key_of_a_kubeconfig_that_reads_calls_or_runs(monkeypatch):
    """Also of one that the refusals above may miss one day."""
    monkeypatch.setattr(codes, "_refuse_unsupported", lambda content: None)
    oidc = {"name": "oidc", "config": {"id-token": "e30.e30.e30", "idp-issuer-url": "http://127.0.0.1:9"}}
    user = {"token": "t", "tokenFile": "/etc/shadow", "client-key": "/etc/shadow", "auth-provider": oidc}
    access = access_of_kubeconfig(
        text(user, **{"certificate-authority": "/etc/hostname", "proxy-url": "http://p"})
    )
    assert access.headers() == {"Authorization": "Bearer t"}
    assert access.configuration().proxy is None


def test_a_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert access_of_kubeconfig(text(), now=NOW).configuration().proxy is None
