"""Authentication by a bearer token, or by the browser's session with CSRF. An Authorization header that is not valid
is refused, even beside a valid session."""

import re
import uuid
from typing import Any

from django.utils import timezone
from rest_framework import authentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from controlplane.access import Actor
from controlplane.actions.sign_in import actor_of_secret
from controlplane.http.unknown_tokens import note_unknown_token
from controlplane.models import User

# Callers choose it, and it is written to logs and to the audit.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
HOW = "Send 'Authorization: Bearer <token>'."


class TokenAuthentication(authentication.BaseAuthentication):
    """Authenticates by the Authorization header; `request.auth` becomes the Actor. Raises AuthenticationFailed if the
    header contains no bearer token or one that is unknown, revoked or expired, TooManyAttempts after too many unknown
    ones from one address."""

    def authenticate(self, request: Request) -> tuple[User, Actor] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise AuthenticationFailed(HOW)
        actor = actor_of_secret(
            secret.strip(), timezone.now(), address=_address(request), request_id=request_id_of(request)
        )
        if actor is None or actor.user is None:
            note_unknown_token(_address(request))
            raise AuthenticationFailed(
                "The token is unknown, revoked or expired; make a new one with `yard login`."
            )
        return actor.user, actor

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="trainyard"'


class SessionAuthentication(authentication.SessionAuthentication):
    """Authenticates by the session cookie of the pages; unsafe methods need the CSRF header as well."""


def actor_of(request: Request) -> Actor:
    """Return the request's actor, with the address and request id for the audit log. Its `user` is None on routes
    without authentication, such as the sign-in."""
    if isinstance(request.auth, Actor):
        return request.auth
    user: Any = request.user
    return Actor(user=user, address=_address(request), request_id=request_id_of(request))


def request_id_of(request: Request) -> str:
    """Return the request's id, the same at every call: the client's X-Request-ID if it is valid, else a random one."""
    known: str | None = getattr(request._request, "trainyard_request_id", None)
    if known is None:
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        known = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request._request.trainyard_request_id = known  # type: ignore[attr-defined]  # ours, on Django's request
    return known


def _address(request: Request) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))[:64]
