"""The exceptions for an API server's responses other than 2xx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from controlplane.remote_errors import Unreachable


class ApiError(Exception):
    """The API server refused the request. `status`: of HTTP, such as 404 or 409; `reason`, `message` and `details`:
    those of its Status object. If it sent none: "", the beginning of the body, and {}."""

    def __init__(self, status: int, body: bytes) -> None:
        answer = _status_of(body)
        self.status = status
        self.reason = str(answer.get("reason") or "")
        # Without a Status, as from a proxy on the way, the body may be a whole page.
        self.message = str(answer.get("message") or body[:500].decode("utf-8", "replace"))
        details = answer.get("details")
        self.details: Mapping[str, Any] = details if isinstance(details, dict) else {}
        super().__init__(f"{status} {self.reason}: {self.message}")


class ApiFailed(Unreachable):
    """The API server kept answering 5xx or 429, also because an admission webhook does not answer. `status`, `reason`
    and `message` are those of its last response."""

    def __init__(self, error: ApiError) -> None:
        self.status, self.reason, self.message = error.status, error.reason, error.message
        super().__init__(f"The API server answered {error.status}: {error.message}")


def _status_of(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}
