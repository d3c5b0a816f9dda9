"""Filter the headers that pass between a browser and a job's web server.

A job's page is untrusted code on its own origin. It must not receive our credentials, and its headers must
not affect the control plane's origin, which may share a domain with it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from controlplane.config import service_tokens
from controlplane.live.asgi import Headers
from jobs.gateway import cookies

# Only the job's own host may frame its pages, against clickjacking.
FRAMES = b"frame-ancestors 'self'"
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
# The job's server gets its own address as Host and Origin, as servers that check them expect; the gateway has
# checked the real ones already. Cookies and Authorization are handled separately.
NEVER_TO_A_POD = frozenset({
    b"cookie", b"authorization", b"host", b"origin", b"referer", b"forwarded", b"expect",
    b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix", b"x-real-ip",
    service_tokens.HEADER,
})  # fmt: skip
# Headers that would affect more than the job's own host: cookies, TLS policy and reporting of parent domains.
# Reports would also leak our redirects' addresses, which contain tickets.
NEVER_TO_A_BROWSER = frozenset({
    b"set-cookie", b"set-cookie2", b"clear-site-data", b"strict-transport-security", b"public-key-pins",
    b"alt-svc", b"nel", b"report-to", b"reporting-endpoints",
    # Written by our own server, so that a browser would get them twice.
    b"date", b"server",
})  # fmt: skip
WEBSOCKET = frozenset({
    b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
})  # fmt: skip


def to_pod(
    headers: Headers, *, host: str, scheme: str, client: str, has_own_authorization: bool, service_token: str
) -> Headers:
    """Return the request headers for the job's server: drops hop-by-hop headers and our credentials, and sets
    X-Forwarded-* from `host` (the public host of the job's port), `scheme` and `client` (the client's address).
    `has_own_authorization`: the browser authenticated with our cookie, so the Authorization header is meant for the
    job. `service_token`: the token by which the job's server recognises the gateway."""
    dropped = HOP_BY_HOP | NEVER_TO_A_POD | WEBSOCKET | _named_by_connection(headers)
    if has_own_authorization:
        dropped -= {b"authorization"}
    passed = [(name, value) for name, value in headers if name.lower() not in dropped]
    forwarded = {"host": host, "proto": scheme, "for": client}
    passed += [(f"x-forwarded-{name}".encode(), value.encode("latin-1")) for name, value in forwarded.items()]
    passed.append((service_tokens.HEADER, service_token.encode()))
    return passed + cookies.to_pod(headers)


def to_browser(headers: Headers, *, address: str) -> Headers:
    """Return the response headers to send to the browser. Drops hop-by-hop headers and those that would affect other
    hosts, limits cookies to this host, rewrites redirects to the pod's own `address` (host and port), and adds a
    Content-Security-Policy that forbids other sites to frame the page."""
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
    """Return the Location header; a redirect to the pod server's own address is rewritten to a path on its
    public host."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if parts.netloc != address:
        return location
    # A path that begins with two slashes would name another host.
    path = "/" + parts.path.lstrip("/")
    return parts._replace(scheme="", netloc="", path=path).geturl()


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in values for part in value.split(b","))
