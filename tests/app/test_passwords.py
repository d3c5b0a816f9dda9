"""A password is changed with the current one, and what the old one opened ends."""

from typing import Any

import pytest
from django.test import Client

from controlplane.access import SYSTEM, Actor
from controlplane.actions.accounts import create_user, issue_token
from controlplane.models import AuditEntry, User
from tests.app.api.client import BASE, Api, Reply
from tests.cast import PASSWORD, Cast

pytestmark = pytest.mark.django_db
NEW = "another correct horse"
CHANGE = {"password": NEW, "current_password": PASSWORD}


def has_password(user: User, password: str) -> bool:
    return User.objects.get(pk=user.pk).check_password(password)


def change(user: User, **body: Any) -> Reply:
    return Api(user).patch(f"users/{user.username}", body)


def test_without_the_current_password_nothing_changes(cast: Cast):
    for body in ({"password": NEW}, {"password": NEW, "current_password": "guessed it"}):
        refused = change(cast.ben, **body)
        assert (refused.status, refused.code, refused.pointers) == (
            400,
            "wrong_password",
            ["/current_password"],
        )
    assert has_password(cast.ben, PASSWORD)


def test_guesses_at_the_current_password_are_limited(cast: Cast):
    answers = [change(cast.ben, password=NEW, current_password=f"guess {n}").status for n in range(6)]
    assert answers == [400] * 5 + [429]


def test_a_new_password_ends_other_sessions_and_tokens(cast: Cast):
    elsewhere, here = Client(), Client()
    for client in (elsewhere, here):
        client.force_login(cast.ben)
    secret = issue_token(cast.ben, "ci", actor=SYSTEM)[1]
    kept = issue_token(cast.ana, "ci", actor=SYSTEM)[1]
    page = {"password": NEW, "current": PASSWORD}
    assert here.post("/users/ben/do/password", page).status_code == 302
    assert here.get("/jobs").status_code == 200
    assert elsewhere.get("/jobs").status_code == 302
    assert [whoami(secret), whoami(kept)] == [401, 200]
    assert AuditEntry.objects.get(verb="user.set_password").after == {"revoked_tokens": 1}


def test_the_token_that_changes_it_stays_and_others_on_request(cast: Cast):
    ben, other = Api(cast.ben), issue_token(cast.ben, "ci", actor=SYSTEM)[1]
    assert ben.patch("users/ben", CHANGE | {"keep_tokens": True}).status == 200
    assert whoami(other) == 200
    assert ben.patch("users/ben", {"password": PASSWORD, "current_password": NEW}).status == 200
    assert (ben.get("whoami").status, whoami(other)) == (200, 401)


def test_a_session_that_changes_it_over_rest_goes_on(cast: Cast):
    client = Client()
    client.force_login(cast.ben)
    assert client.patch(f"{BASE}users/ben", CHANGE, content_type="application/json").status_code == 200
    assert client.get("/jobs").status_code == 200


def test_an_admin_resets_others_without_it_but_not_their_own(cast: Cast):
    assert Api(cast.root).patch("users/ben", {"password": NEW}).status == 200
    assert has_password(cast.ben, NEW)
    assert Api(cast.root).patch("users/root", {"password": NEW}).status == 400


def test_a_token_alone_makes_no_first_password(cast: Cast):
    robot = create_user("robot", None, actor=Actor(user=None))
    assert change(robot, **CHANGE).status == 403


def test_on_the_page_a_wrong_one_is_named(cast: Cast):
    client = Client()
    client.force_login(cast.ben)
    answer = client.post("/users/ben/do/password", {"password": NEW, "current": "guess"}, follow=True)
    assert "not your current password" in answer.content.decode()
    assert 'name="current"' in answer.content.decode()


def whoami(secret: str) -> int:
    return Client(headers={"Authorization": f"Bearer {secret}"}).get(f"{BASE}whoami").status_code
