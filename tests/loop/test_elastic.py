"""An elastic job through the loop: its size is decided at each start, kept and told."""

import pytest

from controlplane.access import SYSTEM
from controlplane.loop.observe import observe
from controlplane.loop.podspecs import pod_spec
from controlplane.loop.record import record
from controlplane.models import Command, Event
from controlplane.scheduling.cycle import decide
from jobs.command_kinds import START_POD
from jobs.models import Job, Pod
from jobs.scaling import scale_job
from tests.builders import make_job, make_project
from tests.loop.deciding import DecidingPlant


def elastic(project, name="el", fewest=1, workers=5, most=8, **body) -> Job:
    bounds = {"min_workers": fewest, "workers": workers, "max_workers": most}
    return make_job(project, name, kind="elastic", **bounds, **body)


def ranks(job: Job) -> list[int]:
    pods = Pod.objects.filter(job=job, released_at=None, attempt__number=job.attempt)
    return list(pods.order_by("rank").values_list("rank", flat=True))


def test_it_starts_with_what_fits_and_everybody_is_told(plant):
    make_job(make_project("team-b", quota=13), "other", kind="interactive", gpus=5)
    make_job(Job.objects.get().project, "more", kind="interactive", gpus=8)
    plant.settle()
    job = elastic(make_project(quota=8))
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.pods_wanted, job.pods_started, job.allocated_milli) == ("running", 5, 3, 3000)
    assert job.message == "Started with 3 of 5 workers inside the quota of team-a (8)."
    assert ranks(job) == [0, 1, 2]
    event = Event.objects.get(kind="job.starting", job_id=job.pk)
    assert (event.data["workers"], event.message) == (3, job.message)
    orders = Command.objects.filter(kind=START_POD, subject_id__startswith=str(job.pk)).order_by("pk")
    specs = [pod_spec(order.payload) for order in orders]
    assert [(spec.rank, spec.world_size, spec.min_pods, spec.has_stable_names) for spec in specs] == [
        (rank, 3, 3, True) for rank in range(3)
    ]
    assert specs[0].kind_env["workers"] == "3"
    assert specs[0].kind_env["TRAINYARD_MAX_WORKERS"] == "8"


def test_reclaimed_it_goes_on_smaller(plant):
    mine, theirs = make_project(quota=8), make_project("team-b", quota=8)
    job = elastic(mine, workers=16, most=16)
    plant.settle()
    assert plant.allocated() == {"team-a": 16}
    for number in range(3):
        make_job(theirs, f"owed-{number}")
    plant.tick()
    assert Event.objects.get(kind="job.stopping", job_id=job.pk).data["next_state"] == "queued"
    plant.tick()  # its pods are gone: all four jobs start in this cycle
    assert Job.objects.filter(state="starting").count() == 4
    plant.settle()
    job.refresh_from_db()
    assert (job.attempt, job.state, job.pods_started) == (2, "running", 13)
    assert plant.states() == {"el": "running", "owed-0": "running", "owed-1": "running", "owed-2": "running"}
    assert plant.allocated() == {"team-a": 13, "team-b": 3}
    assert [attempt.pods.count() for attempt in job.attempts.order_by("number")] == [16, 13]
    assert job.failures == 0


def test_a_worker_that_has_ended_holds_nothing(plant):
    job = elastic(make_project(quota=8), workers=3)
    plant.settle()
    plant.engine.finish(f"{job.pk}-1-2")
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.allocated_milli, plant.allocated()) == ("running", 2000, {"team-a": 2})
    for rank in range(2):
        plant.engine.finish(f"{job.pk}-1-{rank}")
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.allocated_milli) == ("succeeded", 0)


def test_scaled_between_the_decision_and_its_record_it_waits_for_the_next_cycle(plant):
    job = elastic(make_project(quota=8))
    seen = observe(plant.cluster, plant.clock())
    plan = decide(seen.view)
    assert len(plan.starts[0].placements) == 5
    scale_job(job, 2, actor=SYSTEM)
    assert record(plant.cluster, plan, seen, plant.clock()).started == 0
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.pods_started) == ("running", 2)


@pytest.fixture
def deciding(db):
    plant = DecidingPlant()
    yield plant
    plant.close()


def test_where_the_cluster_decides_it_is_offered_whole_and_again_when_it_was_scaled(deciding):
    job = elastic(make_project(), fewest=1, workers=3)
    deciding.settle()
    assert [deciding.engine.spec_of(name).min_pods for name in deciding.engine.waiting()] == [3, 3, 3]
    scale_job(job, 2, actor=SYSTEM)
    deciding.in_seconds(15)
    waiting = deciding.engine.waiting()
    assert [deciding.engine.spec_of(name).world_size for name in waiting] == [2, 2]
    for name in waiting:
        deciding.engine.bind(name, "dgx1-1")
    deciding.settle()
    job.refresh_from_db()
    assert (job.state, job.pods_started) == ("running", 2)


@pytest.mark.parametrize("bound", [[0, 1, 2, 3], [0, 3], [0, 1]])
def test_scaled_down_while_its_pods_are_placed_it_is_offered_anew(deciding, bound):
    job = elastic(make_project(), fewest=1, workers=4)
    deciding.settle()
    for rank in bound:
        deciding.engine.bind(f"{job.pk}-1-{rank}", "dgx1-1")
    scale_job(job, 2, actor=SYSTEM)
    deciding.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("queued", 1)
    waiting = deciding.engine.waiting()
    assert waiting == [f"{job.pk}-2-{rank}" for rank in range(2)]
    assert [deciding.engine.spec_of(name).world_size for name in waiting] == [2, 2]
    for name in waiting:
        deciding.engine.bind(name, "dgx1-1")
    deciding.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt, ranks(job)) == ("running", 2, [0, 1])
