"""Cookies on a job's host. Ours authenticates the browser and is never forwarded to the job; the job's own
cookies are forwarded, limited to this host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.conf import settings

from controlplane.live.asgi import Headers, Scope

_OURS = re.compile(rb"(?:__(?:host|secure)-)?yard_", re.IGNORECASE)


def service_cookie_name() -> str:
    """Return the name of our cookie; over TLS it has the prefix `__Host-`."""
    # With this prefix sibling hosts cannot set the cookie.
    return f"{'__Host-' if is_secure() else ''}yard_service"


def is_secure() -> bool:
    """Return whether browsers reach the hosts of jobs over TLS."""
    is_https: bool = settings.SERVICES.scheme == "https"
    return is_https


def set_cookie(name: str, value: str, seconds: int) -> tuple[bytes, bytes]:
    """Return a Set-Cookie header for this host alone, valid for `seconds`: HttpOnly, and not sent with other sites'
    requests."""
    secure = "; Secure" if is_secure() else ""
    text = f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    return b"set-cookie", text.encode("ascii")


def values_of(scope: Scope, name: str) -> Iterator[str]:
    """Yield every value of this cookie: a job's script can add a second one with a longer path."""
    for header, value in scope["headers"]:
        for pair in value.split(b";") if header == b"cookie" else ():
            found, _, text = pair.strip().partition(b"=")
            if found == name.encode():
                yield text.decode("latin-1")


def to_pod(headers: Headers) -> Headers:
    """Return the request's Cookie headers without our cookies; [] if no others are left."""
    kept: Headers = []
    for name, value in headers:
        if name.lower() == b"cookie":
            pairs = [pair.strip() for pair in value.split(b";") if not _OURS.match(pair.strip())]
            kept += [(b"cookie", b"; ".join(pairs))] if any(pairs) else []
    return kept


def from_pod(value: bytes) -> bytes | None:
    """Return a job's Set-Cookie without its domain, so that it is valid for this host alone. None if it has
    our cookie's name."""
    pair, *attributes = value.split(b";")
    name, _, text = pair.partition(b"=")
    # Browsers send a cookie without a name as its bare value, which can look like our name and value.
    if _OURS.match(name.strip() or text.strip()):
        return None
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([pair, *kept])
