"""The body of every refusal, in REST, pages, websockets and before the application: RFC 9457 with a stable code."""

from http import HTTPStatus
from typing import Any

PROBLEM_JSON = "application/problem+json"


def problem_details(
    status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None
) -> dict[str, Any]:
    """Return the members of an application/problem+json body. `errors`: one per refused field."""
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": errors or [],
    }
