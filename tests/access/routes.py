"""Every route of the URL resolver, one line per alternative of a pattern."""

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
    """Yield (route, its view). A regular expression is written as the paths that it stands for."""
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
    """Yield (route below /api/v1/, view class)."""
    for route, view in routes():
        if route.startswith(API):
            yield route.removeprefix(API), view.view_class


def _walk(resolver: URLResolver | URLPattern, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(resolver, URLPattern):
        yield prefix, resolver.callback
        return
    for item in resolver.url_patterns:
        yield from _walk(item, prefix + str(item.pattern))
