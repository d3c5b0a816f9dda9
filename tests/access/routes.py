"""All routes of the URL resolver, one for each alternative of a regular expression."""

import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

API = "api/v1/"
NOWHERE = API + r"^(?P<rest>.*)$"  # answers 404 for unknown addresses
_ALTERNATIVES = re.compile(r"\(\?P<\w+>([\w|-]+)\)")
_PARAMETER = re.compile(r"\(\?P<(\w+)>\[\^/\]\+\)")
_ANCHOR = re.compile(r"\^(?!/\])|\$$")


def routes() -> Iterator[tuple[str, Any]]:
    """Yield (route, its view). A regular expression is replaced by the paths that it matches; the route for
    unknown addresses is left out."""
    for route, view in _walk(get_resolver(), ""):
        if route == NOWHERE:
            continue
        plain = _PARAMETER.sub(r"<str:\1>", _ANCHOR.sub("", route)).replace("\\.", ".")
        verbs = _ALTERNATIVES.search(plain)
        if verbs is None:
            yield plain, view
            continue
        for verb in verbs[1].split("|"):
            yield plain.replace(verbs[0], verb), view


def rest_routes() -> Iterator[tuple[str, Any]]:
    """Yield (route without /api/v1/, its view class) of the REST API."""
    for route, view in routes():
        if route.startswith(API):
            yield route.removeprefix(API), view.view_class


def _walk(resolver: URLResolver | URLPattern, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(resolver, URLPattern):
        yield prefix, resolver.callback
        return
    for item in resolver.url_patterns:
        yield from _walk(item, prefix + str(item.pattern))
