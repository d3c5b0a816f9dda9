"""Encrypt the cookie for a job's host, which the browser gets in exchange for a ticket.

The cookie contains the encrypted credential and is valid for one port of one job, as long as the credential.
The job never receives it: page scripts cannot read it, and the proxy removes it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings

from controlplane.config.service_hosts import ServiceAddress
from controlplane.live.identity import Credential

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


def seal(credential: Credential, address: ServiceAddress) -> str:
    """Return the encrypted cookie that holds the credential, valid for one port of one job."""
    content = json.dumps([credential.kind, credential.secret, address.job_id, address.port])
    return _fernet().encrypt(content.encode()).decode().rstrip("=")


def unseal(value: str, address: ServiceAddress) -> Credential | None:
    """Return the credential in a cookie issued for this port of this job; None for any other text, and after
    SESSION_COOKIE_AGE."""
    from cryptography.fernet import InvalidToken

    try:
        padded = value + "=" * (-len(value) % 4)
        content = _fernet().decrypt(padded.encode(), ttl=settings.SESSION_COOKIE_AGE)
    except (InvalidToken, ValueError):
        # Browsers send arbitrary cookies, also those encrypted with an older key.
        return None
    kind, secret, job_id, port = json.loads(content)
    return Credential(kind, secret) if ServiceAddress(job_id, port) == address else None


@cache
def _fernet() -> Fernet:
    """Return the cipher of the cookies; its key is derived from SECRET_KEY."""
    # Imported on first use, since few processes need it.
    from cryptography.fernet import Fernet

    digest = hashlib.sha256(b"service cookie:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
