"""User names are found one way only: by owners, within a limit, each look-up with an audit row."""

from collections.abc import Callable

import pytest

from controlplane.access import SYSTEM, Forbidden, NotVisible
from controlplane.actions import directory
from controlplane.actions.accounts import create_user
from controlplane.actions.directory import user_names_starting_with
from controlplane.actions.errors import Invalid
from controlplane.http.throttle import Throttle, TooManyAttempts
from controlplane.models import AuditEntry
from tests.app.api.client import Api
from tests.app.api.conftest import api as api
from tests.cast import Cast

pytestmark = pytest.mark.django_db
MEMBERS = "projects/team-a/members"


def lookups() -> list[dict[str, object]]:
    return list(AuditEntry.objects.filter(verb="user.look_up").order_by("id").values_list("after", flat=True))


@pytest.mark.parametrize("path", [MEMBERS + "?dry_run=true", MEMBERS])
def test_a_probe_for_a_name_leaves_an_audit_row(api: Callable[[str], Api], path: str):
    assert api("ana").post(path, {"user": "nobody", "role": "viewer"}).status == 400
    assert lookups() == [{"name": "nobody", "found": False}]


def test_a_dry_run_that_finds_a_name_leaves_an_audit_row(api: Callable[[str], Api]):
    assert api("ana").post(MEMBERS + "?dry_run=true", {"user": "chi", "role": "viewer"}).status == 200
    body = {"members": [{"user": "ana", "role": "owner"}, {"user": "chi", "role": "viewer"}]}
    assert api("ana").patch("projects/team-a?dry_run=true", body).status == 200
    assert lookups() == [{"name": "chi", "found": True}] * 2


def test_members_and_admins_cost_no_row(api: Callable[[str], Api]):
    assert api("ana").post(MEMBERS, {"user": "ben", "role": "viewer"}).status == 200
    assert api("root").post(MEMBERS, {"user": "chi", "role": "viewer"}).status == 201
    assert lookups() == []


def test_probes_are_limited(api: Callable[[str], Api], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directory, "_lookups", Throttle(2, 600))
    asked = [
        api("ana").post(MEMBERS + "?dry_run=true", {"user": f"u{n}", "role": "viewer"}) for n in range(3)
    ]
    assert [answer.status for answer in asked] == [400, 400, 429]
    assert asked[2].headers["Retry-After"]


def test_a_page_form_obeys_the_same_rule(cast: Cast, client):
    client.force_login(cast.ana)
    client.post("/projects/team-a/members/set", {"user": "nobody", "role": "viewer"})
    assert lookups() == [{"name": "nobody", "found": False}]


def test_completion_is_for_owners_bounded_and_audited(cast: Cast, monkeypatch: pytest.MonkeyPatch):
    for number in range(directory.NAMES_MOST + 2):
        create_user(f"Chris{number:02}", None, actor=SYSTEM)
    found = user_names_starting_with("ch", "team-a", actor=cast.actor("ana"))
    assert len(found) == directory.NAMES_MOST
    assert "ben" not in user_names_starting_with("be", "team-a", actor=cast.actor("ana"))
    assert lookups() == [{"prefix": "ch", "found": 10}, {"prefix": "be", "found": 0}]
    for name, refusal in (("ben", Forbidden), ("vera", Forbidden), ("chi", NotVisible)):
        with pytest.raises(refusal):
            user_names_starting_with("ch", "team-a", actor=cast.actor(name))
    with pytest.raises(Invalid):
        user_names_starting_with("c", "team-a", actor=cast.actor("ana"))
    monkeypatch.setattr(directory, "_lookups", Throttle(1, 600))
    user_names_starting_with("ch", "team-a", actor=cast.actor("ana"))
    with pytest.raises(TooManyAttempts):
        user_names_starting_with("ch", "team-a", actor=cast.actor("ana"))
