"""Which headers pass between a browser and a job's web server, and which never do.

A job's page is foreign code on our host. It must not see our credentials, must not set cookies for our
host, and must not act as the user: its answers are sandboxed into an origin of their own.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from controlplane.live.wire import Headers

SANDBOX = b"sandbox allow-scripts allow-forms allow-popups allow-downloads allow-modals"
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
NEVER_TO_A_POD = frozenset({
    b"cookie", b"authorization", b"x-csrftoken", b"host", b"origin", b"referer", b"forwarded", b"expect",
    b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix",
})  # fmt: skip
# Cookies and storage of our host, and what browsers remember about it, are not the job's to set.
NEVER_TO_A_BROWSER = frozenset({
    b"set-cookie", b"set-cookie2", b"clear-site-data", b"strict-transport-security", b"public-key-pins",
    b"service-worker-allowed", b"alt-svc", b"nel", b"report-to", b"reporting-endpoints", b"referrer-policy",
    b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-allow-methods",
    b"access-control-allow-headers", b"access-control-expose-headers", b"access-control-max-age",
    b"origin-agent-cluster", b"www-authenticate",
    b"date", b"server",  # our own server writes these once
})  # fmt: skip
WEBSOCKET = frozenset({
    b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
})  # fmt: skip


def to_pod(headers: Headers, *, host: str, prefix: str, scheme: str, client: str) -> Headers:
    """Request headers as the job's server gets them. `host` is the public one, `prefix` the path in front."""
    named_by_connection = _named_by_connection(headers)
    dropped = HOP_BY_HOP | NEVER_TO_A_POD | WEBSOCKET | named_by_connection
    passed = [(name, value) for name, value in headers if name.lower() not in dropped]
    forwarded = {"host": host, "proto": scheme, "prefix": prefix, "for": client}
    return passed + [(f"x-forwarded-{name}".encode(), value.encode()) for name, value in forwarded.items()]


def to_browser(
    headers: Headers, *, address: str, prefix: str, public_prefix: str, is_ticketed: bool
) -> Headers:
    """Response headers as the browser gets them; `address` is the pod's host and port.

    `prefix` is the service's path with the ticket, if the request had one, `public_prefix` without it.
    With a ticket any origin may read the answer: the ticket in the address was the credential, no cookie is.
    """
    dropped = HOP_BY_HOP | NEVER_TO_A_BROWSER | _named_by_connection(headers)
    passed = []
    for name, value in headers:
        if name.lower() in dropped:
            continue
        if name.lower() in (b"location", b"content-location"):
            value = _location(value.decode("latin-1"), address, prefix, public_prefix).encode("latin-1")
        passed.append((name, value))
    passed += [(b"content-security-policy", SANDBOX), (b"referrer-policy", b"no-referrer")]
    return passed + cross_origin() if is_ticketed else passed


def cross_origin() -> Headers:
    """Lets the sandboxed page (whose origin is null) read what its own address gave it."""
    return [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
        (b"access-control-allow-headers", b"*"),
        (b"access-control-expose-headers", b"*"),
    ]


def _location(location: str, address: str, prefix: str, public_prefix: str) -> str:
    """A redirect to the pod's own root stays below the service; others are left as they are."""
    parts = urlsplit(location)
    if parts.netloc == address:
        location = parts._replace(scheme="", netloc="").geturl() or "/"
    elif parts.netloc or not location.startswith("/"):
        return location
    if location == public_prefix or location.startswith(f"{public_prefix}/"):
        location = location[len(public_prefix) :]
    return prefix + location


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(b","))
