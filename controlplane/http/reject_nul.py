"""Refuse NUL in requests: neither PostgreSQL's text nor process arguments can contain it."""

from collections.abc import Callable, Iterable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

# The JSON parser refuses NUL itself, with an error that names the field.
API = "/api/"


class RejectNulMiddleware:
    """Answers 400 to NUL characters in cookies, path, query and forms. For paths below /api/ only cookies are
    checked; its JSON parser refuses NUL with an error that names the field."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if any("\0" in text for text in _texts(request)):
            raise BadRequest("The address or the form holds a NUL character.")
        return self.get_response(request)


def _texts(request: HttpRequest) -> Iterable[str]:
    yield from request.COOKIES.values()
    if request.path.startswith(API):
        return
    yield request.path
    for fields in (request.GET, request.POST):
        for name, values in fields.lists():
            yield name
            yield from map(str, values)
