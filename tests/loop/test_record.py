"""Writing a plan: many starts at once, and what the database refuses of them."""

from collections.abc import Sequence

import pytest

from controlplane.loop import hold_writes
from controlplane.loop import record as recording
from controlplane.loop.cycle import Due, run_cycle
from controlplane.loop.observe import JobCache, observe
from controlplane.loop.record import record
from controlplane.models import Command, Event
from controlplane.scheduling.plan import Hold, Plan, Start
from controlplane.scheduling.view import PodPlacement, placements_to_lists
from jobs.models import Allocation, Attempt, Job, Pod
from jobs.row_cache import RowCache
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
    recorded = record(
        plant.cluster, Plan(starts=starts), observe(plant.cluster, plant.clock()), plant.clock()
    )
    assert recorded.started == 2
    assert plant.states() == {"job-0": "starting", "job-1": "queued", "job-2": "starting"}
    assert Attempt.objects.count() == Pod.objects.count() == Allocation.objects.count() == 2
    assert set(Command.objects.values_list("subject_id", flat=True)) == set(
        Pod.objects.values_list("name", flat=True)
    )
    assert Event.objects.filter(kind="job.starting").count() == 2
    plant.settle()
    assert set(plant.states().values()) == {"running"}


def test_a_job_that_was_stopped_meanwhile_is_left_alone(plant):
    project = make_project()
    jobs = [make_job(project, f"job-{number}") for number in range(2)]
    seen = observe(plant.cluster, plant.clock())
    type(jobs[0]).objects.filter(pk=jobs[0].pk).update(state="stopped")
    plan = Plan(starts=(start(jobs[0], "dgx1-1", 0), start(jobs[1], "dgx1-1", 1)))
    assert record(plant.cluster, plan, seen, plant.clock()).started == 1
    assert plant.states() == {"job-0": "stopped", "job-1": "starting"}


def test_starts_for_which_a_cycle_has_no_time_are_left_to_the_next(plant, monkeypatch):
    monkeypatch.setattr(recording, "BATCH", 1)
    monkeypatch.setattr(recording, "STARTS_SECONDS", 0.0)
    project = make_project()
    for number in range(3):
        make_job(project, f"job-{number}")
    for started, due in ((1, Due.AT_ONCE), (2, Due.AT_ONCE), (3, Due.SOON)):
        assert run_cycle(plant.clock()) is due
        assert Attempt.objects.count() == Event.objects.filter(kind="job.starting").count() == started
    plant.settle()
    assert set(plant.states().values()) == {"running"}


def test_after_a_read_that_failed_jobs_that_have_left_are_not_seen_any_more(plant, monkeypatch):
    make_job(make_project())
    kept = JobCache()
    assert len(observe(plant.cluster, plant.clock(), kept=kept).view.jobs) == 1
    with monkeypatch.context() as broken:
        broken.setattr(RowCache, "read", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            observe(plant.cluster, plant.clock(), kept=kept)
    Job.objects.update(state="stopped")
    assert observe(plant.cluster, plant.clock(), kept=kept).view.jobs == ()


def test_a_long_queue_is_written_in_portions(plant, monkeypatch):
    monkeypatch.setattr(hold_writes, "HEAD", 2)
    monkeypatch.setattr(hold_writes, "PORTION", 3)
    project = make_project(quota=16)
    for number in range(2):
        make_job(project, f"running-{number}", gpus=8)
    plant.settle()
    queue = [make_job(project, f"job-{number}", gpus=8) for number in range(9)]
    known = []
    for _ in range(4):
        due = Due.SOON if len(known) < 2 else Due.LATER
        assert run_cycle(plant.clock()) is due, "the next cycle is due while some are not compared"
        known.append(positions(queue))
    assert [len(one) for one in known] == [5, 8, 9, 9]
    assert known[-1] == {f"job-{number}": number + 1 for number in range(9)}
    assert plant.written_by_tick() == []
    # Each job moves up: those of the head at once, the others a portion at a time, and each only once.
    queue[0].delete()
    moved = []
    while run_cycle(plant.clock()):
        moved.append(positions(queue))
    assert moved[0]["job-1"] == 1
    assert positions(queue) == {f"job-{number}": number for number in range(1, 9)}
    assert plant.written_by_tick() == []


def test_promises_are_written_at_once_however_many(plant, monkeypatch):
    """The next cycle may otherwise give away what was freed for a job."""
    monkeypatch.setattr(hold_writes, "HEAD", 2)
    monkeypatch.setattr(hold_writes, "PORTION", 3)
    lender, owner = make_project("lender", quota=0), make_project("owner", quota=16)
    for number in range(16):
        make_job(lender, f"borrows-{number}")
    plant.settle()
    for number in range(16):
        make_job(owner, f"owed-{number}")
    run_cycle(plant.clock())
    promised = [job.name for job in Job.objects.filter(state="queued") if "promised" in job.details]
    assert len(promised) == 16


def test_a_promise_that_is_withdrawn_is_removed_at_once(plant, monkeypatch):
    """Also from a job far behind in the queue, which would otherwise be served before those ahead of it."""
    monkeypatch.setattr(hold_writes, "HEAD", 1)
    monkeypatch.setattr(hold_writes, "PORTION", 1)
    project, clock = make_project(), plant.clock()
    queue = [str(make_job(project, f"job-{number}").pk) for number in range(5)]
    placement = PodPlacement(0, "dgx1-1", ((0, 1000),))

    def waiting(job: str, *, is_promised: bool = False) -> Hold:
        details = {"promised": placements_to_lists([placement])} if is_promised else {}
        return Hold(job, "team-a", "cluster_full", details, 1 + queue.index(job), is_promised)

    holds = (waiting(queue[4], is_promised=True), *map(waiting, queue[:4]))
    before = Plan(holds=holds, promised={queue[4]: (placement,)})
    record(plant.cluster, before, observe(plant.cluster, clock), clock)
    assert Job.objects.get(pk=queue[4]).details["promised"]
    record(plant.cluster, Plan(holds=tuple(map(waiting, queue))), observe(plant.cluster, clock), clock)
    assert "promised" not in Job.objects.get(pk=queue[4]).details


def test_rows_that_another_process_wrote_are_compared_with_the_same_plan_again(plant, monkeypatch):
    """It had planned on a job that is gone."""
    monkeypatch.setattr(hold_writes, "HEAD", 2)
    monkeypatch.setattr(hold_writes, "PORTION", 3)
    project = make_project(quota=16)
    for number in range(2):
        make_job(project, f"running-{number}", gpus=8)
    plant.settle()
    queue = [make_job(project, f"job-{number}", gpus=8) for number in range(9)]
    while run_cycle(plant.clock()):
        pass
    assert plant.written_by_tick() == []
    expected = positions(queue)
    Job.objects.filter(state="queued").update(queue_position=77)
    while run_cycle(plant.clock()):
        pass
    assert positions(queue) == expected
    assert plant.written_by_tick() == []


def positions(jobs: Sequence[Job]) -> dict[str, int]:
    """The known positions in the queue, by name."""
    rows = Job.objects.filter(pk__in=[job.pk for job in jobs]).exclude(queue_position=None)
    return dict(rows.values_list("name", "queue_position"))
