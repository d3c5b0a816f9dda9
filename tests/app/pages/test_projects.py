"""Projects on pages: create, edit, delete, members, and what an owner may not change."""

from collections.abc import Callable

import pytest
from django.test import Client

from controlplane.actions import directory
from controlplane.http.throttle import Throttle
from controlplane.models import AuditEntry, Cluster, Membership, Node, Project, User
from controlplane.notation import parse_duration, write_duration
from tests.builders import make_job
from tests.cast import Cast

Visit = Callable[[User | None], Client]


def told(answer: object) -> str:
    return " ".join(str(message) for message in answer.context["messages"])  # type: ignore[attr-defined]  # a test answer


def test_create(cast: Cast, visit: Visit):
    form = {
        "name": "team-new",
        "cluster": Cluster.objects.get().pk,
        "gpu_quota_milli": "2.5",
        "over_quota_weight_milli": "",
        "gpu_limit_milli": "8",
        "priority": "3",
        "train_pools": ["default"],
        "description": "New",
        "interactive_max_seconds": "8h",
        "interactive_idle_seconds": "",
    }
    answer = visit(cast.root).post("/new/project", form, follow=True)
    project = Project.objects.get(name="team-new")
    assert answer.redirect_chain == [("/projects/team-new", 302)]
    assert (project.gpu_quota_milli, project.over_quota_weight_milli, project.gpu_limit_milli) == (
        2500,
        None,
        8000,
    )
    assert project.node_pools == {"train": ["default"], "interactive": []}
    assert (project.interactive_max_seconds, project.interactive_idle_seconds) == (28800, None)
    assert "now add members" in told(answer)
    assert "2.5" in answer.content.decode()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Team A"}, "name"),
        ({"name": "team-a"}, "name"),
        ({"name": "x" * 51}, "name"),
        ({"gpu_quota_milli": "-1"}, "gpu_quota_milli"),
        ({"gpu_quota_milli": "0.00001"}, "gpu_quota_milli"),
        ({"gpu_quota_milli": "NaN"}, "gpu_quota_milli"),
        ({"gpu_quota_milli": "1e999"}, "gpu_quota_milli"),
        ({"priority": "high"}, "priority"),
        ({"interactive_max_seconds": "soon"}, "interactive_max_seconds"),
        ({"interactive_idle_seconds": "0"}, "interactive_idle_seconds"),
        ({"train_pools": ["nowhere"]}, "train_pools"),
        ({"cluster": "999"}, "cluster"),
    ],
)
def test_refusals_stand_at_their_fields(cast: Cast, visit: Visit, changes: dict[str, object], field: str):
    form = {"name": "fine", "cluster": Cluster.objects.get().pk, "gpu_quota_milli": "1", "priority": "0"}
    answer = visit(cast.root).post("/new/project", form | changes)
    assert answer.status_code == 400
    assert set(answer.context["form"].errors) == {field}
    assert 'class="error"' in answer.content.decode()
    assert not Project.objects.filter(name="fine").exists()


@pytest.mark.parametrize("quota", ["-1", "0.00001", "9999999", "many"])
def test_a_wrong_quota_is_told_in_our_words(cast: Cast, visit: Visit, quota: str):
    form = {"name": "fine", "cluster": Cluster.objects.get().pk, "gpu_quota_milli": quota, "priority": "0"}
    page = visit(cast.root).post("/new/project", form).content.decode()
    assert page.count("Write a number of GPUs from 0 to 1,000,000, with at most three decimals.") == 1


def test_a_quota_above_the_cluster_is_allowed_with_a_warning(cast: Cast, visit: Visit):
    form = {"name": "vast", "cluster": Cluster.objects.get().pk, "gpu_quota_milli": "17", "priority": "0"}
    answer = visit(cast.root).post("/new/project", form, follow=True)
    assert "cannot be met in full" in told(answer)


def test_an_owner_edits_what_is_theirs_and_nothing_else(cast: Cast, visit: Visit):
    client = visit(cast.ana)
    assert set(client.get("/projects/team-a/edit").context["form"].fields) == {
        "description",
        "interactive_max_seconds",
        "interactive_idle_seconds",
    }
    client.post(
        "/projects/team-a/edit",
        {"description": "Ours", "interactive_max_seconds": "2h", "gpu_quota_milli": "16"},
    )
    cast.project.refresh_from_db()
    assert (cast.project.description, cast.project.interactive_max_seconds) == ("Ours", 7200)
    assert cast.project.gpu_quota_milli == 4000


def test_a_change_made_while_the_form_was_open_is_not_lost(cast: Cast, visit: Visit):
    client, address = visit(cast.root), "/projects/team-a/edit"
    form = {"gpu_quota_milli": "4", "priority": "0", "description": "Ours"}
    form["seen"] = client.get(address).context["seen"]
    visit(cast.root).post(address, {"gpu_quota_milli": "6", "priority": "0"})
    refused = client.post(address, form)
    assert refused.status_code == 400
    assert "It was changed while this form was open." in refused.content.decode()
    cast.project.refresh_from_db()
    assert cast.project.gpu_quota_milli == 6000
    form["seen"] = refused.context["seen"]
    assert client.post(address, form).status_code == 302
    cast.project.refresh_from_db()
    assert (cast.project.gpu_quota_milli, cast.project.description) == (4000, "Ours")


def test_a_change_of_what_an_owner_cannot_change_does_not_refuse_the_form_of_an_owner(
    cast: Cast, visit: Visit
):
    client, address = visit(cast.ana), "/projects/team-a/edit"
    seen = client.get(address).context["seen"]
    visit(cast.root).post(address, {"gpu_quota_milli": "6", "priority": "0"})
    assert client.post(address, {"description": "Ours", "seen": seen}).status_code == 302
    cast.project.refresh_from_db()
    assert (cast.project.gpu_quota_milli, cast.project.description) == (6000, "Ours")


def test_an_admin_edits_everything_and_the_form_shows_what_is_there(cast: Cast, visit: Visit):
    client = visit(cast.root)
    page = client.get("/projects/team-a/edit").content.decode()
    assert 'name="gpu_quota_milli" value="4"' in page
    answer = client.post(
        "/projects/team-a/edit", {"gpu_quota_milli": "6", "priority": "1", "over_quota_weight_milli": "0"}
    )
    assert answer.status_code == 302
    cast.project.refresh_from_db()
    assert (cast.project.gpu_quota_milli, cast.project.over_quota_weight_milli, cast.project.priority) == (
        6000,
        0,
        1,
    )


def test_members(cast: Cast, visit: Visit):
    client = visit(cast.ana)

    def send(verb: str, **form: str) -> str:
        return told(client.post(f"/projects/team-a/members/{verb}", form, follow=True))

    def roles() -> dict[str, str]:
        return dict(Membership.objects.filter(project=cast.project).values_list("user__username", "role"))

    assert "chi is viewer now." in send("set", user="chi", role="viewer")
    assert "ben is viewer now." in send("set", user="ben", role="viewer")
    assert "vera is no longer a member." in send("remove", user="vera")
    assert roles() == {"ana": "owner", "ben": "viewer", "chi": "viewer"}
    assert "last owner" in send("remove", user="ana")
    assert "not a member of team-a" in send("remove", user="vera")
    assert roles()["ana"] == "owner"


@pytest.mark.parametrize(
    ("form", "field", "words"),
    [
        ({"user": "nobody", "role": "owner"}, "user", "no active user named nobody"),
        ({"user": "", "role": "owner"}, "user", "no active user named ?"),
        ({"user": "chi", "role": "king"}, "role", "role is one of"),
        ({"user": "ana", "role": "member"}, "role of ana", "last owner"),
    ],
)
def test_a_refused_member_is_said_at_the_field_which_keeps_what_was_typed(
    cast: Cast, visit: Visit, form: dict[str, str], field: str, words: str
):
    answer = visit(cast.ana).post("/projects/team-a/members/set", form)
    page = answer.content.decode()
    assert answer.status_code == 400
    assert list(answer.context["errors"]) == [field]
    assert words in page
    assert page.count("autofocus") == 1
    if field == "user":
        assert f'name="user" value="{form["user"]}"' in page


def test_removing_a_member_asks_and_says_which_jobs_stay(cast: Cast, visit: Visit):
    client, here = visit(cast.ana), "/projects/team-a/members/remove"
    assert f'href="{here}?user=ben"' in client.get("/projects/team-a").content.decode()
    assert "ben has no unfinished jobs there." in client.get(f"{here}?user=ben").content.decode()
    for name in ("a", "b"):
        make_job(cast.project, name, cast.ben)
    make_job(cast.project, "c", cast.ana)
    page = client.get(f"{here}?user=ben").content.decode()
    assert "Remove ben from team-a?" in page
    assert "Not stopped: 2 jobs that wait of ben." in page
    assert Membership.objects.filter(user=cast.ben).exists()
    assert client.get(f"{here}?user=chi")["Location"] == "/projects/team-a"


def test_names_are_suggested_for_a_prefix(cast: Cast, visit: Visit):
    User.objects.bulk_create(User(username=f"candice-{number:02d}") for number in range(12))
    User.objects.create(username="candice-locked", is_active=False)
    client, here = visit(cast.ana), "/projects/team-a/members/suggest.json"
    assert client.get(f"{here}?q=c").json() == {"names": []}  # too short to name anyone
    assert client.get(f"{here}?q=CAND").json()["names"] == [f"candice-{number:02d}" for number in range(10)]
    entry = AuditEntry.objects.get(verb="user.look_up")
    assert (entry.actor, entry.object_name, entry.after) == ("ana", "team-a", {"prefix": "CAND", "found": 10})
    assert client.get(f"{here}?q=ben").json() == {"names": []}  # a member already
    assert client.get(f"{here}?q=%25%25%25").json() == {"names": []}


def test_look_ups_of_names_are_limited(cast: Cast, visit: Visit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directory, "_lookups", Throttle(2, 60))
    client = visit(cast.ana)
    answers = [client.get("/projects/team-a/members/suggest.json?q=abc") for _look_up in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2]["Retry-After"]) > 0
    refused = client.post("/projects/team-a/members/set", {"user": "chi", "role": "member"})
    assert refused.status_code == 400
    assert "Too many" in refused.context["errors"]["user"]


def test_delete_says_what_goes_and_wants_the_name(cast: Cast, visit: Visit):
    client = visit(cast.root)
    job = make_job(cast.project, "busy", cast.ana)
    assert "One job is unfinished" in client.get("/projects/team-a/delete").content.decode()
    assert "1 unfinished jobs" in told(client.post("/projects/team-a/delete", {"confirm": "team-a"}))
    job.state = "stopped"
    job.save()
    page = client.get("/projects/team-a/delete").content.decode()
    assert "Finished jobs and their logs</dt><dd>1" in page
    client.post("/projects/team-a/delete", {"confirm": "team-b"})
    assert Project.objects.filter(name="team-a").exists()
    assert client.post("/projects/team-a/delete", {"confirm": "team-a"})["Location"] == "/projects"
    assert not Project.objects.filter(name="team-a").exists()


def test_delete_says_that_a_namespace_stays_on_a_cluster_that_is_away(cast: Cast, visit: Visit):
    Cluster.objects.update(engine="kubernetes")
    client = visit(cast.root)
    assert "It stays until" not in client.get("/projects/team-a/delete").content.decode()
    Cluster.objects.update(is_reachable=False)
    assert "It stays until" in client.get("/projects/team-a/delete").content.decode()


def test_others_see_quota_and_allocation_but_no_members(cast: Cast, visit: Visit):
    page = visit(cast.chi).get("/projects").content.decode()
    assert "team-a" in page
    assert 'href="/projects/team-a"' not in page
    assert 'href="/projects/team-b"' in page
    assert "/users/ana" not in page


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30m", 1800), ("2 h", 7200), ("1d", 86400), ("1h 30m", 5400)]
)
def test_durations(text: str, seconds: int):
    assert parse_duration(text) == seconds
    assert parse_duration(write_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["h", "-1", "1.5h", "1y", "a b"])
def test_what_is_no_duration(text: str):
    with pytest.raises(ValueError, match=text):
        parse_duration(text)


def test_long_lists_show_a_page(cast: Cast, visit: Visit):
    Project.objects.bulk_create(
        Project(name=f"x{number:03d}", cluster=cast.project.cluster) for number in range(120)
    )
    Node.objects.bulk_create(
        Node(name=f"x{number:03d}", cluster=cast.project.cluster) for number in range(120)
    )
    User.objects.bulk_create(User(username=f"x{number:03d}") for number in range(120))
    client = visit(cast.root)
    for path in ("/projects", "/nodes", "/users"):
        answer = client.get(path)
        assert len(answer.context["page"].table.rows) == 100, path
        following = client.get(f"{path}?after={answer.context['page'].after}")
        assert 20 <= len(following.context["page"].table.rows) < 100, path
        assert 'rel="prev"' in following.content.decode(), path


def test_a_project_shows_the_jobs_that_matter_most(cast: Cast, visit: Visit):
    """Twenty, those with GPUs first; the link says how many there are."""
    jobs = [make_job(cast.project, f"job-{number:02}", cast.ana) for number in range(25)]
    jobs[3].state = "running"
    jobs[3].save()
    shown = visit(cast.ana).get("/projects/team-a").content.decode()
    assert shown.index("job-03") < shown.index("job-24") < shown.index("job-06")
    assert "job-05" not in shown
    assert "25, see all" in shown
