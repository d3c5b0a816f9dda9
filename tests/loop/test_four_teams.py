"""The four-team scenario through the database: actions, rows, scheduler, loop and memory engine."""

import pytest

from controlplane.access import Actor
from controlplane.models import Project
from jobs.actions import delete_job, submit_job
from jobs.models import Allocation, Attempt, Job
from tests.builders import make_project, make_user
from tests.loop.plant import Plant
from tests.scenarios.four_teams.script import TEAMS, Observed, Step, assert_step, expectations, steps

pytestmark = pytest.mark.django_db


def perform(plant: Plant, step: Step) -> None:
    project, actor = Project.objects.get(name=step.project), Actor(user=make_user())
    for name in step.jobs:
        if step.action == "delete":
            delete_job(Job.objects.get(name=name), actor=actor)
            continue
        body = {"name": name, "kind": step.kind, "gpus": step.gpus, "command": ["sleep", "infinity"]}
        submit_job(project, body, actor=actor)
    plant.settle()  # well past the goal: what has settled must stay put


def preempted() -> frozenset[str]:
    return frozenset(Attempt.objects.filter(outcome="queued").values_list("job__name", flat=True))


def observe(plant: Plant, before: frozenset[str]) -> Observed:
    devices = Allocation.objects.filter(released_at=None).values("device").distinct().count()
    return Observed(
        allocated={team: plant.allocated().get(team, 0) for team in TEAMS},
        physical_gpus_used=devices,
        running=Job.objects.filter(state="running").count(),
        preempted=preempted() - before,
        waiting=frozenset(Job.objects.filter(state="queued").values_list("name", flat=True)),
    )


def test_twenty_steps_through_the_database(plant):
    for team, quota in TEAMS.items():
        make_project(team, quota)
    expected = expectations()
    before: frozenset[str] = frozenset()
    for step in steps():
        perform(plant, step)
        observed = observe(plant, before)
        assert_step(expected[step.seq], observed, before)
        before |= observed.preempted
    assert {name: job.reason for name, job in ((j.name, j) for j in Job.objects.filter(state="queued"))} == {
        "b-5-gg": "over_fair_share",
        "c-6-gg": "over_fair_share",
    }
