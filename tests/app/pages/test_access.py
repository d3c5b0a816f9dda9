"""What pages show to whom. Who gets in is in tests/access."""

from django.test import Client

from tests.app.pages.conftest import Visit, Yard


def test_what_is_not_there_keeps_the_navigation_for_who_is_signed_in(yard: Yard, visit: Visit):
    page = visit(yard.cast.chi).get(f"/jobs/{yard.running.pk}").content.decode()
    assert 'id="nav"' in page
    assert "Not found" in page
    assert 'id="nav"' not in visit(None).get("/no/such/page").content.decode()


def test_the_numbers_beside_the_navigation_are_what_the_pages_list(yard: Yard, visit: Visit):
    assert visit(yard.cast.chi).get("/counts.json").json() == {
        "jobs": 0,
        "projects": 2,
        "dataset-list": 0,
        "volumes": 0,
        "nodes": 2,
    }
    assert visit(yard.cast.root).get("/counts.json").json()["jobs"] == 2


def test_a_viewer_sees_no_verb(yard: Yard, visit: Visit):
    client = visit(yard.cast.vera)
    for path in (
        f"/jobs/{yard.running.pk}",
        f"/jobs/{yard.queued.pk}",
        f"/jobs/{yard.finished.pk}",
        "/projects/team-a",
        "/nodes/dgx1-1",
    ):
        page = client.get(path).content.decode()
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
