"""Service tokens: how a job's server recognises a request that came through the gateway."""

from __future__ import annotations

import hashlib
import hmac

HEADER = b"x-trainyard-service-token"


def service_token(secret_key: str, job_id: str) -> str:
    """Return the token of a job, 64 hexadecimal digits: in its pods' environment and in each request that the gateway
    forwards to them. It is derived, so that a job of any age has one; a new secret key ends those of running jobs.
    """
    return hmac.new(secret_key.encode(), b"service token:" + job_id.encode(), hashlib.sha256).hexdigest()
