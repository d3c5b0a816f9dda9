"""Jupyter identity provider that admits requests with the job's service token."""

from __future__ import annotations

from jupyter_server.auth import IdentityProvider
from tornado.web import RequestHandler

TOKEN_HEADER = "X-Trainyard-Service-Token"


class ServiceIdentity(IdentityProvider):
    """Accepts the service token in the control plane's header, or where Jupyter expects a token."""

    def get_token(self, handler: RequestHandler) -> str | None:
        token: str | None = handler.request.headers.get(TOKEN_HEADER) or super().get_token(handler)
        return token
