"""When a cycle plans: whenever a job waits, and otherwise not as often on a cluster where a plan takes long."""

import pytest

from controlplane.loop import cycle
from tests.builders import make_job, make_project

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
    plant.settle(2)
    assert len(plans) == 2, "a job waits"


def test_a_plan_that_is_cheap_is_made_in_every_cycle(plant, plans):
    plant.settle(3)
    assert len(plans) == 3
