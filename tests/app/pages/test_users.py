"""Signing in and out, the first admin, users and tokens."""

import json
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.actions.accounts import create_setup_link, issue_token, token_owner
from controlplane.models import Token, User
from tests.builders import make_job
from tests.cast import PASSWORD, Cast

Visit = Callable[[User | None], Client]
FORM = "application/x-www-form-urlencoded"


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


def test_a_wrong_password_is_refused_and_the_sixth_must_wait(cast: Cast, visit: Visit):
    client = visit(None)
    for _attempt in range(5):
        answer = client.post("/login", {"username": "ana", "password": "wrong"})
        assert answer.status_code == 400
        assert "the password is wrong" in answer.content.decode()
    refused = client.post("/login", {"username": "ana", "password": PASSWORD})
    assert refused.status_code == 429
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert client.post("/login", {"username": "ben", "password": PASSWORD}).status_code == 302


def test_who_guesses_names_must_wait_at_every_door(cast: Cast, visit: Visit):
    for number in range(30):
        door, kind = (("/login", FORM), ("/api/v1/login", "application/json"))[number % 2]
        body = {"username": f"guess-{number}", "password": "wrong"}
        sent = urlencode(body) if kind == FORM else json.dumps(body)
        assert visit(None).post(door, sent, kind).status_code in (400, 401)
    assert visit(None).post("/login", {"username": "ana", "password": PASSWORD}).status_code == 429
    api = visit(None).post("/api/v1/login", {"username": "ana", "password": PASSWORD}, "application/json")
    assert (api.status_code, api.json()["code"]) == (429, "too_many_requests")
    elsewhere = Client(REMOTE_ADDR="10.0.0.9")
    assert elsewhere.post("/login", {"username": "ana", "password": PASSWORD}).status_code == 302


def test_right_passwords_count_against_nobody(cast: Cast, visit: Visit):
    for _attempt in range(40):
        assert visit(None).post("/login", {"username": "ana", "password": PASSWORD}).status_code == 302


def test_refused_sign_ins_are_in_the_log_without_what_may_be_a_password(cast: Cast, visit: Visit, caplog):
    for name in ("ana", "my-secret-password"):
        visit(None).post("/login", {"username": name, "password": "wrong"})
    records = [record for record in caplog.records if "sign-in" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("WARNING", "a sign-in as 'ana' from 127.0.0.1 was refused"),
        ("WARNING", "a sign-in as an unknown user from 127.0.0.1 was refused"),
    ]


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
    used = visit(None).get(f"/setup/{secret}")
    assert used.status_code == 404
    assert "it works once" in used.content.decode()
    assert "owner of the project" not in used.content.decode()


def test_the_setup_link_is_in_no_log_and_no_referrer(db: None, visit: Visit, caplog):
    secret = create_setup_link()
    address, form = f"/setup/{secret}", {"username": "root", "password": "short", "again": "short"}
    answers = [visit(None).get(address), visit(None).post(address, form)]
    answers.append(Client(enforce_csrf_checks=True).post(address, form))
    answers.append(visit(None).get(f"{address}/else"))
    assert [answer.status_code for answer in answers] == [200, 400, 403, 404]
    assert {answer["Referrer-Policy"] for answer in answers} == {"strict-origin"}
    handler = next(one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler)
    lines = [handler.format(record) for record in caplog.records]
    assert [line for line in lines if "/setup/[secret]" in line]
    assert [line for line in lines if secret in line] == []


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
    change = {"current": PASSWORD, "password": "x"}
    weak = client.post("/users/ana/do/password", change)
    assert "too short" in weak.context["errors"]["password"]
    wrong = client.post("/users/ana/do/password", change | {"current": "guessed it"})
    assert list(wrong.context["errors"]) == ["current_password"]
    for refused in (weak, wrong):  # at the field, which has the focus
        assert (refused.status_code, refused.content.decode().count("autofocus")) == (400, 1)
    assert client.get("/users/ana/do/password")["Location"] == "/users/ana"  # as live regions read it
    change["password"] = "another long one"
    answer = client.post("/users/ana/do/password", change, follow=True)
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


def test_locking_asks_and_says_what_goes_on(cast: Cast, visit: Visit):
    client = visit(cast.root)
    assert 'href="/users/ben/do/lock"' in client.get("/users/ben").content.decode()
    make_job(cast.project, "waits", cast.ben)
    issue_token(cast.ben, "ci", actor=cast.actor("ben"))
    page = client.get("/users/ben/do/lock").content.decode()
    assert "ben is signed out everywhere, and 1 API token is refused, until the account is unlocked." in page
    assert "Not stopped: 1 job that waits of ben." in page
    assert User.objects.get(username="ben").is_active
    assert "Make ben an admin?" in client.get("/users/ben/do/promote").content.decode()
    assert "Remove the admin rights of root?" in client.get("/users/root/do/demote").content.decode()
    assert client.get("/users/ben/do/unlock").status_code == 405
    assert visit(cast.ana).get("/users/ben/do/lock").status_code == 403


def test_revoking_asks_and_says_when_the_token_was_used(cast: Cast, visit: Visit):
    token, _secret = issue_token(cast.ben, "ci", actor=cast.actor("ben"))
    client, here = visit(cast.ben), f"/tokens/{token.pk}/revoke"
    assert f'href="{here}"' in client.get("/tokens").content.decode()
    assert "It was never used." in client.get(here).content.decode()
    Token.objects.update(last_used_at=timezone.now() - timedelta(minutes=3))
    assert "It was last used 3\N{NO-BREAK SPACE}m" in client.get(here).content.decode()
    assert visit(cast.ana).get(here).status_code == 404
    assert Token.objects.get().revoked_at is None


def test_refused_fields_take_the_focus_and_have_a_description(cast: Cast, visit: Visit):
    client = visit(cast.root)
    for path, form in (
        ("/users", {"username": "", "password": "short"}),
        ("/users", {"username": "eve", "password": "short"}),
        ("/tokens", {"name": "x", "days": "1000"}),
        ("/new/project", {"name": "A b"}),
        ("/new/job", {"name": "A b", "project": "team-a"}),
        ("/new/job", {"name": "ab", "project": "none", "kind": "none"}),
        ("/new/cluster", {"name": "A b"}),
    ):
        page = client.post(path, form).content.decode()
        invalid = re.findall(r"<[^>]*aria-invalid[^>]*>", page)
        assert invalid, path
        assert all("autofocus" in field and "aria-describedby" in field for field in invalid), path
