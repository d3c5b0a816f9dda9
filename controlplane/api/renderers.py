"""Render JSON by orjson: UTC times in RFC 3339 with Z."""

from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

JSON = "application/json"


def render_json(data: Any) -> bytes:
    """Return the JSON bytes of plain data and datetimes; a UTC time ends in Z, another keeps its offset. Raise
    TypeError for other types, and for integers above 64 bits."""
    return orjson.dumps(data, option=orjson.OPT_UTC_Z)


class OrjsonRenderer(BaseRenderer):
    """REST framework's only renderer here: application/json by orjson."""

    media_type = JSON
    format = "json"
    # RFC 8259 defines no charset parameter: JSON is UTF-8.
    charset = None
    render_style = "binary"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None
    ) -> bytes:
        return b"" if data is None else render_json(data)
