"""The page of the audit log: who changed what, for admins."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from controlplane.access import Actor
from controlplane.actions.projects import edit_project
from controlplane.models import AuditEntry, User
from dashboards.lists import audit
from dashboards.lists.audit import changes
from tests.builders import make_job
from tests.cast import Cast

Visit = Callable[[User | None], Client]


def test_an_admin_sees_who_changed_what(cast: Cast, visit: Visit):
    edit_project(cast.project, {"gpu_quota_milli": 6000}, actor=Actor(cast.root))
    page = visit(cast.root).get("/audit").content.decode()
    assert "project.edit" in page
    assert 'href="/projects/team-a"' in page
    assert "gpu_quota: 4 → 6" in page


def test_a_changed_text_is_escaped_once(cast: Cast, visit: Visit):
    edit_project(cast.project, {"description": "Ana's <team> & more"}, actor=Actor(cast.root))
    page = visit(cast.root).get("/audit").content.decode()
    assert ">description: none → Ana&#x27;s &lt;team&gt; &amp; more<" in page


def test_a_name_that_fits_no_address_is_shown_without_a_link(cast: Cast, visit: Visit):
    AuditEntry.objects.create(actor="ana", verb="user.create", object_type="user", object_name="a/b")
    answer = visit(cast.root).get("/audit")
    assert answer.status_code == 200
    assert "a/b <span" in answer.content.decode()


def test_only_admins_see_it(cast: Cast, visit: Visit):
    assert visit(cast.ana).get("/audit").status_code == 403
    assert 'href="/audit"' not in visit(cast.ana).get("/").content.decode()
    assert 'href="/audit"' in visit(cast.root).get("/").content.decode()


def test_a_job_is_found_and_shown_by_its_name(cast: Cast, visit: Visit):
    job = make_job(cast.project, name="lanes-7")
    AuditEntry.objects.create(actor="ana", verb="job.stop", object_type="job", object_name=str(job.pk))
    AuditEntry.objects.create(actor="ben", verb="job.stop", object_type="job", object_name="no-id")
    client = visit(cast.root)
    found = client.get("/audit?q=lanes").context["page"].table.rows
    assert {row["name"] for row, _cells in found} == {"lanes-7"}
    assert [row["name"] for row, _cells in client.get("/audit?user=ben").context["page"].table.rows] == [
        "no-id"
    ]
    assert client.get("/audit?type=node").context["page"].summary == "0 changes"


def test_the_number_of_queries_does_not_grow_with_the_entries(
    cast: Cast, visit: Visit, django_assert_max_num_queries: Any
):
    for number in range(30):
        job = make_job(cast.project, name=f"job-{number}")
        AuditEntry.objects.create(actor="ana", verb="job.stop", object_type="job", object_name=str(job.pk))
    client = visit(cast.root)
    with django_assert_max_num_queries(25):
        assert client.get("/audit").status_code == 200


def test_a_long_log_is_neither_counted_nor_read_whole(
    cast: Cast, visit: Visit, monkeypatch: pytest.MonkeyPatch
):
    """Of 300,000 entries both took longer than the rest of the page."""
    monkeypatch.setattr(audit, "COUNTED_MOST", 2)
    for kind in ("job", "node", "job", "project"):
        AuditEntry.objects.create(actor="root", verb=f"{kind}.edit", object_type=kind, object_name="x")
    client = visit(cast.root)
    page = client.get("/audit").context["page"]
    assert page.summary == "more than 2 changes"
    kinds = next(field.choices for field in page.fields if field.key == "type")
    assert kinds == [(kind, kind) for kind in ("job", "node", "project")]
    assert client.get("/audit?type=job").context["page"].summary == "2 changes"


def test_changes_name_what_differs_in_words():
    before = {"gpu_limit_milli": 500, "a": 1, "same": 2, "labels": {"x": "y"}, "is_on": True}
    after = {"gpu_limit_milli": None, "a": 2500, "same": 2, "labels": {}, "is_on": False, "new": None}
    assert changes(before, after) == [
        ("gpu_limit", "0.5", "none"),
        ("a", "1", "2,500"),
        ("labels", "x=y", "none"),
        ("is_on", "yes", "no"),
    ]
