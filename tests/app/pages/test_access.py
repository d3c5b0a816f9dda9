"""Every page for every role: who gets in, who gets 404, who gets 403; no page shows a verb that its viewer lacks."""

from collections.abc import Callable

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern

from controlplane.models import User
from dashboards.urls import urlpatterns
from tests.app.pages.conftest import Yard

PEOPLE = ("root", "ana", "ben", "vera", "chi")  # admin, owner, member, viewer, stranger
Visit = Callable[[User | None], Client]

# page -> status for admin, owner, member, viewer, stranger
PAGES = {
    "/": (200, 200, 200, 200, 200),
    "/jobs": (200, 200, 200, 200, 200),
    "/jobs?state=running&project=team-a&kind=train&user=ana&q=run": (200, 200, 200, 200, 200),
    "/new/job": (200, 200, 200, 200, 200),
    "/new/job?clone={running}": (200, 200, 200, 200, 404),
    "/jobs/{running}": (200, 200, 200, 200, 404),
    "/jobs/{queued}": (200, 200, 200, 200, 404),
    "/jobs/{finished}": (200, 200, 200, 200, 404),
    "/jobs/{running}/logs": (200, 200, 200, 200, 404),
    "/jobs/{running}/metrics": (200, 200, 200, 200, 404),
    "/jobs/{running}/events": (200, 200, 200, 200, 404),
    "/jobs/{running}/pods": (200, 200, 200, 200, 404),
    "/jobs/{running}/spec": (200, 200, 200, 200, 404),
    "/jobs/{running}/terminal": (200, 200, 200, 200, 404),
    "/jobs/{running}/nonsense": (404, 404, 404, 404, 404),
    "/jobs/{running}/log.txt": (200, 200, 200, 200, 404),
    "/jobs/{running}/log-index.json": (200, 200, 200, 200, 404),
    "/jobs/not-a-uuid": (404, 404, 404, 404, 404),
    "/jobs/00000000-0000-0000-0000-000000000000": (404, 404, 404, 404, 404),
    "/jobs/selected?verb=stop&row={running}": (200, 200, 200, 200, 200),
    "/projects": (200, 200, 200, 200, 200),
    "/new/project": (200, 403, 403, 403, 403),
    "/projects/team-a": (200, 200, 200, 200, 404),
    "/projects/team-a/edit": (200, 200, 403, 403, 404),
    "/projects/team-a/delete": (200, 403, 403, 403, 404),
    "/projects/team-a/members/set": (302, 302, 403, 403, 404),
    "/projects/team-a/members/suggest.json?q=abc": (200, 200, 403, 403, 404),
    "/projects/team-a/members/remove?user=ben": (200, 200, 403, 403, 404),
    "/projects/nowhere": (404, 404, 404, 404, 404),
    "/nodes": (200, 200, 200, 200, 200),
    "/nodes?cluster=memory": (200, 200, 200, 200, 200),
    "/nodes/dgx1-1": (200, 200, 200, 200, 200),
    "/nodes/nowhere": (404, 404, 404, 404, 404),
    "/nodes/dgx1-1/card": (200, 200, 200, 200, 200),
    "/nodes/nowhere/card": (404, 404, 404, 404, 404),
    "/clusters": (200, 403, 403, 403, 403),
    "/new/cluster": (200, 403, 403, 403, 403),
    "/clusters/memory": (200, 403, 403, 403, 403),
    "/clusters/memory/edit": (404, 403, 403, 403, 403),
    "/clusters/nowhere": (404, 403, 403, 403, 403),
    "/users": (200, 403, 403, 403, 403),
    "/users/ana": (200, 200, 200, 200, 404),
    "/users/chi": (200, 404, 404, 404, 200),
    "/users/ben/do/lock": (200, 403, 403, 403, 404),
    "/users/ben/do/promote": (200, 403, 403, 403, 404),
    "/tokens": (200, 200, 200, 200, 200),
    "/tokens/999/revoke": (404, 404, 404, 404, 404),
    "/analytics": (200, 200, 200, 200, 200),
    "/analytics?range=7d": (200, 200, 200, 200, 200),
    "/charts/analytics/allocation.json?range=7d": (200, 200, 200, 200, 200),
    "/charts/analytics/utilisation.json": (200, 200, 200, 200, 200),
    "/charts/analytics/waiting.json": (200, 200, 200, 200, 200),
    "/charts/analytics/users.json": (200, 200, 200, 200, 200),
    "/charts/analytics/nonsense.json": (404, 404, 404, 404, 404),
    "/charts/template/dark.json": (200, 200, 200, 200, 200),
    "/charts/projects/team-a/allocation.json": (200, 200, 200, 200, 404),
    "/charts/nodes/dgx1-1/utilisation.json": (200, 200, 200, 200, 200),
    "/charts/nodes/dgx1-1/memory.json": (200, 200, 200, 200, 200),
    "/charts/nodes/nowhere/memory.json": (404, 404, 404, 404, 404),
    "/charts/jobs/{running}/gpu_utilization.json": (200, 200, 200, 200, 404),
    "/charts/jobs/{running}/gpu_memory.json": (200, 200, 200, 200, 404),
    "/analytics.csv": (200, 200, 200, 200, 200),
    "/charts/utilisation.json": (200, 200, 200, 200, 200),
    "/charts/allocation.json?span=86400&theme=dark": (200, 200, 200, 200, 200),
    "/charts/jobs/{running}/loss.json": (200, 200, 200, 200, 404),
    "/charts/jobs/{running}/nonsense.json": (404, 404, 404, 404, 404),
    "/counts.json": (200, 200, 200, 200, 200),
    "/search.json?q=run": (200, 200, 200, 200, 200),
}
# verb -> status of its POST
VERBS = {
    "/jobs/selected": (400, 400, 400, 400, 400),
    "/jobs/{running}/do/suspend": (302, 302, 302, 403, 404),
    "/jobs/{running}/do/resume": (302, 302, 302, 403, 404),
    "/jobs/{running}/do/stop": (302, 302, 302, 403, 404),
    "/jobs/{finished}/do/retry": (302, 302, 302, 403, 404),
    "/jobs/{finished}/do/delete": (302, 302, 302, 403, 404),
    "/projects/team-a/members/set": (400, 400, 403, 403, 404),
    "/projects/team-a/members/remove": (302, 302, 403, 403, 404),
    "/projects/team-a/edit": (400, 302, 403, 403, 404),  # an admin's form has more fields, all empty here
    "/projects/team-a/delete": (200, 403, 403, 403, 404),
    "/nodes/dgx1-1/do/cordon": (302, 403, 403, 403, 403),
    "/nodes/dgx1-1/do/uncordon": (302, 403, 403, 403, 403),
    "/nodes/dgx1-1/do/drain": (302, 403, 403, 403, 403),
    "/nodes/dgx1-1/do/confirm-dead": (302, 403, 403, 403, 403),
    "/new/cluster": (400, 403, 403, 403, 403),
    "/clusters/memory/edit": (404, 403, 403, 403, 403),
    "/clusters/memory/do/check": (302, 403, 403, 403, 403),
    "/clusters/memory/do/detach": (302, 403, 403, 403, 403),
    "/users": (400, 403, 403, 403, 403),
    "/users/ben/do/lock": (302, 403, 403, 403, 404),
    "/users/ben/do/unlock": (302, 403, 403, 403, 404),
    "/users/ben/do/promote": (302, 403, 403, 403, 404),
    "/users/ben/do/demote": (302, 403, 403, 403, 404),
    "/users/ben/do/password": (302, 403, 302, 403, 404),
    "/tokens/999/revoke": (404, 404, 404, 404, 404),
    "/new/job": (400, 400, 400, 400, 400),
    "/new/project": (400, 403, 403, 403, 403),
    "/new/job/preview.json": (200, 200, 200, 200, 200),
}
OPEN = {"login", "logout", "setup"}


def filled(path: str, yard: Yard) -> str:
    return path.format(running=yard.running.pk, queued=yard.queued.pk, finished=yard.finished.pk)


@pytest.mark.parametrize("person", PEOPLE)
def test_pages(yard: Yard, visit: Visit, person: str):
    client = visit(getattr(yard.cast, person))
    found = {path: client.get(filled(path, yard)).status_code for path in PAGES}
    assert found == {path: statuses[PEOPLE.index(person)] for path, statuses in PAGES.items()}


@pytest.mark.parametrize("person", PEOPLE)
def test_verbs(yard: Yard, visit: Visit, person: str):
    client = visit(getattr(yard.cast, person))
    found = {}
    for verb in VERBS:
        with transaction.atomic():  # each from the same start
            found[verb] = client.post(filled(verb, yard)).status_code
            transaction.set_rollback(True)
    assert found == {verb: statuses[PEOPLE.index(person)] for verb, statuses in VERBS.items()}


def test_what_is_not_there_keeps_the_navigation_for_who_is_signed_in(yard: Yard, visit: Visit):
    page = visit(yard.cast.chi).get(f"/jobs/{yard.running.pk}").content.decode()
    assert 'id="nav"' in page
    assert "Not found" in page
    assert 'id="nav"' not in visit(None).get("/no/such/page").content.decode()


def test_the_numbers_beside_the_navigation_are_what_the_pages_list(yard: Yard, visit: Visit):
    assert visit(yard.cast.chi).get("/counts.json").json() == {"jobs": 0, "projects": 2, "nodes": 2}
    assert visit(yard.cast.root).get("/counts.json").json()["jobs"] == 2


def test_nobody_gets_in_without_signing_in(yard: Yard, visit: Visit):
    client = visit(None)
    for path in [*PAGES, *VERBS]:
        looked, sent = client.get(filled(path, yard)), client.post(filled(path, yard))
        assert looked.status_code in (302, 405), path  # 405: a verb asked for with GET
        assert looked.get("Location", "/login").split("?")[0] == "/login", path
        assert (sent.status_code, sent["Location"].split("?")[0]) == (302, "/login"), path


def test_every_page_is_in_these_tables(yard: Yard):
    known = {filled(path, yard).split("?")[0].lstrip("/") for path in [*PAGES, *VERBS]}
    missing = [
        pattern.name
        for pattern in urlpatterns
        if isinstance(pattern, URLPattern)
        and pattern.name not in OPEN
        and not any(pattern.pattern.match(path) for path in known)
    ]
    assert missing == []


def test_a_viewer_sees_no_verb(yard: Yard, visit: Visit):
    client = visit(yard.cast.vera)
    for path in (
        "/jobs/{running}",
        "/jobs/{queued}",
        "/jobs/{finished}",
        "/projects/team-a",
        "/nodes/dgx1-1",
    ):
        page = client.get(filled(path, yard)).content.decode()
        assert page.count('method="post"') - page.count('action="/logout"') == 0, path
        assert "data-dialog" not in page, path


def test_a_stranger_is_told_no_names_of_jobs(yard: Yard, visit: Visit):
    client = visit(yard.cast.chi)
    for path in ("/", "/jobs", "/nodes", "/nodes/dgx1-1", "/projects", "/search.json?q=run", "/analytics"):
        page = client.get(path).content.decode()
        assert str(yard.running.pk) not in page, path
        assert str(yard.queued.pk) not in page, path
    assert "team-a" in client.get("/").content.decode()  # who holds the GPUs is for everybody


def test_forms_need_their_csrf_token(yard: Yard):
    client = Client(enforce_csrf_checks=True)
    client.force_login(yard.cast.ana)
    answer = client.post(f"/jobs/{yard.running.pk}/do/stop")
    assert answer.status_code == 403
    assert "reload the page and send it again" in answer.content.decode()
    yard.running.refresh_from_db()
    assert yard.running.state == "running"


def test_every_answer_has_the_policy(yard: Yard, visit: Visit):
    client = visit(yard.cast.ana)
    for path in ("/", "/login", "/nowhere", "/jobs", "/charts/utilisation.json"):
        policy = client.get(path)["Content-Security-Policy"]
        assert "script-src 'self'" in policy, path
        assert "unsafe" not in policy, path


def test_pages_carry_nothing_inline(yard: Yard, visit: Visit):
    client = visit(yard.cast.root)
    for path, statuses in PAGES.items():
        answer = client.get(filled(path, yard))
        if statuses[0] == 200 and answer["Content-Type"].startswith("text/html"):
            page = answer.content.decode()
            found = [
                text for text in (" style=", "<style", " onclick", 'src="http', "javascript:") if text in page
            ]
            assert found == [], path
