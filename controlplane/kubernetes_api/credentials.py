"""From a kubeconfig, or from inside a cluster, to what a connection needs: a server, its TLS context, headers.

Only what is inside the text is used. A path in a kubeconfig would be read on this server with this server's rights,
and a program in it would be run here: both are refused with words (a program, unless an admin allowed it). Nothing
here puts a token or a key in a message, a log or a repr.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from cryptography import x509

from controlplane.kubernetes_api.kubeconfig import (
    KubeconfigUnreadable,
    chosen_context,
    clean_token,
    entries,
    quoted,
    read_kubeconfig,
)
from controlplane.kubernetes_api.tokens import ExecToken, FixedToken, MountedToken, NoToken, TokenSource
from controlplane.remote_errors import Refused

# Codes of Refused.
KUBECONFIG_UNREADABLE = "kubeconfig_unreadable"
CONTEXT_UNKNOWN = "context_unknown"
SERVER_MISSING = "server_missing"
EXEC_NOT_ALLOWED = "exec_not_allowed"
AUTH_NOT_SUPPORTED = "auth_not_supported"
FILE_PATH_REFUSED = "file_path_refused"
CERTIFICATE_UNREADABLE = "certificate_unreadable"
CREDENTIALS_EXPIRED = "credentials_expired"
CREDENTIALS_MISSING = "credentials_missing"
TOKEN_UNREADABLE = "token_unreadable"
NOT_IN_CLUSTER = "not_in_cluster"

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_UNSUPPORTED = {
    "auth-provider": "an auth-provider, which Kubernetes has removed",
    "username": "a user name and password, which Kubernetes has removed",
    "as": "impersonation",
    "proxy-url": "a proxy",
}


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one API server. `tls` None: plain HTTP. `server_name`: whom the certificate must name instead of
    the server's host. `expires_at`: when the credentials end, where that is known.

    `headers()` gives the current credentials; after a 401, `renew()` says whether others could be had.
    """

    server: str
    tls: ssl.SSLContext | None
    token: TokenSource = field(default_factory=NoToken, repr=False)
    server_name: str | None = None
    warnings: tuple[str, ...] = ()
    expires_at: datetime | None = None

    def headers(self) -> dict[str, str]:
        token = self.token.current()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def renew(self) -> bool:
        return self.token.renew()


def access_from(
    credentials: Mapping[str, Any], *, allow_exec: bool = False, now: datetime | None = None
) -> Access:
    """The access that stored credentials give: {"in_cluster": true} or {"kubeconfig": text, "context": name}, the
    latter with "allow_exec" where an admin allowed a login program.

    Raises Refused with one of the codes above.
    """
    if credentials.get("in_cluster"):
        return access_in_cluster()
    text, context = credentials.get("kubeconfig"), credentials.get("context") or ""
    if not isinstance(text, str) or not text.strip():
        raise Refused(CREDENTIALS_MISSING, "The cluster has no kubeconfig: attach it again with one.")
    may_run = allow_exec or credentials.get("allow_exec") is True
    return access_of_kubeconfig(text, str(context), allow_exec=may_run, now=now)


def access_in_cluster(directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> Access:
    """The access of the pod that we run in. Its token is read again as the kubelet replaces it."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        authority = (directory / "ca.crt").read_text(encoding="ascii")
        (directory / "token").read_bytes()
    except OSError as error:
        raise Refused(NOT_IN_CLUSTER, f"No service account is mounted here: {error}.") from error
    if not host:
        raise Refused(NOT_IN_CLUSTER, "KUBERNETES_SERVICE_HOST is not set: this is not a pod.")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, _verifying(authority), MountedToken(directory / "token"))


def access_of_kubeconfig(
    text: str, context_name: str = "", *, allow_exec: bool = False, now: datetime | None = None
) -> Access:
    """The access of one context, the kubeconfig's current one without a name. Raises Refused."""
    config = _parsed(text)
    context = _context(config, context_name)
    cluster = _named(config, "clusters", "cluster", context.get("cluster"))
    user = _named(config, "users", "user", context.get("user"))
    _refuse_unsupported(cluster)
    _refuse_unsupported(user)
    server = _server(cluster)
    tls, warnings = _tls(server, cluster)
    expires_at = _present_certificate(tls, user, now or datetime.now(UTC))
    token = _token(user, allow_exec, has_certificate=expires_at is not None)
    token_end = _token_end(user.get("token"))
    _refuse_expired("token", token_end, now or datetime.now(UTC))
    ends = [end for end in (expires_at, token_end) if end]
    return Access(
        server, tls, token, cluster.get("tls-server-name") or None, warnings, min(ends, default=None)
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        return read_kubeconfig(text)
    except KubeconfigUnreadable as error:
        raise Refused(KUBECONFIG_UNREADABLE, str(error)) from None


def _context(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    try:
        wanted = chosen_context(config, name)
    except KubeconfigUnreadable as error:
        raise Refused(CONTEXT_UNKNOWN, str(error)) from None
    return _named(config, "contexts", "context", wanted)


def _named(config: Mapping[str, Any], plural: str, singular: str, name: Any) -> dict[str, Any]:
    """The content of one named entry. An unreadable or absent one is refused by its name."""
    for entry in entries(config, plural):
        if entry["name"] == name and isinstance(entry.get(singular), dict):
            content: dict[str, Any] = entry[singular]
            return content
    code = SERVER_MISSING if plural == "clusters" else CREDENTIALS_MISSING
    if plural == "contexts":
        code = KUBECONFIG_UNREADABLE
    named = f" named {quoted(name)}" if isinstance(name, str) else " that its context names"
    raise Refused(code, f"The kubeconfig has no {singular}{named}, or it is empty.")


def _refuse_unsupported(content: Mapping[str, Any]) -> None:
    for key in _PATHS:
        if content.get(key):
            raise Refused(
                FILE_PATH_REFUSED,
                f"The kubeconfig names a file ({key}), which this server will not read. Put its content into the"
                " kubeconfig: kubectl config view --flatten --minify --raw does so, and so does `yard cluster add`.",
            )
    for key, words in _UNSUPPORTED.items():
        if content.get(key):
            raise Refused(
                AUTH_NOT_SUPPORTED,
                f"The kubeconfig uses {words}. Make a service account for Trainyard and use its token.",
            )


def _server(cluster: Mapping[str, Any]) -> str:
    server = cluster.get("server")
    if not isinstance(server, str) or not _is_address(server):
        words = "its server is not an http:// or https:// address without a user name"  # which may have a password
        raise Refused(SERVER_MISSING, f"The kubeconfig points nowhere: {words}.")
    return server.rstrip("/")


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        is_plain = not (parts.username or parts.query or parts.fragment)
        return is_plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _tls(server: str, cluster: Mapping[str, Any]) -> tuple[ssl.SSLContext | None, tuple[str, ...]]:
    if server.startswith("http:"):
        return None, ("The server is reached without TLS: whoever is on the way reads the credentials.",)
    authority = _decoded(cluster, "certificate-authority-data")
    if cluster.get("insecure-skip-tls-verify"):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        words = "The server's certificate is not verified (insecure-skip-tls-verify): others can pose as the server."
        return context, (words,)
    return _verifying(authority.decode("ascii", "replace") if authority else None), ()


def _verifying(authority: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise Refused(
            CERTIFICATE_UNREADABLE, "The certificate authority's certificate cannot be read: it is not PEM."
        ) from error


def _decoded(content: Mapping[str, Any], key: str) -> bytes | None:
    value = content.get(key)
    if not value:
        return None
    try:
        return base64.b64decode("".join(str(value).split()), validate=True)
    except (binascii.Error, ValueError):
        raise Refused(CERTIFICATE_UNREADABLE, f"The kubeconfig's {key} is not base64.") from None


def _present_certificate(
    tls: ssl.SSLContext | None, user: Mapping[str, Any], now: datetime
) -> datetime | None:
    """Load the user's certificate into the context; when it ends, None without one."""
    certificate, key = _decoded(user, "client-certificate-data"), _decoded(user, "client-key-data")
    if not certificate or not key:
        return None
    try:
        ends_at = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        _refuse_expired("client certificate", ends_at, now)
        if tls is not None:
            _load_pair(tls, certificate, key)
    except (ValueError, ssl.SSLError):
        words = "The client certificate and its key cannot be read, or do not belong together."
        raise Refused(CERTIFICATE_UNREADABLE, words) from None
    return ends_at


def _load_pair(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL takes them from a file only: one that only we can read, for a moment."""
    with tempfile.NamedTemporaryFile(prefix="trainyard-") as file:  # made with mode 0600
        file.write(certificate + b"\n" + key)
        file.flush()
        tls.load_cert_chain(file.name, password="")


def _refuse_expired(what: str, ends_at: datetime | None, now: datetime) -> None:
    if ends_at and ends_at <= now:
        words = f"The kubeconfig's {what} ended on {ends_at:%Y-%m-%d at %H:%M} UTC: get a new one."
        raise Refused(CREDENTIALS_EXPIRED, words)


def _token(user: Mapping[str, Any], allow_exec: bool, *, has_certificate: bool) -> TokenSource:
    plugin = user.get("exec")
    if plugin:
        if not allow_exec:
            words = (
                "The kubeconfig runs a program to log in (exec), which would run on this server. Who runs the server"
                " may allow that (TRAINYARD_ALLOW_KUBECONFIG_EXEC), then an admin for this cluster; a service account's"
                " token needs no program."
            )
            raise Refused(EXEC_NOT_ALLOWED, words)
        return ExecToken(plugin if isinstance(plugin, dict) else {})
    if user.get("token"):
        try:
            return FixedToken(clean_token(user["token"]))
        except ValueError as error:
            raise Refused(TOKEN_UNREADABLE, f"The kubeconfig's token cannot be used. {error}") from None
    if not has_certificate:
        raise Refused(CREDENTIALS_MISSING, "The kubeconfig's user has neither a token nor a certificate.")
    return NoToken()


def _token_end(token: Any) -> datetime | None:
    """When a token ends, if it is one that says so (a JWT). Nothing is verified: the server does that."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3:
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
