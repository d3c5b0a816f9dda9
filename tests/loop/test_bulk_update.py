"""Rows that change together: each under its own guard, those that are alike with one UPDATE."""

import pytest
from django.db import DataError, connection, transaction
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.loop import job_transitions
from controlplane.models import bulk_update
from controlplane.models.bulk_update import Change, change_rows
from jobs.actions import delete_job, stop_job, suspend_job
from jobs.kinds.attempt_outcome import Step
from jobs.models import Job
from tests.builders import make_job, make_project

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("many", [1, 50])
def test_alike_changes_take_one_update_and_a_row_that_moved_on_is_left_alone(
    many, monkeypatch, django_assert_num_queries
):
    monkeypatch.setattr(bulk_update, "MANY", many)
    project = make_project()
    first, second, other, stopped = (
        make_job(project, name) for name in ("first", "second", "other", "stopped")
    )
    Job.objects.filter(pk=stopped.pk).update(state="stopped")
    changes = [
        Change(job.pk, {"state": "queued", "attempt": 0}, {"priority": 7 if job == other else 5})
        for job in (first, second, other, stopped)
    ]
    with transaction.atomic(), django_assert_num_queries(3):
        changed = change_rows(Job, changes)
    assert changed == {first.pk, second.pk, other.pk}
    assert dict(Job.objects.values_list("name", "priority")) == {
        "first": 5,
        "second": 5,
        "other": 7,
        "stopped": stopped.priority,
    }


def test_a_stop_that_comes_while_a_job_goes_back_to_the_queue_is_not_lost(plant):
    job = make_job(make_project())
    plant.settle()
    suspend_job(job, actor=SYSTEM)
    as_read = Job.objects.select_related("project").get(pk=job.pk)
    stop_job(job, actor=SYSTEM)
    job_transitions._settle([(as_read, Step("suspended"))], timezone.now())
    job.refresh_from_db()
    assert (job.state, job.next_state) == ("stopping", "stopped")
    plant.settle()
    job.refresh_from_db()
    assert job.state == "stopped"


def test_a_job_that_is_deleted_in_the_moment_of_its_end_goes_at_once(plant):
    job = make_job(make_project())
    plant.settle()
    stop_job(job, actor=SYSTEM)
    as_read = Job.objects.select_related("project").get(pk=job.pk)
    delete_job(job, actor=SYSTEM)
    job_transitions._settle([(as_read, Step("stopped"))], timezone.now())
    assert Job.objects.filter(pk=job.pk, state="stopping").exists()
    plant.settle()
    assert not Job.objects.exists()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's columns have no lengths")
def test_a_text_too_long_for_its_column_is_refused_and_not_cut():
    """A cast to the type with its length would cut it."""
    project = make_project()
    jobs = [make_job(project, name) for name in ("first", "second")]
    changes = [Change(job.pk, {}, {"next_state": f"{job.name}-much-too-long"}) for job in jobs]
    with pytest.raises(DataError), transaction.atomic():
        change_rows(Job, changes)


def test_values_of_all_types_and_none():
    project, now = make_project(), timezone.now()
    first, second = make_job(project, "first"), make_job(project, "second")
    values = {
        "exit_code": 3,
        "gpu_utilization": 1,
        "not_before": now,
        "details": {"a": None},
        "is_deleted": True,
    }
    nothing = {
        "exit_code": None,
        "gpu_utilization": None,
        "not_before": None,
        "details": {},
        "is_deleted": False,
    }
    with transaction.atomic():
        change_rows(Job, [Change(first.pk, {}, values), Change(second.pk, {}, nothing)])
    rows = {row.pop("name"): row for row in Job.objects.values("name", *values)}
    assert rows == {"first": values, "second": nothing}
