"""How the routes of the REST API are declared."""

from django.urls import URLPattern, path
from rest_framework.views import APIView


def route(pattern: str, view: type[APIView], name: str) -> URLPattern:
    """Return the URL pattern of a view. `pattern`: Django's, relative to /api/v1/."""
    return path(pattern, view.as_view(), name=name)
