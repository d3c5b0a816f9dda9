"""The overview's sums are exact at any size, its lists bounded, and other projects' jobs stay unnamed."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.models import Event
from jobs.overview_state import ROWS_MOST, overview_document, read_overview
from tests.crowd import Crowd, make_crowd

NODES, JOBS, RUNNING, TEAMS = 210, 900, 448, 24


@pytest.fixture
def crowd(db: None) -> Crowd:
    return make_crowd(NODES, JOBS, running=RUNNING, projects=TEAMS)


def document(sees: frozenset[str] | None = None) -> dict:
    """GET /telemetry/overview for a reader of these projects."""
    seq = Event.objects.last_seq()
    return overview_document(read_overview(seq).seen_by(sees), seq)


def test_sums_count_everything_and_lists_are_bounded(crowd: Crowd):
    shown = document()
    assert (shown["jobs_running"], shown["jobs_queued"]) == (RUNNING, JOBS - RUNNING)
    assert (shown["nodes"], shown["gpus"]) == (NODES, NODES * 8)
    assert shown["gpus_allocated"] == sum(project["allocated_gpus"] for project in shown["projects"])
    assert [len(shown[name]) for name in ("running", "queued", "node_list")] == [ROWS_MOST] * 3


def test_the_last_started_come_first_and_the_queue_in_its_order(crowd: Crowd):
    shown = document()
    started = [job["started_at"] for job in shown["running"]]
    assert started == sorted(started, reverse=True)
    assert [job["queue_position"] for job in shown["queued"]] == list(range(1, ROWS_MOST + 1))


def test_a_member_sees_the_own_jobs_however_many_others_there_are(crowd: Crowd):
    """The bound counts the reader's jobs, not those that the reader may not see."""
    own = crowd.projects[5]
    shown = document(frozenset({own.name}))
    jobs = {job["project"] for name in ("running", "queued") for job in shown[name]}
    assert jobs == {own.name}
    assert len(shown["running"]) + len(shown["queued"]) == own.jobs.count()
    assert shown["jobs_running"] == RUNNING


def test_a_device_names_its_job_to_those_who_see_it_and_its_project_to_all(crowd: Crowd):
    own = crowd.projects[5]
    shares = [
        share
        for node in document(frozenset({own.name}))["node_list"]
        for device in node["devices"]
        for share in device["shares"]
    ]
    names = set(own.jobs.values_list("name", flat=True))
    assert {share["name"] for share in shares if share["project"] == own.name} <= names
    others = [share for share in shares if share["project"] != own.name]
    assert {share["job"] for share in others} == {None}
    assert not any("name" in share for share in others)


def test_questions_do_not_grow_with_jobs_and_nodes(db: None):
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            document()
        return len(queries)

    make_crowd(3, 10, running=4, projects=2)
    before = count()
    make_crowd(40, 300, running=90, projects=30, cluster_name="larger")
    assert count() == before


def test_the_document_stays_small(crowd: Crowd):
    """At 210 nodes it holds 200 of them, some 1,600 devices."""
    assert len(json.dumps(document(), default=str)) < 600_000
