"""What websockets and event streams share: signing in, and refusals."""

from django.db import DatabaseError

from controlplane.http.throttle import TooManyAttempts
from controlplane.http.unknown_tokens import note_unknown_token
from controlplane.live.asgi import Scope, client_address
from controlplane.live.hub import hub
from controlplane.live.identity import SESSION, TOKEN, Credential, Identity, credential_of, is_own_origin


class Refused(Exception):
    """A connection is refused. `status`: of HTTP; `code`: stable, for programs; `detail`: the message;
    `wait_seconds`: for Retry-After, if `status` is 429."""

    def __init__(self, status: int, code: str, detail: str, wait_seconds: int = 0) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.wait_seconds = status, code, detail, wait_seconds


async def sign_in(scope: Scope) -> Identity:
    """Return the identity that opens a connection. Raise Refused without a valid credential (401), for a page of
    another site with the user's session (403), after too many unknown tokens from one address (429), and while the
    database does not answer (503)."""
    credential = credential_of(scope)
    if credential is None:
        raise Refused(401, "not_authenticated", "Sign in, or send 'Authorization: Bearer <token>'.")
    # Only sessions: browsers send cookies with the requests of other sites' pages, but no tokens.
    if credential.kind == SESSION and not is_own_origin(scope):
        raise Refused(403, "foreign_origin", "Another site's page may not use this session.")
    try:
        identity = await hub().identify(credential)
    except DatabaseError as error:
        raise Refused(503, "database_unavailable", "The database does not answer; try again.") from error
    if identity is None:
        raise unknown(scope, credential)
    return identity


def unknown(scope: Scope, credential: Credential) -> Refused:
    """Return the refusal of an invalid credential: 401, or 429 if its address has sent too many unknown tokens. A
    token is counted as one of them, a session is not."""
    try:
        if credential.kind == TOKEN:
            note_unknown_token(client_address(scope))
    except TooManyAttempts as error:
        return Refused(429, "too_many_requests", str(error), error.wait_seconds)
    return Refused(401, "not_authenticated", "The token or session is unknown, ended or expired.")
