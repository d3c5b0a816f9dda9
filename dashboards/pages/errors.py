"""What a person sees when a page cannot be shown."""

from django.http import HttpRequest, HttpResponse


def forbidden(_request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """403."""
    return HttpResponse("You may not do this.", status=403)


def not_found(_request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404."""
    return HttpResponse("There is no such page.", status=404)


def server_error(_request: HttpRequest) -> HttpResponse:
    """500."""
    return HttpResponse("Something broke on our side.", status=500)
