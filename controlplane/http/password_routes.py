"""The requests that hash a password and therefore run on separate threads. No I/O.

tests/app/test_password_routes.py fails for a view that hashes a password but is not listed.
"""

import re

# Enough for a user name and passwords; the bound is small because some of these requests are anonymous.
PASSWORD_BODY_MOST_BYTES = 16 * 1024

_ROUTES = {
    "POST": re.compile(
        r"/login|/setup/[^/]+|/users|/users/[^/]+/do/password"  # pages
        r"|/api/v1/(?:login|users)"
    ),
    "PATCH": re.compile(r"/api/v1/users/[^/]+"),
}


def hashes_password(method: str, path: str) -> bool:
    """Return whether a request may hash a password."""
    route = _ROUTES.get(method)
    return route is not None and route.fullmatch(path) is not None


def is_sign_in(method: str, path: str) -> bool:
    """Return whether a request may hash a password without needing a credential: sign-in and setup."""
    return hashes_password(method, path) and path.startswith(("/login", "/setup/", "/api/v1/login"))
