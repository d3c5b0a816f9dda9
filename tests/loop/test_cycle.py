"""When a cycle plans: whenever a job waits, and otherwise not as often on a cluster where a plan takes long."""

import orjson
import pytest
from django.db import connection

from controlplane.loop import cycle
from controlplane.loop.pod_diff import DiffCache
from jobs.models import Job
from jobs.queries import explanation, job_detail
from tests.builders import make_job, make_project
from tests.loop.elastic_program import Program

pytestmark = pytest.mark.django_db


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of clusters, once for each plan that is made."""
    made: list[str] = []
    decide = cycle.decide
    monkeypatch.setattr(cycle, "decide", lambda one, *rest: (made.append(one.name), decide(one, *rest))[1])
    return made


def test_where_nothing_waits_a_plan_that_takes_long_is_not_made_in_every_cycle(plant, plans, monkeypatch):
    monkeypatch.setattr(cycle, "CHEAP_SECONDS", -60.0)  # as if each took a minute
    project = make_project(quota=1)
    plant.tick()
    plans.clear()
    plant.tick()
    assert not plans
    make_job(project)
    plant.settle()
    assert plans
    assert plant.states() == {"job": "running"}
    plans.clear()
    plant.tick()
    assert not plans
    make_job(project, "second", gpus=8, workers=2)
    plant.tick()
    plant.tick()
    assert len(plans) == 2, "a job waits"


def test_a_plan_that_is_cheap_is_made_in_every_cycle(plant, plans, monkeypatch):
    monkeypatch.setattr(cycle, "CHEAP_SECONDS", 60.0)  # however slow this machine is
    for _ in range(3):
        plant.tick()
    assert len(plans) == 3


def test_a_cycle_in_which_nothing_happens_asks_little(plant, monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(cycle, "CHEAP_SECONDS", 60.0)
    # Which second of the minute it is decides which pods are compared again.
    monkeypatch.setattr(DiffCache, "_due", lambda _: frozenset())
    project = make_project()
    make_job(project)
    plant.settle()
    # On PostgreSQL four reads ask first what changed, and one asks for time limits; what the test's own transaction
    # wrote, which is still running, is fetched each time.
    few = 19 if connection.vendor == "postgresql" else 14
    with django_assert_num_queries(few):
        assert cycle.run_cycle(plant.clock()) is cycle.Due.LATER
    Program(plant, make_job(project, "el", kind="elastic", workers=2)).settle()
    # its pods, generation and operation
    with django_assert_num_queries(few + 3):
        assert cycle.run_cycle(plant.clock()) is cycle.Due.LATER


def test_a_quantity_that_an_older_version_took_in_holds_up_nobody_else(plant):
    project = make_project()
    old = make_job(project, "old", extra_resources={"ephemeral-storage": "20Ki"})
    Job.objects.filter(pk=old.pk).update(spec=old.spec | {"extra_resources": {"ephemeral-storage": "20K"}})
    innocent = make_job(project, "innocent")
    plant.settle()
    states = dict(Job.objects.values_list("name", "reason"))
    assert states["old"] == "spec_impossible"
    innocent.refresh_from_db()
    assert innocent.state == "running"


def test_a_quantity_beyond_all_that_an_older_version_took_in_can_be_shown(plant):
    old = make_job(make_project(), "old", extra_resources={"vpc.amazonaws.com/efa": "4"})
    spec = old.spec | {"extra_resources": {"vpc.amazonaws.com/efa": "999999999999T"}}
    Job.objects.filter(pk=old.pk).update(spec=spec)
    plant.settle()
    old.refresh_from_db()
    assert (old.reason, old.details["asked"]) == ("spec_impossible", 2**62)
    orjson.dumps([explanation(old, None), job_detail(old)], default=str)
