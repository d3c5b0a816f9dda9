"""Signing in and out, the first admin, users and tokens."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from controlplane.actions.accounts import create_setup_link, token_owner
from controlplane.models import Token, User
from tests.cast import PASSWORD, Cast

Visit = Callable[[User | None], Client]


@pytest.fixture(autouse=True)
def _no_tries_left_over():
    cache.clear()
    yield
    cache.clear()


def told(answer: Any) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("/jobs", "/jobs"),
        ("", "/"),
        ("https://elsewhere.example/", "/"),
        ("//elsewhere.example", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_sign_in_leads_where_one_wanted_to_go(cast: Cast, visit: Visit, wanted: str, place: str):
    client = visit(None)
    answer = client.post("/login", {"username": "ana", "password": PASSWORD, "next": wanted})
    assert (answer.status_code, answer["Location"]) == (302, place)
    assert client.get("/").status_code == 200
    assert client.get(f"/login?next={wanted}")["Location"] == place  # signed in already


def test_a_wrong_password_is_refused_and_the_eleventh_must_wait(cast: Cast, visit: Visit):
    client = visit(None)
    for _attempt in range(10):
        answer = client.post("/login", {"username": "ana", "password": "wrong"})
        assert answer.status_code == 400
        assert "do not belong together" in answer.content.decode()
    refused = client.post("/login", {"username": "ana", "password": PASSWORD})
    assert (refused.status_code, refused["Retry-After"]) == (429, "300")
    assert client.post("/login", {"username": "ben", "password": PASSWORD}).status_code == 302


def test_a_locked_account_cannot_sign_in(cast: Cast, visit: Visit):
    User.objects.filter(username="ana").update(is_active=False)
    assert visit(None).post("/login", {"username": "ana", "password": PASSWORD}).status_code == 400


def test_sign_out(cast: Cast, visit: Visit):
    client = visit(cast.ana)
    assert client.get("/logout").status_code == 405
    assert client.post("/logout")["Location"] == "/login"
    assert client.get("/")["Location"].startswith("/login")


def test_the_first_admin(db: None, visit: Visit):
    secret = create_setup_link()
    client, form = (
        visit(None),
        {"username": "root", "password": "long enough words", "again": "long enough words"},
    )
    assert client.get(f"/setup/{secret}").status_code == 200
    assert client.get("/setup/guess").status_code == 404
    assert client.post(f"/setup/{secret}", form | {"again": "different"}).context["errors"] == {
        "again": "The two passwords differ; type the same one twice."
    }
    weak = client.post(f"/setup/{secret}", form | {"password": "short", "again": "short"})
    assert (weak.status_code, set(weak.context["errors"])) == (400, {"password"})
    assert not User.objects.exists()
    assert client.post(f"/setup/{secret}", form)["Location"] == "/"
    assert User.objects.get().is_admin
    assert client.get("/users").status_code == 200  # signed in at once
    assert visit(None).get(f"/setup/{secret}").status_code == 404  # it works once


def test_users(cast: Cast, visit: Visit):
    client = visit(cast.root)
    answer = client.post(
        "/users", {"username": "dora", "password": PASSWORD, "email": "dora@example.org"}, follow=True
    )
    assert "dora can sign in now" in told(answer)
    assert visit(None).post("/login", {"username": "dora", "password": PASSWORD}).status_code == 302
    assert set(client.post("/users", {"username": "dora"}).context["errors"]) == {"username"}
    assert set(client.post("/users", {"username": "eve", "password": "short"}).context["errors"]) == {
        "password"
    }
    client.post("/users/dora/do/promote")
    assert User.objects.get(username="dora").is_admin
    client.post("/users/dora/do/demote")
    client.post("/users/dora/do/lock")
    dora = User.objects.get(username="dora")
    assert (dora.is_admin, dora.is_active) == (False, False)
    assert "last active admin" in told(client.post("/users/root/do/demote", follow=True))


def test_passwords(cast: Cast, visit: Visit):
    client = visit(cast.ana)
    assert "too short" in told(client.post("/users/ana/do/password", {"password": "x"}, follow=True))
    answer = client.post("/users/ana/do/password", {"password": "another long one"}, follow=True)
    assert "changed" in told(answer)  # and still signed in, or there would be no such page
    assert visit(None).post("/login", {"username": "ana", "password": "another long one"}).status_code == 302


def test_a_token_is_shown_once(cast: Cast, visit: Visit):
    client = visit(cast.ana)
    answer = client.post("/tokens", {"name": "laptop", "days": "7", "is_read_only": "on"})
    secret = re.search(r'id="token-secret">([^<]+)<', answer.content.decode())
    assert secret is not None
    token = Token.objects.get()
    owner = token_owner(secret[1], token.created_at)
    assert owner is not None
    assert (owner.user, owner.is_read_only, owner.name) == (cast.ana, True, "laptop")
    assert "no-store" in answer["Cache-Control"]
    assert secret[1] not in client.get("/tokens").content.decode()
    assert "laptop" in client.get("/tokens").content.decode()
    assert set(client.post("/tokens", {"name": "x", "days": "1000"}).context["errors"]) == {"days"}
    assert visit(cast.ben).post(f"/tokens/{token.pk}/revoke").status_code == 404
    client.post(f"/tokens/{token.pk}/revoke")
    assert token_owner(secret[1], token.created_at) is None
    assert "laptop" not in client.get("/tokens").content.decode()


def test_people_see_those_whom_they_share_a_project_with(cast: Cast, visit: Visit):
    assert visit(cast.ana).get("/users/ben").status_code == 200
    assert visit(cast.ana).get("/users/chi").status_code == 404
    assert visit(cast.ana).get("/users/root").status_code == 404
    assert "Password" not in visit(cast.ana).get("/users/ben").content.decode()
