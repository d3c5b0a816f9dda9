"""Resizing elastic jobs over REST."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from controlplane.logstore.reader import log_path
from controlplane.logstore.writer import STDOUT, LogWriter
from jobs.models import Attempt, Generation, Job
from tests.app.api.client import Api
from tests.app.api.placing import place
from tests.builders import make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]


def test_only_elastic_jobs_scale(api: AsPerson, job: Job):
    reply = api("ben").post(f"jobs/{job.pk}/scale", {"workers": 5})
    assert (reply.status, reply.code) == (409, "not_elastic")
    assert api("ben").post(f"jobs/{job.pk}/scale", {"workers": 0}).pointers == ["/workers"]


def elastic_job(cast: Cast, **fields: Any) -> Job:
    bounds = {"min_workers": 2, "workers": 3, "max_workers": 8}
    return make_job(cast.project, "el", cast.ben, kind="elastic", **bounds | fields)


def test_a_scaling_is_tried_out_by_the_query_as_every_write_is(api: AsPerson, cast: Cast):
    job, ben = elastic_job(cast), api("ben")
    reply = ben.post(f"jobs/{job.pk}/scale?dry_run=true", {"workers": 5})
    assert (reply.status, reply.body["state"], reply.body["to"]) == (200, "planned", 5)
    refused = ben.post(f"jobs/{job.pk}/scale", {"workers": 5, "dry_run": True})
    assert (refused.status, refused.pointers) == (400, ["/dry_run"])
    assert refused.body["errors"][0]["code"] == "dry_run_in_body"
    assert ben.get(f"jobs/{job.pk}").body["workers"] == 3
    assert ben.get(f"jobs/{job.pk}/scale-operations").body["results"] == []


def test_the_log_of_an_elastic_job_is_that_of_its_first_worker(
    api: AsPerson, cast: Cast, tmp_path: Path, settings: LazySettings
):
    settings.LOG_DIR = tmp_path
    job = elastic_job(cast)
    place(job, ranks=2)
    attempt = Attempt.objects.get(job=job)
    for number, ranks in enumerate(((0, 1), (1,)), 1):
        members = [{"id": rank, "address": "h:1"} for rank in ranks]
        Generation.objects.create(attempt=attempt, number=number, members=members, created_at=timezone.now())
    for rank in (0, 1):
        log = LogWriter(str(log_path(tmp_path, str(job.pk), 1, rank)))
        log.feed(STDOUT, b"of %d\n" % rank)
        log.close()
    shown = {query: api("ben").get(f"jobs/{job.pk}/logs{query}").body for query in ("", "?rank=0", "?tail=1")}
    assert [(one["rank"], one["lines"][0]["text"]) for one in shown.values()] == [
        (1, "of 1"),
        (0, "of 0"),
        (1, "of 1"),
    ]


def test_an_elastic_job_that_waits_is_scaled_at_once(api: AsPerson, cast: Cast):
    job, ben = elastic_job(cast), api("ben")
    reply = ben.post(f"jobs/{job.pk}/scale", {"workers": 5, "timeout_seconds": 600})
    assert (reply.status, reply.body["from"], reply.body["to"]) == (200, 3, 5)
    assert (reply.body["state"], reply.body["requested_by"]) == ("succeeded", "ben")
    assert ben.get(f"jobs/{job.pk}").body["workers"] == 5
    ben.post(f"jobs/{job.pk}/suspend")
    assert ben.post(f"jobs/{job.pk}/scale", {"workers": 2}).body["from"] == 5
    job.refresh_from_db()
    assert (job.pods_wanted, job.spec["workers"]) == (2, 2)
    listed = ben.get(f"jobs/{job.pk}/scale-operations?limit=1").body
    assert [(row["from"], row["to"]) for row in listed["results"]] == [(5, 2)]
    older = ben.get(listed["next"].partition("/api/v1/")[2]).body
    assert older["results"] == [reply.body]
    kinds = [row["kind"] for row in ben.get(f"jobs/{job.pk}/events").body["results"]]
    assert kinds == ["job.scaled", "job.suspended", "job.scaled", "job.submitted"]
    assert api("chi").get(f"jobs/{job.pk}/scale-operations").status == 404


@pytest.mark.parametrize("workers", [1, 9])
def test_no_job_is_scaled_beyond_its_bounds(api: AsPerson, cast: Cast, workers: int):
    job = elastic_job(cast)
    reply = api("ben").post(f"jobs/{job.pk}/scale", {"workers": workers})
    assert (reply.status, reply.code, reply.pointers) == (400, "out_of_bounds", ["/workers"])
    job.refresh_from_db()
    assert job.pods_wanted == 3


def test_a_size_that_is_not_allowed_is_refused_with_the_nearest(api: AsPerson, cast: Cast):
    job, ben = elastic_job(cast, workers=2, worker_sizes=[2, 4, 8]), api("ben")
    assert ben.get(f"jobs/{job.pk}").body["worker_sizes"] == [2, 4, 8]
    reply = ben.post(f"jobs/{job.pk}/scale", {"workers": 5})
    assert (reply.status, reply.code, reply.pointers) == (400, "size_not_allowed", ["/workers"])
    assert "nearest to 5: 4 and 8" in reply.body["errors"][0]["detail"]
    assert ben.post(f"jobs/{job.pk}/scale", {"workers": 4}).status == 200


def test_a_job_that_runs_is_not_scaled_and_the_answer_says_what_to_do(api: AsPerson, cast: Cast):
    job = elastic_job(cast)
    place(job, ranks=2)
    reply = api("ben").post(f"jobs/{job.pk}/scale", {"workers": 5})
    assert (reply.status, reply.code) == (409, "running_not_scaled")
    assert "with 2 workers" in reply.body["detail"]
    assert "Suspend it, scale it and resume it" in reply.body["detail"]
    shown = api("ben").get(f"jobs/{job.pk}").body
    assert (shown["workers"], shown["status"]["workers"]) == (3, 2)
    Job.objects.filter(pk=job.pk).update(state="succeeded")
    assert api("ben").post(f"jobs/{job.pk}/scale", {"workers": 5}).code == "job_finished"
    assert api("ben").get(f"jobs/{job.pk}/scale-operations").body["results"] == []
