"""Record the user of an authenticated request, for controlplane/http/wsgi_bridge.py."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

# A key of the WSGI environment, which is a request's META.
USER_KEY = "trainyard.user"


class RequestUserMiddleware:
    """Stores the user's id under USER_KEY in the request's META, if the view has loaded the user. Loading it here
    would cost a query for every static file."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        held = vars(request)
        # A user object if REST's authentication has set it, else a lazy object.
        user = held.get("user")
        if user is None or isinstance(user, SimpleLazyObject):
            user = held.get("_cached_user")
        if user is not None and user.is_authenticated:
            request.META[USER_KEY] = str(user.pk)
        return response
