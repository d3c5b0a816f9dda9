"""Error responses of the API: application/problem+json with a stable code, the field and the next step (RFC 9457)."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpResponse

from controlplane.api.renderers import render_json
from controlplane.fields import FieldError
from controlplane.http.problem_details import PROBLEM_JSON, problem_details


class Problem(Exception):
    """A refusal with an HTTP status and a stable code. `detail`: the message, with the next step."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.errors, self.headers = tuple(errors), dict(headers or {})


def bad_request(pointer: str, code: str, detail: str) -> Problem:
    """Return a refusal (400) of one query field (`?limit`) or body field (`/name`)."""
    return Problem(400, code, detail, errors=[FieldError(pointer, code, detail)])


def problem_response(problem: Problem) -> HttpResponse:
    """Return the HTTP response for a refusal."""
    response = HttpResponse(
        render_json(problem_body(problem)), status=problem.status, content_type=PROBLEM_JSON
    )
    for name, value in problem.headers.items():
        response.headers[name] = value
    return response


def problem_body(problem: Problem) -> dict[str, Any]:
    """Return the problem as plain data."""
    errors = [
        {"pointer": error.pointer, "code": error.code, "detail": error.detail} for error in problem.errors
    ]
    return problem_details(problem.status, problem.code, problem.detail, errors)
