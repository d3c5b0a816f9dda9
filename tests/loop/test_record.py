"""Writing a plan: many starts at once, and what the database refuses of them."""

from controlplane.loop.observe import observe
from controlplane.loop.record import record
from controlplane.models import Command
from controlplane.scheduling.plan import Plan, Start
from controlplane.scheduling.view import PodPlacement
from jobs.models import Allocation, Attempt, Pod
from tests.builders import make_job, make_project


def start(job, node: str, device: int) -> Start:
    placement = PodPlacement(0, node, ((device, 1000),))
    return Start(
        str(job.pk),
        "team-a",
        (placement,),
        "started_in_quota",
        {"project": "team-a", "quota_milli_gpus": 4000},
    )


def test_a_start_that_the_database_refuses_keeps_none_of_the_others(plant):
    project = make_project()
    jobs = [make_job(project, f"job-{number}") for number in range(3)]
    # the plan gives one GPU out twice, as when it was taken since the rows were read
    starts = (start(jobs[0], "dgx1-1", 0), start(jobs[1], "dgx1-1", 0), start(jobs[2], "dgx1-2", 0))
    recorded = record(plant.cluster, Plan(starts), observe(plant.cluster, plant.clock()), plant.clock())
    assert recorded.started == 2
    assert plant.states() == {"job-0": "starting", "job-1": "queued", "job-2": "starting"}
    assert Attempt.objects.count() == Pod.objects.count() == Allocation.objects.count() == 2
    assert set(Command.objects.values_list("pod_name", flat=True)) == set(
        Pod.objects.values_list("name", flat=True)
    )
    assert len(recorded.events) == 2
    plant.settle()
    assert set(plant.states().values()) == {"running"}


def test_a_job_that_was_stopped_meanwhile_is_left_alone(plant):
    project = make_project()
    jobs = [make_job(project, f"job-{number}") for number in range(2)]
    seen = observe(plant.cluster, plant.clock())
    type(jobs[0]).objects.filter(pk=jobs[0].pk).update(state="stopped")
    plan = Plan((start(jobs[0], "dgx1-1", 0), start(jobs[1], "dgx1-1", 1)))
    assert record(plant.cluster, plan, seen, plant.clock()).started == 1
    assert plant.states() == {"job-0": "stopped", "job-1": "starting"}
