"""Note the user that a request was answered as, for controlplane/http/wsgi_bridge.py."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

# In the WSGI environment, which is a request's META.
USER_KEY = "trainyard.user"


class RequestUserMiddleware:
    """Note the user only if the view loaded it: loading it here would cost static files a query."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        held = vars(request)
        # Set by REST's authentication, else lazy.
        user = held.get("user")
        if user is None or isinstance(user, SimpleLazyObject):
            user = held.get("_cached_user")
        if user is not None and user.is_authenticated:
            request.META[USER_KEY] = str(user.pk)
        return response
