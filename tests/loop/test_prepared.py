"""Queries that are compiled once: equal to Django's own at every call, in every thread."""

from datetime import datetime, timedelta
from threading import Thread
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.models import Node
from controlplane.models.prepared import Rows, Values, prepared, prepared_update
from jobs.models import Job
from tests.builders import make_cluster, make_job, make_project

pytestmark = pytest.mark.django_db


@prepared
def jobs_since(cluster: int, since: datetime) -> QuerySet[Job]:
    jobs = Job.objects.filter(project__cluster=cluster, created_at__gte=since, kind__in=["train", "mpi"])
    return jobs.select_related("project__department", "user").order_by("name")


@prepared
def names_of(job: object) -> Rows[Job]:
    return Job.objects.filter(pk=job).values_list("pk", "name", "created_at", "spec")


@prepared
def nodes_named(name: str) -> "QuerySet[Node, str]":
    return Node.objects.filter(name=name).only("name").values_list("name", flat=True)


@prepared_update
def rename(job: object, name: str, at: datetime) -> tuple[QuerySet[Job], Values]:
    return Job.objects.filter(pk=job), {"name": name, "active_at": at, "reason": "renamed"}


def test_an_update_is_that_of_the_plain_query_whatever_the_arguments(django_assert_num_queries):
    first, second = make_job(make_project(), "a"), make_job(make_project("team-b"), "b")
    for job, name in ((first, "c"), (second, "d"), (first, "e")):
        at = timezone.now()
        with django_assert_num_queries(1):
            assert rename(job.pk, name, at) == 1
        job.refresh_from_db()
        assert (job.name, job.active_at, job.reason) == (name, at, "renamed")
    assert second.name == "d"
    assert rename(uuid4(), "f", timezone.now()) == 0
    with pytest.raises(TypeError, match="3 arguments"):
        rename(first.pk)


def test_rows_are_as_of_the_plain_query_whatever_the_arguments(django_assert_num_queries):
    other = make_cluster("other", nodes=0)
    project, elsewhere = make_project(), make_project("team-b", cluster=other)
    for name in ("b", "a"):
        make_job(project, name)
    apart = make_job(elsewhere, "c")
    start = timezone.now() - timedelta(days=1)
    with django_assert_num_queries(1):
        found = jobs_since(project.cluster.pk, start)
        assert [(one.name, one.project.name, one.user.username) for one in found] == [
            ("a", "team-a", "ana"),
            ("b", "team-a", "ana"),
        ]
    plain = Job.objects.get(name="a")
    assert (found[0].spec, found[0].created_at) == (plain.spec, plain.created_at)
    assert jobs_since(other.pk, start) == [apart]
    assert jobs_since(project.cluster.pk, timezone.now() + timedelta(days=1)) == []


def test_columns_are_converted_and_keys_are_uuids():
    job = make_job(make_project())
    other = make_job(job.project, "other")
    job.refresh_from_db()
    assert names_of(job.pk) == [(job.pk, job.name, job.created_at, job.spec)]
    assert [row[1] for row in names_of(other.pk)] == ["other"]
    assert nodes_named("dgx1-1") == ["dgx1-1"]
    assert nodes_named("' OR 1=1 --") == []


def test_new_rows_are_seen():
    project = make_project()
    assert jobs_since(project.cluster.pk, project.created_at) == []
    job = make_job(project)
    assert jobs_since(project.cluster.pk, project.created_at) == [job]


def test_arguments_go_by_position_and_are_counted():
    with pytest.raises(TypeError, match="takes 1 arguments"):
        nodes_named()
    with pytest.raises(TypeError, match="takes 1 arguments"):
        nodes_named(name="x")


@pytest.mark.django_db(transaction=True)
def test_threads_have_queries_of_their_own():
    make_cluster()
    found: list[str] = []

    def read() -> None:
        found.extend(nodes_named("dgx1-1"))
        connection.close()

    assert nodes_named("dgx1-1") == ["dgx1-1"]
    for _ in range(2):
        thread = Thread(target=read)
        thread.start()
        thread.join()
    assert found == ["dgx1-1"] * 2
