"""The content security policy of every page: own scripts and styles only, no inline code, no foreign host."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


# The page's address is a secret, and proxies log referrers, even those of our own style sheets. With no referrer at
# all, browsers would send forms with `Origin: null`, which the CSRF check refuses.
SETUP = "/setup/"


class ContentSecurityPolicyMiddleware:
    """Adds the Content-Security-Policy header to responses without one, which Django has built in from version 6 on,
    and limits the referrer of setup pages to the origin."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        if request.path.startswith(SETUP):
            response.headers["Referrer-Policy"] = "strict-origin"
        return response
