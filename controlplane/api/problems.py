"""Error responses of the API: application/problem+json with a stable code, the field and the next step (RFC 9457)."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpResponse

from controlplane.api.renderers import render_json
from controlplane.fields import FieldError
from controlplane.http.problem_details import PROBLEM_JSON, problem_details


class Problem(Exception):
    """A refusal with an HTTP status and a stable code. `detail`: the message with the next step; `errors`: the
    refused fields; `headers`: further ones of the response."""

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
    """Return a Problem (400) about one field. `pointer`: `?limit` for a query field, `/name` for a body field."""
    return Problem(400, code, detail, errors=[FieldError(pointer, code, detail)])


def problem_response(problem: Problem) -> HttpResponse:
    """Return the application/problem+json response for a refusal."""
    response = HttpResponse(
        render_json(problem_body(problem)), status=problem.status, content_type=PROBLEM_JSON
    )
    for name, value in problem.headers.items():
        response.headers[name] = value
    return response


def problem_body(problem: Problem) -> dict[str, Any]:
    """Return the members of the problem+json body (RFC 9457) of a refusal."""
    errors = [
        {"pointer": error.pointer, "code": error.code, "detail": error.detail} for error in problem.errors
    ]
    return problem_details(problem.status, problem.code, problem.detail, errors)
