"""Tokens derived from the secret key: for a job's server to authenticate the gateway, and for pods to download code
and datasets."""

from __future__ import annotations

import hashlib
import hmac

HEADER = b"x-trainyard-service-token"


def service_token(secret_key: str, job_id: str) -> str:
    """Return a job's token, 64 hexadecimal digits, with which its server recognises requests of the gateway; its pods
    have it in their environment. It is derived from the secret key, so that a new key invalidates the tokens of
    running jobs."""
    return hmac.new(secret_key.encode(), b"service token:" + job_id.encode(), hashlib.sha256).hexdigest()


def code_token(secret_key: str, job_id: str, attempt: int) -> str:
    """Return the token with which the pods of one attempt download its code, 64 hexadecimal digits. It does not
    expire by time, because pods may wait for a node for days; the server accepts it until the attempt ends."""
    return hmac.new(
        secret_key.encode(), f"code token:{job_id}:{attempt}".encode(), hashlib.sha256
    ).hexdigest()


def cache_token(secret_key: str, cache_id: str) -> str:
    """Return the token with which a pod downloads the dataset version of a cache, 64 hexadecimal digits. The server
    accepts it while the cache is being filled."""
    return hmac.new(secret_key.encode(), b"cache token:" + cache_id.encode(), hashlib.sha256).hexdigest()
