"""The OpenAPI document, generated from the routes. `manage.py openapi` writes docs/reference/openapi.json."""

from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from controlplane.api.json_schema import Schema
from controlplane.api.operations import DESCRIPTIONS, Description
from controlplane.registration import app_modules

SECURITY = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token from `yard login` or POST /tokens.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "yard_session",
        "description": "The session of the web pages; writes also need a CSRF token.",
    },
}
_NO_SECURITY = frozenset({"/api/v1/login"})


class RouteSchema(AutoSchema):
    """Describes each route for drf-spectacular by what `@operation` declared. Leaves out the route for unknown
    addresses."""

    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        if "{rest}" in path:
            return None
        return super().get_operation(path, path_regex, path_prefix, method, registry)

    def get_operation_id(self) -> str:
        words = self.path.removeprefix("/api/v1/").replace("{", "by-").replace("}", "").replace("/", "-")
        return f"{self.method.lower()}-{words}".replace("_", "-")

    def get_summary(self) -> str:
        return self._described().summary

    def get_override_parameters(self) -> list[Any]:
        return [
            OpenApiParameter(each.name, each.schema, each.location, description=each.about)
            for each in self._described().parameters
        ]

    def get_request_serializer(self) -> Any:
        return self._described().body

    def get_response_serializers(self) -> Any:
        return self._described().responses

    def get_tags(self) -> list[str]:
        return [self.path.removeprefix("/api/v1/").partition("/")[0]]

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [] if self.path in _NO_SECURITY else [{name: []} for name in SECURITY]

    def _described(self) -> Description:
        return DESCRIPTIONS[getattr(type(self.view), self.method.lower())]


def declared_components() -> dict[str, Schema]:
    """Return the JSON schemas that apps declare, by component name. Raise ValueError if two apps use the same name."""
    components: dict[str, Schema] = {}
    for module in app_modules("api.schemas"):
        if twice := components.keys() & module.COMPONENTS.keys():
            raise ValueError(f"{module.__name__} declares components that exist: {', '.join(sorted(twice))}.")
        components |= module.COMPONENTS
    return components


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document as plain data, not to be changed; the first call of a process takes about a
    second."""
    # drf-spectacular has only partial type annotations.
    generator: Any = SchemaGenerator
    document: dict[str, Any] = generator().get_schema(request=None, public=True)
    components = document.setdefault("components", {})
    components["schemas"] = dict(sorted(declared_components().items()))
    components["securitySchemes"] = SECURITY
    document["servers"] = [{"url": "/"}]
    return document
