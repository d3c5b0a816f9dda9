"""Verbs on jobs before the loop sees them: what is refused leaves nothing behind."""

from functools import partial

import pytest
from django.db import IntegrityError, connection

from controlplane.access import NotVisible
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import AuditEntry, Event
from jobs.actions import (
    clone_body,
    delete_job,
    edit_job,
    record_command,
    record_shell,
    resume_job,
    stop_job,
    submit_job,
    suspend_job,
)
from jobs.models import Job
from jobs.scaling import scale_job
from tests.builders import make_job

GOOD = {"name": "good", "kind": "train", "gpus": 1}


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"gpus": 0.3333333}, "/gpus", "gpu_share_too_fine"),
        ({"gpus": -1}, "/gpus", "out_of_range"),
        ({"gpus": 9}, "/gpus", "spec_impossible"),
        ({"gpus": 1.5}, "/gpus", "gpu_share_above_one"),
        ({"gpus": float("nan")}, "/gpus", "not_a_number"),
        ({"gpus": float("inf")}, "/gpus", "not_a_number"),
        ({"gpus": True}, "/gpus", "not_a_number"),
        ({"gpus": "1"}, "/gpus", "not_a_number"),
        ({"gpus": 0.5, "workers": 2}, "/workers", "share_needs_one_worker"),
        ({"gpus": 1, "gpu_memory_mib": 1000}, "/gpu_memory_mib", "gpus_or_memory"),
        ({"gpus": None, "gpu_memory_mib": 40000}, "/gpu_memory_mib", "spec_impossible"),
        ({"name": "Not_A_Label"}, "/name", "not_a_dns_label"),
        ({"name": "a" * 64}, "/name", "not_a_dns_label"),
        ({"kind": "cron"}, "/kind", "unknown_kind"),
        ({"env": {"A": "x\0y"}}, "/env/A", "contains_nul"),
        ({"env": {"1A": "x"}}, "/env/1A", "bad_name"),
        ({"env": {"A": "x" * 40000}}, "/env/A", "too_long"),
        ({"ports": [{"port": 70000}]}, "/ports/0/port", "out_of_range"),
        ({"colour": "red"}, "/colour", "unknown_field"),
        ({"priority": 1001}, "/priority", "out_of_range"),
        ({"max_runtime_seconds": 0}, "/max_runtime_seconds", "out_of_range"),
        ({"kind": "interactive", "preemptible": True}, "/preemptible", "never_preemptible"),
        ({"volumes": [{"volume": "data", "mount_path": "/mnt"}]}, "/volumes/0/volume", "volume_unknown"),
        ({"command": ["\ud800"]}, "/command/0", "not_unicode"),
    ],
)
def test_a_refused_submission_names_the_field_and_leaves_nothing(cast, changes, pointer, code):
    before = Event.objects.last_seq()
    with pytest.raises(Invalid) as refusal:
        submit_job(cast.project, GOOD | changes, actor=cast.actor("ana"))
    assert [(error.pointer, error.code) for error in refusal.value.errors] == [(pointer, code)]
    assert all(error.detail for error in refusal.value.errors)
    assert not Job.objects.exists()
    assert Event.objects.last_seq() == before


def test_nine_gpus_on_eight_names_the_largest_that_fits(cast):
    with pytest.raises(Invalid, match="at most 8"):
        submit_job(cast.project, GOOD | {"gpus": 9}, actor=cast.actor("ana"))


def test_a_name_is_free_again_once_its_job_has_finished(cast):
    first = submit_job(cast.project, GOOD, actor=cast.actor("ana"))
    with pytest.raises(Conflict):
        submit_job(cast.project, GOOD, actor=cast.actor("ben"))
    submit_job(cast.other, GOOD, actor=cast.actor("chi"))
    stop_job(first, actor=cast.actor("ana"))
    assert submit_job(cast.project, GOOD, actor=cast.actor("ben")).submit_rank > first.submit_rank


def test_a_queued_job_stops_at_once_and_only_once(cast):
    job = make_job(cast.project, user=cast.ana)
    stop_job(job, actor=cast.actor("ana"))
    assert (job.state, job.message) == ("stopped", "Stopped by ana.")
    before = Event.objects.last_seq()
    stop_job(job, actor=cast.actor("ana"))
    assert Event.objects.last_seq() == before
    with pytest.raises(Conflict):
        suspend_job(job, actor=cast.actor("ana"))


def test_suspend_and_resume_in_the_queue(cast):
    job = make_job(cast.project, user=cast.ana)
    with pytest.raises(Conflict):
        resume_job(job, actor=cast.actor("ana"))
    suspend_job(job, actor=cast.actor("ana"))
    assert job.state == "suspended"
    resume_job(job, actor=cast.actor("ana"))
    assert job.state == "queued"


def test_deleting_a_queued_job_removes_it_with_one_event(cast):
    job = make_job(cast.project, user=cast.ana)
    delete_job(job, actor=cast.actor("ana"))
    assert not Job.objects.exists()
    assert list(Event.objects.filter(kind__startswith="job.").values_list("kind", flat=True)) == [
        "job.submitted",
        "job.deleted",
    ]


def test_a_path_of_the_node_is_mounted_where_an_admin_allowed_it(cast, settings):
    def submit(name: str, host_path: str, mount_path: str = "/mnt") -> Job:
        mounts = [{"host_path": host_path, "mount_path": mount_path}]
        return submit_job(cast.project, GOOD | {"name": name, "volumes": mounts}, actor=cast.actor("ana"))

    def refusal(*paths: str) -> tuple[str, str, str]:
        with pytest.raises(Invalid) as refused:
            submit("no", *paths)
        [error] = refused.value.errors
        return error.pointer, error.code, error.detail

    assert refusal("/data")[1:] == (
        "host_path_not_allowed",
        "/data is not allowed. No admin has allowed any (TRAINYARD_HOST_PATHS).",
    )
    settings.HOST_PATHS = ["/data/", "/data/sets"]
    assert submit("a", "/data").spec["volumes"] == ({"host_path": "/data", "mount_path": "/mnt"},)
    assert submit("b", "//data/./sets/").spec["volumes"][0]["host_path"] == "/data/sets"
    for outside in ("/database", "/", "/data/link", "//etc"):
        assert refusal(outside)[:2] == ("/volumes/0/host_path", "host_path_not_allowed")
    assert refusal("/data/../etc")[:2] == ("/volumes/0/host_path", "not_an_absolute_path")
    assert refusal("/data", "/")[:2] == ("/volumes/0/mount_path", "mounts_over_root")


def test_a_clone_asks_for_the_same(cast):
    job = make_job(cast.project, user=cast.ana, gpus=0.5, env={"A": "1"})
    twin = submit_job(cast.project, clone_body(job, "twin"), actor=cast.actor("ben"))
    assert twin.spec == job.spec | {"name": "twin"}


def test_events_say_who_opened_a_shell_and_not_why_the_job_runs(cast):
    job = make_job(cast.project, user=cast.ana)
    record_shell(job, 0, actor=cast.actor("ben"))
    event = Event.objects.order_by("-seq").first()
    assert (event.kind, event.actor, event.reason) == ("job.shell_opened", "ben", "")
    assert event.message == "Shell opened by ben."


def test_a_command_in_a_pod_is_in_the_audit_log_and_its_event_keeps_the_words_back(cast):
    job = make_job(cast.project, user=cast.ana)
    record_command(job, 1, ["cat", "x" * 5000], actor=cast.actor("ben"))
    entry = AuditEntry.objects.get(verb="job.exec")
    assert entry.after == {"rank": 1, "command": "cat " + "x" * 1996}
    event = Event.objects.order_by("-seq")[0]
    assert event.kind == "job.command_run"
    assert set(event.data) == {"state", "name", "rank"}


def test_what_the_database_refuses_for_another_reason_is_not_a_name_in_use(cast, monkeypatch):
    def refuse(*_unused):
        raise IntegrityError("NOT NULL constraint failed: jobs_job.pods_started")

    monkeypatch.setattr("jobs.actions._new_job", refuse)
    with pytest.raises(IntegrityError, match="pods_started"):
        submit_job(cast.project, GOOD, actor=cast.actor("ana"))


def test_a_version_that_knows_no_elastic_jobs_can_still_submit(cast):
    """While versions change, the older one writes rows without the newer column."""
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, Job._meta.db_table)
    assert {column.name: column.default for column in columns}["pods_started"] == "0"


@pytest.mark.parametrize(
    "verb",
    [
        stop_job,
        suspend_job,
        resume_job,
        delete_job,
        partial(scale_job, workers=2),
        partial(edit_job, changes={"priority": 1}),
    ],
)
def test_a_job_deleted_since_it_was_looked_up_is_not_found(cast, verb):
    job = make_job(cast.project, name="gone")
    Job.objects.filter(pk=job.pk).delete()
    before = Event.objects.last_seq()
    with pytest.raises(NotVisible, match="The job was deleted meanwhile"):
        verb(job, actor=cast.actor("ana"))
    assert Event.objects.last_seq() == before
