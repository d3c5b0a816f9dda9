"""Credentials of one API server, from a kubeconfig or a pod's service account, by the official
`kubernetes.config`.

A kubeconfig is a user's text: only the keys in `_KEPT` are passed to the official loader, which would otherwise
read this server's files, contact an identity provider or run a program. No token or key appears in a message, a
log or a repr.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from cryptography import x509
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader
from kubernetes.config.kube_config import KubeConfigLoader
from urllib3.connection import HTTPConnection

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

# The codes of Refused exceptions.
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
# The keys of a kubeconfig's cluster and user that are passed to the official loader: others would make it read files or
# start programs of this machine.
_KEPT = {
    "cluster": ("server", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name"),
    "user": ("client-certificate-data", "client-key-data"),
}
# The number of pooled connections: enough for the 40 threads of a cluster's worker pools and the loop's own
# requests. Further ones are opened and closed per request.
CONNECTIONS = 48
# Detects a vanished peer after a minute, even on a connection on which only the peer sends.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
# The official loader's table of temporary files is shared by the whole process, so only one thread loads at a time.
_loading = threading.Lock()
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_UNSUPPORTED = {
    "auth-provider": "an auth-provider, which Kubernetes has removed",
    "username": "a user name and password, which Kubernetes has removed",
    "as": "impersonation",
    "proxy-url": "a proxy",
}


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one API server. `tls` None: plain HTTP. `server_name`: the name that its certificate must have if
    that is not the host. `warnings`: sentences for the preflight. `expires_at`: when the credentials expire, None if
    unknown."""

    server: str
    tls: ssl.SSLContext | None
    token: TokenSource = field(default_factory=NoToken, repr=False)
    server_name: str | None = None
    warnings: tuple[str, ...] = ()
    expires_at: datetime | None = None

    def headers(self) -> dict[str, str]:
        """Return the Authorization header with the current token; {} if a client certificate authenticates instead.
        May run a login program. Raise Refused or Unreachable if no token can be obtained."""
        token = self.token.current()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Drop the token in `refused`, headers that the server answered with 401. Return whether `headers` may give
        another one."""
        return self.token.renew(refused.get("Authorization", "").removeprefix("Bearer ") or None)

    def configuration(self) -> Configuration:
        """Return a configuration of the official client that ignores proxy variables and does not retry."""
        made = Configuration(
            host=self.server,
            retries=False,
            tls_server_name=self.server_name,
            connection_pool_maxsize=CONNECTIONS,
            socket_options=[*HTTPConnection.default_socket_options, *KEEPALIVE],
        )
        made.proxy = None
        made.verify_ssl = self.tls is None or self.tls.verify_mode == ssl.CERT_REQUIRED
        return made


def access_from(
    credentials: Mapping[str, Any], *, allow_exec: bool = False, now: datetime | None = None
) -> Access:
    """Return the access for a cluster's stored credentials: {"in_cluster": true} or {"kubeconfig": text, "context":
    name}. `allow_exec`, or "allow_exec" in them, permits a login program. `now`: when certificates must be valid,
    None for the present. Raise Refused with a code of this module if they cannot be used."""
    if credentials.get("in_cluster"):
        return access_in_cluster()
    text, context = credentials.get("kubeconfig"), credentials.get("context") or ""
    if not isinstance(text, str) or not text.strip():
        raise Refused(CREDENTIALS_MISSING, "The cluster has no kubeconfig: attach it again with one.")
    may_run = allow_exec or credentials.get("allow_exec") is True
    return access_of_kubeconfig(text, str(context), allow_exec=may_run, now=now)


def access_in_cluster(directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> Access:
    """Return the access with the service account of the pod in which this process runs. The token is read again when
    the kubelet replaces it. Raise Refused(NOT_IN_CLUSTER) without a service account."""
    configuration = Configuration()
    try:
        loader = InClusterConfigLoader(directory / "token", directory / "ca.crt", environ=environ)
        loader.load_and_set(configuration)
        tls = _verifying(configuration)
    except (ConfigException, OSError, ValueError) as error:
        raise Refused(NOT_IN_CLUSTER, f"No service account is mounted here: {error}") from error
    return Access(configuration.host, tls, MountedToken(loader, configuration))


def access_of_kubeconfig(
    text: str, context_name: str = "", *, allow_exec: bool = False, now: datetime | None = None
) -> Access:
    """Return the access for one context of a kubeconfig, by default the current one. `allow_exec`: it may run a login
    program. `now`: when certificates must be valid, None for the present. Raise Refused with the reason if it cannot
    be used."""
    config = _parsed(text)
    context = _context(config, context_name)
    cluster = _named(config, "clusters", "cluster", context.get("cluster"))
    user = _named(config, "users", "user", context.get("user"))
    _refuse_unsupported(cluster)
    _refuse_unsupported(user)
    _require_server(cluster)
    login = _login(user, allow_exec)
    token_end = _token_end(user.get("token"))
    _refuse_expired("token", token_end, now or datetime.now(UTC))
    configuration, tls, certificate_end = _loaded(cluster, user, now or datetime.now(UTC))
    ends = [end for end in (certificate_end, token_end) if end]
    return Access(
        configuration.host,
        tls,
        login,
        configuration.tls_server_name or None,
        _warnings(configuration),
        min(ends, default=None),
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
    """Return the content of an entry of a kubeconfig's list `plural` ("users"): the field `singular` ("user") of the
    entry named `name`. Raise Refused if there is none."""
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


def _require_server(cluster: Mapping[str, Any]) -> None:
    server = cluster.get("server")
    if not isinstance(server, str) or not _is_address(server):
        # The URL may contain a password, so it is not quoted.
        words = "its server is not an http:// or https:// address without a user name"
        raise Refused(SERVER_MISSING, f"The kubeconfig has no usable server address: {words}.")


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        is_plain = not (parts.username or parts.query or parts.fragment)
        return is_plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # `port` raises it beyond 65535, `urlsplit` for a malformed IPv6 address.
        return False


def _loaded(
    cluster: Mapping[str, Any], user: Mapping[str, Any], now: datetime
) -> tuple[Configuration, ssl.SSLContext | None, datetime | None]:
    """Return the official client's configuration, a TLS context (None for http:), and when the client certificate
    expires (None without one). Raise Refused for a certificate or key that is unreadable, or has expired at `now`.

    The loader and OpenSSL read keys from files. These exist only during this call, in a private directory; the loader
    by itself would leave them in /tmp until the process ends.
    """
    configuration = Configuration()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": _kept("cluster", cluster)}],
        "users": [{"name": "c", "user": _kept("user", user)}],
    }
    with _loading, tempfile.TemporaryDirectory(prefix="trainyard-") as directory:
        try:
            KubeConfigLoader(config, temp_file_path=directory).load_and_set(configuration)
        except ValueError:
            words = "A certificate or key of the kubeconfig is not base64."
            raise Refused(CERTIFICATE_UNREADABLE, words) from None
        if configuration.host.startswith("http:"):
            return configuration, None, None
        tls = _verifying(configuration)
        return configuration, tls, _present_certificate(tls, configuration, now)


def _kept(singular: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a kubeconfig's cluster or user (`singular`) that the official loader may read. A client
    certificate without its key, or a key without its certificate, is left out."""
    kept = {key: content[key] for key in _KEPT[singular] if content.get(key)}
    if not {"client-certificate-data", "client-key-data"} <= kept.keys():
        kept.pop("client-certificate-data", None)
        kept.pop("client-key-data", None)
    return kept


def _warnings(configuration: Configuration) -> tuple[str, ...]:
    if configuration.host.startswith("http:"):
        return ("The server is reached without TLS: the network between reads the credentials.",)
    if not configuration.verify_ssl:
        return (
            "The server's certificate is not verified (insecure-skip-tls-verify): others can impersonate the server.",
        )
    return ()


def _verifying(configuration: Configuration) -> ssl.SSLContext:
    """Return a TLS context that verifies the server, unless the kubeconfig disables that. Raise Refused if the
    certificate authority is unreadable."""
    if not configuration.verify_ssl:
        context = ssl.create_default_context()
        # In this order: Python refuses CERT_NONE while check_hostname is set.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    except (ssl.SSLError, ValueError) as error:
        raise Refused(
            CERTIFICATE_UNREADABLE, "The certificate authority's certificate cannot be read: it is not PEM."
        ) from error


def _present_certificate(tls: ssl.SSLContext, configuration: Configuration, now: datetime) -> datetime | None:
    """Load the user's client certificate into the TLS context. Return when it expires, None without one. Raise
    Refused if it is unreadable or has expired at `now`."""
    if not configuration.cert_file or not configuration.key_file:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(Path(configuration.cert_file).read_bytes())
        _refuse_expired("client certificate", certificate.not_valid_after_utc, now)
        # An empty password, because OpenSSL would otherwise ask for one on the terminal.
        tls.load_cert_chain(configuration.cert_file, configuration.key_file, password="")
    except (ValueError, ssl.SSLError):
        words = "The client certificate and its key cannot be read, or do not belong together."
        raise Refused(CERTIFICATE_UNREADABLE, words) from None
    return certificate.not_valid_after_utc


def _refuse_expired(what: str, ends_at: datetime | None, now: datetime) -> None:
    if ends_at and ends_at <= now:
        words = f"The kubeconfig's {what} ended on {ends_at:%Y-%m-%d at %H:%M} UTC: get a new one."
        raise Refused(CREDENTIALS_EXPIRED, words)


def _login(user: Mapping[str, Any], allow_exec: bool) -> TokenSource:
    """Return the source of a user's tokens; with a client certificate one without tokens. Raise Refused if the user
    has neither, or needs a login program and `allow_exec` is False."""
    plugin = user.get("exec")
    if plugin:
        if not allow_exec:
            words = (
                "The kubeconfig runs a program to log in (exec), which would run on this server. The operator of the"
                " server may allow that (TRAINYARD_ALLOW_KUBECONFIG_EXEC), then an admin for this cluster; a service"
                " account's token needs no program."
            )
            raise Refused(EXEC_NOT_ALLOWED, words)
        return ExecToken(plugin if isinstance(plugin, dict) else {})
    if user.get("token"):
        try:
            return FixedToken(clean_token(user["token"]))
        except ValueError as error:
            raise Refused(TOKEN_UNREADABLE, f"The kubeconfig's token cannot be used. {error}") from None
    if not (user.get("client-certificate-data") and user.get("client-key-data")):
        raise Refused(CREDENTIALS_MISSING, "The kubeconfig's user has neither a token nor a certificate.")
    return NoToken()


def _token_end(token: Any) -> datetime | None:
    """Return when a JWT expires; None for other tokens. Its signature is not verified, because the server does that."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3:
        return None
    try:
        # JWTs omit the padding of base64, without which Python does not decode it.
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (ValueError, TypeError, KeyError, OverflowError):
        # Not a JWT: such a token is valid too, but its expiry is unknown.
        return None
