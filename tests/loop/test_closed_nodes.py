"""A node that its own cluster cordoned: it works, gets nothing new, and is not to be declared dead."""

from dataclasses import replace

import pytest

from controlplane.access import Actor
from controlplane.actions.errors import Conflict
from controlplane.models import Node
from jobs.models import Job
from jobs.node_actions import confirm_dead
from tests.builders import make_job, make_project, make_user


def close_all(plant) -> None:
    report = plant.engine.nodes
    plant.engine.nodes = lambda: tuple(
        replace(node, is_closed=True, message="It is cordoned in the cluster.") for node in report()
    )
    plant.in_seconds(6)  # nodes are looked at every five seconds


def test_a_closed_node_keeps_its_pods_and_gets_no_new_ones(plant):
    project = make_project()
    make_job(project, name="before")
    plant.settle()
    close_all(plant)
    make_job(project, name="after")
    plant.settle()
    assert plant.states() == {"before": "running", "after": "queued"}
    assert Job.objects.get(name="after").reason == "cluster_full"


def test_a_closed_node_is_not_dead(plant):
    close_all(plant)
    admin = Actor(user=make_user("root", is_admin=True))
    with pytest.raises(Conflict, match="Drain it instead"):
        confirm_dead(Node.objects.first(), actor=admin)
