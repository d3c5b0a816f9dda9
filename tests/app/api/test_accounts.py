"""Signing in, tokens and users."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.actions.sign_in import register_bootstrap_token
from controlplane.http.throttle import Throttle, TooManyAttempts
from controlplane.models import Token, User
from tests.app.api.client import Api
from tests.cast import PASSWORD, Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
SECRET = "a-bootstrap-token-of-more-than-32-characters"


def bearer(secret: str) -> Api:
    api = Api(None)
    api.client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {secret}"
    return api


def test_a_password_is_exchanged_for_a_token_that_works(api: AsPerson):
    reply = api("").post("login", {"username": "ben", "password": PASSWORD})
    assert reply.status == 200
    assert bearer(reply.body["token"]).get("whoami").body["username"] == "ben"


@pytest.mark.parametrize(
    "body", [{"username": "ben", "password": "x"}, {"username": "nobody", "password": PASSWORD}]
)
def test_a_wrong_name_and_a_wrong_password_look_the_same(body, api: AsPerson):
    reply = api("").post("login", body)
    assert (reply.status, reply.code) == (401, "wrong_credentials")


def test_a_locked_account_and_one_without_a_password_cannot_sign_in(api: AsPerson, cast: Cast):
    User.objects.filter(username="ben").update(is_active=False)
    assert api("").post("login", {"username": "ben", "password": PASSWORD}).status == 401
    api("root").post("users", {"username": "robot"})
    for password in ("", "!", "None"):
        assert api("").post("login", {"username": "robot", "password": password}).status == 401


def test_the_sixth_attempt_in_a_minute_waits(api: AsPerson):
    anonymous = api("")
    for _ in range(5):
        assert anonymous.post("login", {"username": "ben", "password": "x"}).status == 401
    sixth = anonymous.post("login", {"username": "BEN", "password": PASSWORD})
    assert (sixth.status, sixth.code) == (429, "too_many_requests")
    assert 1 <= int(sixth.headers["Retry-After"]) <= 60
    assert anonymous.post("login", {"username": "ana", "password": PASSWORD}).status == 200
    elsewhere = Api(None)
    elsewhere.client.defaults["REMOTE_ADDR"] = "10.0.0.9"
    assert elsewhere.post("login", {"username": "ben", "password": PASSWORD}).status == 200


def test_a_throttle_forgets_as_time_passes_and_keeps_little():
    now = [0.0]
    throttle = Throttle(2, 60, clock=lambda: now[0])
    throttle.attempt("a")
    now[0] = 30
    throttle.attempt("a")
    with pytest.raises(TooManyAttempts) as refused:
        throttle.attempt("a")
    assert refused.value.wait_seconds == 30
    now[0] = 60
    throttle.attempt("a")
    throttle.forgive("a")
    throttle.attempt("a")
    throttle.attempt("a")
    throttle.take_back("a")
    throttle.take_back("nobody")
    throttle.attempt("a")
    with pytest.raises(TooManyAttempts):
        throttle.attempt("a")


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic eDp5", "wrong", "Bearer " + "x" * 500])
def test_a_wrong_credential_is_refused_even_with_a_session(header: str, api: AsPerson, cast: Cast):
    anonymous = api("")
    anonymous.client.force_login(cast.ben)
    assert anonymous.get("whoami").status == 200
    reply = anonymous.get("whoami", authorization=header)
    assert (reply.status, reply.code) == (401, "not_authenticated")
    assert reply.headers["WWW-Authenticate"] == 'Bearer realm="trainyard"'


def test_a_session_may_write_with_the_csrf_header(api: AsPerson, cast: Cast):
    anonymous = api("")
    anonymous.client.handler.enforce_csrf_checks = True
    anonymous.client.force_login(cast.ben)
    token = "a" * 32
    anonymous.client.cookies["yard_csrf"] = token
    assert anonymous.post("tokens", {"name": "x"}).status == 403
    assert anonymous.post("tokens", {"name": "x"}, x_csrftoken="b" * 32).status == 403
    assert anonymous.post("tokens", {"name": "x"}, x_csrftoken=token).status == 201


def test_whoami_tells_the_roles(api: AsPerson):
    assert api("ana").get("whoami").body == {
        "username": "ana",
        "email": "",
        "is_admin": False,
        "is_read_only": False,
        "roles": {"team-a": "owner"},
    }
    assert api("root").get("whoami").body["is_admin"] is True


def test_a_token_is_shown_once_and_ends_at_once(api: AsPerson, cast: Cast):
    ben = api("ben")
    made = ben.post("tokens", {"name": "ci", "days": 7, "is_read_only": True}).body
    assert Token.objects.filter(digest=made["token"]).count() == 0
    listed = [row for row in ben.get("tokens").body["results"] if row["id"] == made["id"]]
    assert listed == [{name: value for name, value in made.items() if name != "token"}]
    ci = bearer(made["token"])
    assert ci.get("projects/team-a").status == 200
    assert ci.post("projects/team-a/jobs", {"name": "x", "kind": "train"}).status == 403
    assert ci.post("projects/team-a/jobs?dry_run=true", {"name": "x", "kind": "train"}).status == 403
    assert ben.delete(f"tokens/{made['id']}").status == 204
    assert ci.get("whoami").status == 401
    assert ben.delete(f"tokens/{made['id']}").status == 404


def test_an_expired_token_and_one_of_a_locked_user_are_refused(api: AsPerson, cast: Cast):
    ben = api("ben")
    Token.objects.filter(user=cast.ben).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert ben.get("whoami").status == 401
    ana = api("ana")
    api("root").patch("users/ana", {"is_active": False})
    assert ana.get("whoami").status == 401


def test_tokens_for_others_are_the_admins_to_make(api: AsPerson):
    assert api("ben").post("tokens", {"name": "x", "user": "ana"}).status == 403
    made = api("root").post("tokens", {"name": "x", "user": "ana"}).body
    assert bearer(made["token"]).get("whoami").body["username"] == "ana"
    assert api("root").post("tokens", {"name": "x", "user": "nobody"}).status == 404
    assert api("ben").post("tokens", {"name": "x", "days": 366}).pointers == ["/days"]


def test_admins_create_users_who_can_sign_in(api: AsPerson):
    root = api("root")
    made = root.post("users", {"username": "dan", "password": "a long enough one", "is_admin": True})
    assert (made.status, made.body["is_admin"]) == (201, True)
    assert api("").post("login", {"username": "dan", "password": "a long enough one"}).status == 200
    assert root.post("users", {"username": "dan"}).code == "name_taken"
    weak = root.post("users", {"username": "eve", "password": "short"})
    assert (weak.code, weak.pointers) == ("weak_password", ["/password"])
    assert root.get("users/eve").status == 404


def test_a_user_changes_the_own_password_and_nothing_else(api: AsPerson):
    ben, change = api("ben"), {"password": "another long one", "current_password": PASSWORD}
    assert ben.patch("users/ben", change).status == 200
    assert api("").post("login", {"username": "ben", "password": "another long one"}).status == 200
    assert ben.patch("users/ben", {"is_admin": True}).status == 403
    assert ben.patch("users/ana", {"password": "another long one"}).status == 404
    assert ben.get("users/ben").body["is_admin"] is False


def test_the_last_admin_stays(api: AsPerson):
    reply = api("root").patch("users/root", {"is_admin": False})
    assert (reply.status, reply.code) == (409, "last_admin")
    assert api("root").get("whoami").body["is_admin"] is True


def test_the_bootstrap_token_is_an_admin_while_it_is_set(settings, cast: Cast):
    settings.BOOTSTRAP_TOKEN = SECRET
    register_bootstrap_token()
    assert bearer(SECRET).get("whoami").body["username"] == "bootstrap"
    assert bearer(SECRET).post("projects", {"name": "team-c"}).status == 201
    assert bearer(SECRET + "x").get("whoami").status == 401
    settings.BOOTSTRAP_TOKEN = "b" * 40
    register_bootstrap_token()
    assert bearer(SECRET).get("whoami").status == 401
    assert bearer("b" * 40).get("whoami").status == 200
    settings.BOOTSTRAP_TOKEN = ""
    register_bootstrap_token()
    assert bearer("b" * 40).get("whoami").status == 401
    assert bearer("").get("whoami").status == 401


def test_the_bootstrap_token_is_ended_by_its_setting_alone(settings, api: AsPerson, cast: Cast):
    settings.BOOTSTRAP_TOKEN = SECRET
    register_bootstrap_token()
    token = Token.objects.get(name="bootstrap")
    for caller in (bearer(SECRET), api("root")):
        refused = caller.delete(f"tokens/{token.pk}")
        assert (refused.status, refused.code) == (409, "bootstrap_token")
        assert "TRAINYARD_BOOTSTRAP_TOKEN" in refused.body["detail"]
    token.refresh_from_db()
    assert token.revoked_at is None
    settings.BOOTSTRAP_TOKEN = ""
    assert api("root").delete(f"tokens/{token.pk}").status == 204


def test_the_bootstrap_token_works_before_anything_registered_it(settings, db: None):
    settings.BOOTSTRAP_TOKEN = SECRET
    assert not User.objects.exists()
    assert bearer(SECRET).get("whoami").body["is_admin"] is True


def test_reads_by_a_token_are_not_writes(api: AsPerson, django_assert_num_queries):
    ben = api("ben")
    ben.get("whoami")
    assert Token.objects.get(user__username="ben").last_used_at is not None
    with django_assert_num_queries(2):
        ben.get("whoami")
