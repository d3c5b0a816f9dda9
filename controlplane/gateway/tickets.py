"""Tickets: how a job's own page, which gets no cookie of ours, is let in again.

A service's page runs sandboxed, with an origin of its own that no cookie is sent from. Its address
therefore carries a ticket that is good for one port of one job, for the one who opened it, as long as their
own sign-in lasts. It holds the credential encrypted, so the job that sees its own address learns nothing it
could use elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings

from controlplane.live.identity import Credential

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

PREFIX = "~"  # of the path segment that is a ticket


def issue(credential: Credential, job_id: str, port: int) -> str:
    """A ticket for one port of one job."""
    content = json.dumps([credential.kind, credential.secret, job_id, port])
    return _fernet().encrypt(content.encode()).decode().rstrip("=")


def open_ticket(ticket: str, job_id: str, port: int) -> Credential | None:
    """The credential in a ticket that was issued for this port of this job; None for any other text."""
    from cryptography.fernet import InvalidToken

    try:
        padded = ticket + "=" * (-len(ticket) % 4)
        content = _fernet().decrypt(padded.encode(), ttl=settings.SESSION_COOKIE_AGE)
    except (InvalidToken, ValueError):
        return None
    kind, secret, ticket_job_id, ticket_port = json.loads(content)
    return Credential(kind, secret) if (ticket_job_id, ticket_port) == (job_id, port) else None


@cache
def _fernet() -> Fernet:
    """Loaded late: a web process that never proxies does without the package."""
    from cryptography.fernet import Fernet

    digest = hashlib.sha256(b"service ticket:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
