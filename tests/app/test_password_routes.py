"""Every request that hashes a password runs beside the WSGI thread."""

import pytest
from django.contrib.auth import hashers

from controlplane.actions.accounts import create_setup_link
from controlplane.actions.sign_in import forget_attempts
from controlplane.http.password_routes import hashes_password
from tests.cast import make_cast

PASSWORD = "correct horse battery"
CALLS = (
    ("POST", "/login", {"username": "ana", "password": PASSWORD}),
    ("POST", "/users", {"username": "new1", "password": PASSWORD}),
    ("POST", "/users/ben/do/password", {"password": PASSWORD}),
    ("POST", "/setup/{link}", {"username": "first", "password": PASSWORD, "again": PASSWORD}),
    ("POST", "/api/v1/login", {"username": "ana", "password": PASSWORD}),
    ("POST", "/api/v1/users", {"username": "new2", "password": PASSWORD}),
    ("PATCH", "/api/v1/users/ben", {"password": PASSWORD}),
)


class CountingHasher(hashers.MD5PasswordHasher):
    """Counts what it hashes."""

    algorithm = "counting"
    count = 0

    def encode(self, password: str, salt: str) -> str:
        type(self).count += 1
        return super().encode(password, salt)


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=lambda value: str(value)[:30])
def test_a_request_that_hashes_is_listed(client, settings, method, path, body):
    settings.PASSWORD_HASHERS = [f"{__name__}.CountingHasher"]
    link = create_setup_link()
    if "{link}" not in path:
        people = make_cast()
        if not path.endswith("login"):
            client.force_login(people.root)
    forget_attempts()
    before = CountingHasher.count
    path = path.format(link=link)
    kind = {"content_type": "application/json"} if path.startswith("/api/") else {}
    send = client.patch if method == "PATCH" else client.post
    send(path, body, **kind)
    assert CountingHasher.count > before, "nothing was hashed: the request was refused"
    assert hashes_password(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/login"), ("POST", "/users/ana/do/lock"), ("POST", "/logout"), ("GET", "/api/v1/users"),
     ("POST", "/api/v1/users/ana/x"), ("POST", "/api/v1/projects/a/jobs")],
)  # fmt: skip
def test_other_requests_stay_on_the_wsgi_thread(method, path):
    assert not hashes_password(method, path)
