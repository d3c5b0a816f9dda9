"""The four-team scenario with KAI's answers played back from a recorded run (tests/kubernetes/test_kai_four_teams.py).

The recorded objects go through the very functions that read KAI's own; only job ids are ours.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.engines.kubernetes import kai, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.names import key_of
from jobs.models import Job
from tests.builders import make_project
from tests.kubernetes.kai_recorded import FILE
from tests.loop.deciding import DecidingPlant
from tests.loop.test_four_teams import observe, perform
from tests.scenarios.four_teams.script import TEAMS, assert_step, expectations, steps

LAST_RECLAIM = 15  # step
PROFILE = ClusterProfile(scheduler="kai")


@pytest.fixture
def plant(db: None) -> Iterator[DecidingPlant]:
    plant = DecidingPlant()
    yield plant
    plant.close()


def test_twenty_steps_with_kais_recorded_answers(plant: DecidingPlant) -> None:
    for team, quota in TEAMS.items():
        make_project(team, quota)
    expected, recorded = expectations(), json.loads(FILE.read_text())
    before: frozenset[str] = frozenset()
    ids: dict[str, str] = {}  # recorded job id -> ours
    for step, answers in zip(steps(), recorded, strict=True):
        perform(plant, step)
        play(plant, answers, ids)
        observed = observe(plant, before)
        assert_step(expected[step.seq], observed, before)
        before |= observed.preempted
        if step.seq == LAST_RECLAIM:
            assert_victims_know_who_got_their_room()
    waiting = Job.objects.filter(state="queued")
    assert {job.name: job.reason for job in waiting} == {
        "b-5-gg": "over_fair_share",
        "c-6-gg": "over_fair_share",
    }
    assert all("no nodes with enough resources" in job.details["cluster_says"] for job in waiting)


def assert_victims_know_who_got_their_room() -> None:
    victims = Job.objects.filter(name__in=("b-4-gg", "c-4-gg"))
    assert {job.reason for job in victims} == {"preempted"}
    assert {job.details["by_name"] for job in victims} == {"d-2-gg", "d-3-gg"}
    assert {job.details["by_project"] for job in victims} == {"team-d"}
    assert {job.details["blocked_by"] for job in victims} == {"over_fair_share"}


def play(plant: DecidingPlant, answers: dict[str, list[dict[str, Any]]], ids: dict[str, str]) -> None:
    """Do to our pods what KAI did to those of the recording, evictions first."""
    jobs = dict(Job.objects.values_list("name", "pk"))
    for group in answers["groups"]:
        labels = group["metadata"]["labels"]
        if labels[names.JOB_NAME] in jobs:  # not deleted
            ids[labels[names.JOB_ID]] = str(jobs[labels[names.JOB_NAME]])
    text = json.dumps(answers)
    for theirs, ours in ids.items():
        text = text.replace(theirs, ours)
    answers = json.loads(text)
    for event in answers["events"]:
        found = kai.eviction(event)
        assert found is not None
        plant.engine.evict(f"{found[0].partition('/')[2]}-0", found[1])
    plant.settle()
    said = {key_of(**_place(group)): kai.verdict(group, PROFILE) for group in answers["groups"]}
    for pod in answers["pods"]:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        verdict = said.get(kai.group_key(pod))
        if name not in plant.engine.waiting():
            continue
        if node:
            plant.engine.bind(name, node, pod["metadata"]["labels"].get(kai.DEVICE_GROUP, ""))
        elif verdict is not None:
            plant.engine.say(name, verdict)
    plant.settle()


def _place(group: dict[str, Any]) -> dict[str, str]:
    return {"namespace": group["metadata"]["namespace"], "name": group["metadata"]["name"]}
