"""The scheduler's view of a cluster over REST, for a bug report."""

from collections.abc import Callable

import pytest

from controlplane.scheduling.replay import replay
from jobs.models import Job
from tests.app.api.client import Api

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
VIEW = "clusters/memory/view"


def test_an_admin_saves_what_the_scheduler_decides_on(api: AsPerson, job: Job):
    saved = api("root").get(VIEW).body
    assert [one["name"] for one in saved["jobs"]] == ["hyper1"]
    assert replay(saved, str(job.pk))["action"] == "start"


def test_names_can_be_left_out(api: AsPerson, job: Job):
    saved = api("root").get(f"{VIEW}?anonymous=true").body
    assert (saved["jobs"][0]["id"], saved["jobs"][0]["project"]) == ("job-1", "project-1")
    assert "hyper1" not in str(saved)
    assert "team" not in str(saved)
    assert replay(saved, "job-1")["action"] == "start"


def test_nobody_else_reads_it_and_its_size_is_bounded(api: AsPerson, job: Job, monkeypatch):
    assert api("ana").get(VIEW).status == 403
    assert api("root").get("clusters/none/view").status == 404
    monkeypatch.setattr("controlplane.api.views.clusters.MOST_VIEWED_JOBS", 0)
    assert api("root").get(VIEW).code == "too_many_jobs"
