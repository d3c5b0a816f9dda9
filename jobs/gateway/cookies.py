"""Cookies on a job's host: ours authenticates the browser and never reaches the job; the job's own pass, for this
host only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.conf import settings

from controlplane.live.asgi import Headers, Scope

_OURS = re.compile(rb"(?:__(?:host|secure)-)?yard_", re.IGNORECASE)


def service_cookie_name() -> str:
    """Return the name of our cookie. Behind TLS its prefix keeps sibling hosts from setting it for this one."""
    return f"{'__Host-' if is_secure() else ''}yard_service"


def is_secure() -> bool:
    """Return whether browsers reach jobs' hosts over TLS."""
    is_https: bool = settings.SERVICES.scheme == "https"
    return is_https


def set_cookie(name: str, value: str, seconds: int) -> tuple[bytes, bytes]:
    """Return a Set-Cookie header for this host alone, out of reach of scripts and of other sites' requests."""
    secure = "; Secure" if is_secure() else ""
    text = f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    return b"set-cookie", text.encode("ascii")


def values_of(scope: Scope, name: str) -> Iterator[str]:
    """Yield every value that the browser sends under this name: a job's script can add one for a longer path."""
    for header, value in scope["headers"]:
        for pair in value.split(b";") if header == b"cookie" else ():
            found, _, text = pair.strip().partition(b"=")
            if found == name.encode():
                yield text.decode("latin-1")


def to_pod(headers: Headers) -> Headers:
    """Return the job's own cookies among a request's, as headers; none when there are none."""
    kept: Headers = []
    for name, value in headers:
        if name.lower() == b"cookie":
            pairs = [pair.strip() for pair in value.split(b";") if not _OURS.match(pair.strip())]
            kept += [(b"cookie", b"; ".join(pairs))] if any(pairs) else []
    return kept


def from_pod(value: bytes) -> bytes | None:
    """Return a job's Set-Cookie as the browser gets it: for this host alone. None for one that is named like ours."""
    pair, *attributes = value.split(b";")
    name, _, text = pair.partition(b"=")
    # A cookie without a name is sent back as its bare value, which can look like another one's name and value.
    if _OURS.match(name.strip() or text.strip()):
        return None
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([pair, *kept])
