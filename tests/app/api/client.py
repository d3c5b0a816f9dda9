"""A REST client over Django's test client: one user, JSON in and out."""

from dataclasses import dataclass
from typing import Any

import orjson
from django.test import Client

from controlplane.access import SYSTEM
from controlplane.actions.accounts import issue_token
from controlplane.models import User

BASE = "/api/v1/"
NAMED = {
    "cache-locations": "memory",
    "clusters": "memory",
    "node-pools": "default",
    "nodes": "dgx1-1",
    "departments": "research",
}


def name_in(route: str) -> str:
    """Return the name of the cast's object for the `{name}` in a route."""
    return NAMED.get(route.partition("/")[0], "team-a")


@dataclass(frozen=True)
class Reply:
    """An answer: status, headers, and the body, decoded if it is JSON."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def code(self) -> str:
        """Return the code of a problem+json body."""
        return self.body["code"]

    @property
    def pointers(self) -> list[str]:
        return [error["pointer"] for error in self.body["errors"]]


class Api:
    """REST calls as one user (None: anonymous). A server error returns its answer, as over HTTP, instead of
    raising."""

    def __init__(self, user: User | None, *, is_read_only: bool = False) -> None:
        headers = {}
        if user is not None:
            secret = issue_token(user, "test", actor=SYSTEM, is_read_only=is_read_only)[1]
            headers["Authorization"] = f"Bearer {secret}"
        self.client = Client(headers=headers, raise_request_exception=False)

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.send("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.send("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Reply:
        return self.send("DELETE", path, **headers)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request with `body` as JSON, or as it is if it is bytes. `path`: relative to /api/v1/ unless it
        begins with a slash; underscores in the names of `headers` become hyphens."""
        raw = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        media = headers.pop("content_type", "application/json")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.generic(
            method, path if path.startswith("/") else BASE + path, raw, media if raw else "", headers=named
        )
        content = b"".join(answer.streaming_content) if answer.streaming else answer.content
        is_json = "json" in answer.headers.get("Content-Type", "") and content
        return Reply(
            answer.status_code,
            dict(answer.headers),
            orjson.loads(content) if is_json else content,
        )
