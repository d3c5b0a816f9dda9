"""Nodes that give their GPUs out in parts, from the engine's report to what jobs get and are told."""

from dataclasses import replace

from jobs.models import Allocation, Job
from tests.builders import make_job, make_project


def divide(plant, parts: int, *, is_one_part_per_pod: bool = False) -> None:
    """From now on the engine reports every node as sharing its GPUs like this."""
    report = plant.engine.nodes

    def nodes():
        return tuple(
            replace(node, device_parts=parts, is_one_part_per_pod=is_one_part_per_pod) for node in report()
        )

    plant.engine.nodes = nodes


def test_a_share_is_rounded_up_to_the_parts_of_its_node(plant):
    divide(plant, 4)
    make_job(make_project(), gpus=0.3)
    plant.in_seconds(6)  # nodes are looked at every five seconds
    make_job(make_project("team-b"), name="later", gpus=0.3)
    plant.settle()
    later = Allocation.objects.get(pod__job__name="later")
    assert later.milli_gpus == 500


def test_a_share_where_gpus_are_not_shared_is_impossible_in_words(plant):
    divide(plant, 1)
    plant.in_seconds(6)
    job = make_job(make_project(), gpus=0.5)
    plant.settle()
    job = Job.objects.get(pk=job.pk)
    assert (job.state, job.reason) == ("queued", "spec_impossible")
    assert "time-slicing or MPS" in job.message
