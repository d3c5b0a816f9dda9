"""Turn exceptions of views into problem+json responses."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.http import Http404, HttpResponse, UnreadablePostError
from rest_framework import exceptions as rest

from controlplane.access import Forbidden, NotVisible
from controlplane.actions.errors import Conflict, Invalid
from controlplane.api.problems import Problem, problem_response
from controlplane.http.throttle import TooManyAttempts
from controlplane.registration import app_modules
from controlplane.simulation.client import SimulationFailed

logger = logging.getLogger(__name__)

# A lock of the database is free again, or a new simulating process starts, in less than a second mostly.
RETRY_SECONDS = 1
Translation: TypeAlias = tuple[type[Exception] | tuple[type[Exception], ...], Callable[[Any], Problem]]
TOO_LARGE = "The body is larger than 1 MiB; send less, or in parts."


def problem_handler(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """Return the problem+json response for an exception of a view; 500 without details for one that is not expected,
    which is logged."""
    return problem_response(to_problem(error))


def to_problem(error: Exception) -> Problem:
    """Return the Problem for an exception, by the translations that apps declare and those of this module. Any other
    exception is logged and becomes 500."""
    if isinstance(error, Problem):
        return error
    for kind, translate in _translations():
        if isinstance(error, kind):
            return translate(error)
    logger.error("a request failed for no fault of the client", exc_info=error)
    return Problem(500, "internal_error", "The server failed; its log says why.")


@cache
def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions that `to_problem` answers for what they say; all others are faults of the server."""
    kinds = (kind for kind, _ in _translations())
    return (Problem, *(one for kind in kinds for one in (kind if isinstance(kind, tuple) else (kind,))))


@cache
def _translations() -> tuple[Translation, ...]:
    declared = (one for module in app_modules("api.refusals") for one in module.TRANSLATIONS)
    # Those of apps first, because their exceptions may be subclasses of the ones below.
    return (*declared, *_TRANSLATIONS)


def _invalid(error: Invalid) -> Problem:
    code = error.errors[0].code if len(error.errors) == 1 else "invalid"
    return Problem(400, code, str(error), errors=error.errors)


def _unauthenticated(error: rest.APIException) -> Problem:
    challenge = {"WWW-Authenticate": 'Bearer realm="trainyard"'}
    has_none = isinstance(error, rest.NotAuthenticated)
    detail = (
        "Sign in first: send 'Authorization: Bearer <token>', see `yard login`."
        if has_none
        else str(error.detail)
    )
    return Problem(401, "not_authenticated", detail, headers=challenge)


def _by_status(error: rest.APIException) -> Problem:
    codes = {404: "not_found", 406: "not_acceptable", 400: "bad_request"}
    return Problem(error.status_code, codes.get(error.status_code, "refused"), str(error.detail))


def _unavailable(error: Exception) -> Problem:
    logger.warning("the database did not answer", exc_info=error)
    return Problem(
        503,
        "database_unavailable",
        "The database is busy or away; try again shortly.",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def _no_simulation(error: SimulationFailed) -> Problem:
    logger.warning("a simulation failed", exc_info=error)
    retry = {"Retry-After": str(RETRY_SECONDS)}
    return Problem(503, "simulation_failed", f"{error} Try again.", headers=retry)


def _conflict(error: IntegrityError) -> Problem:
    logger.warning("the database refused a write that no action had refused", exc_info=error)
    return Problem(
        409, "conflict", "The database's rules refuse this; something changed meanwhile. Read it again."
    )


def _too_many(error: TooManyAttempts) -> Problem:
    return Problem(429, "too_many_requests", str(error), headers={"Retry-After": str(error.wait_seconds)})


def _always(status: int, code: str, detail: str) -> Callable[[Any], Problem]:
    return lambda _error: Problem(status, code, detail)


_TRANSLATIONS: tuple[Translation, ...] = (
    (NotVisible, lambda error: Problem(404, "not_found", str(error))),
    (Forbidden, lambda error: Problem(403, "forbidden", str(error))),
    (Conflict, lambda error: Problem(409, error.code, error.detail, errors=error.errors)),
    (Invalid, _invalid),
    (TooManyAttempts, _too_many),
    ((rest.NotAuthenticated, rest.AuthenticationFailed), _unauthenticated),
    (rest.PermissionDenied, lambda error: Problem(403, "forbidden", str(error.detail))),
    (rest.MethodNotAllowed, lambda error: Problem(405, "method_not_allowed", str(error.detail))),
    # After its subclasses: the first match counts.
    (rest.APIException, _by_status),
    (Http404, _always(404, "not_found", "There is nothing at this address.")),
    (PermissionDenied, _always(403, "forbidden", "You may not do this.")),
    (RequestDataTooBig, _always(413, "body_too_large", TOO_LARGE)),
    (SuspiciousOperation, _always(400, "bad_request", "The request is malformed.")),
    (UnreadablePostError, _always(400, "body_incomplete", "The body ended early; send it again.")),
    (IntegrityError, _conflict),
    (DataError, _always(400, "bad_value", "A value cannot be stored; it is too large or malformed.")),
    ((OperationalError, InterfaceError), _unavailable),
    (SimulationFailed, _no_simulation),
)
