"""Render JSON by orjson: times in RFC 3339 with Z, integers and floats unchanged."""

from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

JSON = "application/json"


def render_json(data: Any) -> bytes:
    """Return JSON bytes. Raise TypeError for anything but plain data."""
    return orjson.dumps(data, option=orjson.OPT_UTC_Z)


class OrjsonRenderer(BaseRenderer):
    """The only renderer: application/json."""

    media_type = JSON
    format = "json"
    # RFC 8259 defines no charset parameter: JSON is UTF-8.
    charset = None
    render_style = "binary"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        return b"" if data is None else render_json(data)
