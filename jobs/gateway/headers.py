"""Which headers pass between a browser and a job's web server, and which never do.

A job's page is foreign code on an origin of its own. It must not see our credentials, and what it says of its origin
must not reach the control plane's, which may share a domain with it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from controlplane.config import service_tokens
from controlplane.live.asgi import Headers
from jobs.gateway import cookies

# Nobody else's page may show a job's page in a frame and have clicks land there.
FRAMES = b"frame-ancestors 'self'"
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
# The job's server sees itself asked at its own address, as servers that check Host and Origin want it; that origin and
# host were right was checked here. Cookies and authorization pass apart from the others.
NEVER_TO_A_POD = frozenset({
    b"cookie", b"authorization", b"host", b"origin", b"referer", b"forwarded", b"expect",
    b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix", b"x-real-ip",
    service_tokens.HEADER,
})  # fmt: skip
# What would reach beyond the job's own host: cookies of the whole domain, TLS and reports of its parents, and the
# addresses of our redirects, which have tickets in them.
NEVER_TO_A_BROWSER = frozenset({
    b"set-cookie", b"set-cookie2", b"clear-site-data", b"strict-transport-security", b"public-key-pins",
    b"alt-svc", b"nel", b"report-to", b"reporting-endpoints",
    # Our own server writes these once.
    b"date", b"server",
})  # fmt: skip
WEBSOCKET = frozenset({
    b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
})  # fmt: skip


def to_pod(
    headers: Headers, *, host: str, scheme: str, client: str, has_own_authorization: bool, service_token: str
) -> Headers:
    """Request headers as the job's server gets them. `host` is the public one; `has_own_authorization`: the browser
    came in with our cookie, so the Authorization header is the job's; `service_token`: the job's."""
    dropped = HOP_BY_HOP | NEVER_TO_A_POD | WEBSOCKET | _named_by_connection(headers)
    if has_own_authorization:
        dropped -= {b"authorization"}
    passed = [(name, value) for name, value in headers if name.lower() not in dropped]
    forwarded = {"host": host, "proto": scheme, "for": client}
    passed += [(f"x-forwarded-{name}".encode(), value.encode("latin-1")) for name, value in forwarded.items()]
    passed.append((service_tokens.HEADER, service_token.encode()))
    return passed + cookies.to_pod(headers)


def to_browser(headers: Headers, *, address: str) -> Headers:
    """Response headers as the browser gets them; `address` is the pod's host and port."""
    dropped = HOP_BY_HOP | NEVER_TO_A_BROWSER | _named_by_connection(headers)
    passed = []
    for name, value in headers:
        if name.lower() == b"set-cookie":
            cookie = cookies.from_pod(value)
            passed += [(b"set-cookie", cookie)] if cookie is not None else []
        elif name.lower() in (b"location", b"content-location"):
            passed.append((name, _location(value.decode("latin-1"), address).encode("latin-1")))
        elif name.lower() not in dropped:
            passed.append((name, value))
    return [*passed, (b"content-security-policy", FRAMES)]


def _location(location: str, address: str) -> str:
    """Return the Location header; a redirect to the pod server's own address is rewritten to its public host."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if parts.netloc != address:
        return location
    # Two slashes would begin another host's name.
    path = "/" + parts.path.lstrip("/")
    return parts._replace(scheme="", netloc="", path=path).geturl()


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(b","))
