"""Every request that hashes a password runs beside the WSGI thread."""

from typing import ClassVar

import pytest
from django.contrib.auth import hashers
from django.db import connection

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
    """Counts what it hashes, and notes how deep in transactions."""

    algorithm = "counting"
    count = 0
    depths: ClassVar[set[int]] = set()

    def encode(self, password: str, salt: str) -> str:
        type(self).count += 1
        self.depths.add(len(connection.savepoint_ids))
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
    CountingHasher.depths.clear()
    path = path.format(link=link)
    kind = {"content_type": "application/json"} if path.startswith("/api/") else {}
    send = client.patch if method == "PATCH" else client.post
    send(path, body, **kind)
    assert CountingHasher.count > before, "nothing was hashed: the request was refused"
    assert hashes_password(method, path)
    assert CountingHasher.depths == {len(connection.savepoint_ids)}, "a transaction was open while it hashed"


@pytest.mark.django_db
def test_a_repeated_change_of_password_gets_its_first_answer(client):
    """Although the current password that it sends is no longer the current one."""
    people = make_cast()
    people.ana.set_password(PASSWORD)
    people.ana.save()
    forget_attempts()
    client.force_login(people.ana)
    body = {"password": "another correct horse", "current_password": PASSWORD}
    first, again = (
        client.patch(
            "/api/v1/users/ana", body, content_type="application/json", headers={"Idempotency-Key": "k"}
        )
        for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (200, 200), again.content
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/login"), ("POST", "/users/ana/do/lock"), ("POST", "/logout"), ("GET", "/api/v1/users"),
     ("POST", "/api/v1/users/ana/x"), ("POST", "/api/v1/projects/a/jobs")],
)  # fmt: skip
def test_other_requests_stay_on_the_wsgi_thread(method, path):
    assert not hashes_password(method, path)
