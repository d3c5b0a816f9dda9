"""Endless responses that apps declare as `STREAMS` in their module `event_streams`. Served for `?follow=true`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from controlplane.live.asgi import Application, Scope, query
from controlplane.registration import app_modules

_TRUE = frozenset({"true", "1", "yes"})


@dataclass(frozen=True, slots=True)
class EventStream:
    """An endless response. `path`: pattern of the URL paths that it serves; `close` ends its threads when the server
    stops."""

    path: re.Pattern[str]
    application: Application
    close: Callable[[], None]


@cache
def event_streams() -> tuple[EventStream, ...]:
    return tuple(stream for module in app_modules("event_streams") for stream in module.STREAMS)


def followed_stream(scope: Scope) -> Application | None:
    """Return the application for an endless response; None if the request has no `follow=true` or its path has no
    stream."""
    found = next((one for one in event_streams() if one.path.fullmatch(scope["path"])), None)
    is_followed = found is not None and query(scope).get("follow", "").lower() in _TRUE
    return found.application if found is not None and is_followed else None
