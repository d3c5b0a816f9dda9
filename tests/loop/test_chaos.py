"""Random users, faults and crashes on the memory engine; the invariants hold after every step and at rest.

A crash is an exception out of the loop at one of the windows between a decision, its effect and its record: what a
kill -9 leaves behind in the rows. Seeds are fixed; a failure names its seed and step.
"""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from django.db.models import Sum

from controlplane.access import Actor
from controlplane.actions.errors import Conflict
from controlplane.engines.base import PodReport
from controlplane.loop import cycle, execute
from controlplane.models import Command, Device, Event, Lease
from jobs.actions import delete_job, resume_job, stop_job, submit_job, suspend_job
from jobs.kinds.registry import KINDS
from jobs.lifecycle import FINAL_STATES
from jobs.models import Allocation, Job, Pod
from tests.builders import make_project, make_user
from tests.loop.plant import Plant

STEPS = 60


class Crash(BaseException):
    """The process is gone; nothing may catch it."""


class Users:
    """Draws what people do next."""

    def __init__(self, plant: Plant, dice: random.Random) -> None:
        self.plant, self.dice, self.count = plant, dice, 0
        self.actor = Actor(user=make_user())
        self.projects = [
            make_project(f"team-{name}", quota) for name, quota in zip("abc", (4, 4, 8), strict=True)
        ]

    def submit(self) -> None:
        self.count += 1
        body = {
            "name": f"job-{self.count}",
            "kind": self.dice.choice(["train", "train", "interactive"]),
            "gpus": self.dice.choice([0, 0.25, 0.5, 1, 2, 4]),
            "command": ["sleep", self.dice.choice(["3", "20", "infinity"])],
            "retries": self.dice.choice([0, 2]),
        }
        if body["kind"] == "train" and body["gpus"] >= 1:
            body["workers"] = self.dice.choice([1, 1, 2])
        submit_job(self.dice.choice(self.projects), body, actor=self.actor)

    def on_a_job(self, verb: Callable[..., object]) -> None:
        jobs = list(Job.objects.exclude(state__in=FINAL_STATES).order_by("submit_rank"))
        if not jobs:
            return
        try:
            verb(self.dice.choice(jobs), actor=self.actor)
        except Conflict:
            pass  # the job is in no state for this verb, and the user is told so

    def fail_a_pod(self) -> None:
        running = [report.name for report in actual_pods(self.plant) if report.state == "running"]
        if running:
            self.plant.engine.finish(self.dice.choice(running), exit_code=7)


def actual_pods(plant: Plant) -> list[PodReport]:
    """What really runs, also while the engine plays unreachable."""
    is_unreachable, plant.engine.faults.is_unreachable = plant.engine.faults.is_unreachable, False
    pods = list(plant.engine.pods())
    plant.engine.faults.is_unreachable = is_unreachable
    return pods


def crash_somewhere(plant: Plant, dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tick that dies at a window: before record, or after an effect and before its record."""
    owner, name = dice.choice([(cycle, "record"), (execute, "finish"), (cycle, "release")])

    def die(*_args, **_kwargs):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        try:
            plant.tick(1)
        except Crash:
            pass
    # whoever comes next finds claims and leases that have run out
    Lease.objects.update(expires_at=plant.cluster.created_at)
    Command.objects.filter(state="claimed").update(claim_expires_at=plant.cluster.created_at)


def check_invariants(plant: Plant) -> None:
    unreleased = Allocation.objects.filter(released_at=None).order_by("device")
    held = dict(unreleased.values_list("device").annotate(sum=Sum("milli_gpus")))
    for device, allocated in Device.objects.values_list("pk", "allocated_milli"):
        assert held.get(device, 0) == allocated <= 1000
    live = Counter(Pod.objects.filter(released_at=None).values_list("job_id", "rank"))
    assert all(count == 1 for count in live.values()), "two live pods of one rank"
    held_names = set(Pod.objects.filter(released_at=None).values_list("name", flat=True))
    running = {report.name for report in actual_pods(plant) if not report.is_proven_gone}
    assert running <= held_names, f"GPUs of running pods were released: {running - held_names}"
    assert not Job.objects.filter(kind="interactive", reason="preempted").exists(), (
        "interactive work was preempted"
    )
    protected = Job.objects.filter(is_preemptible=False, state__in=["starting", "running"])
    for row in (
        protected.values("project__gpu_quota_milli").annotate(sum=Sum("allocated_milli")).order_by("project")
    ):
        assert row["sum"] <= row["project__gpu_quota_milli"], "interactive work above quota"
    seqs = list(Event.objects.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))


def check_rest(plant: Plant) -> None:
    """After quiet: the ledger equals the engine, gangs are whole, and who waits has a reason."""
    names = set(Pod.objects.filter(released_at=None).values_list("name", flat=True))
    assert {pod.name for pod in plant.engine.pods()} == names
    for job in Job.objects.filter(state="running"):
        shapes = KINDS[job.kind].pods(job.spec)
        assert Pod.objects.filter(job=job, released_at=None).count() == len(shapes)
        held = Allocation.objects.filter(pod__job=job, released_at=None).aggregate(sum=Sum("milli_gpus"))
        assert job.allocated_milli == (held["sum"] or 0)
    assert not Job.objects.filter(state__in=["starting", "stopping"]).exists()
    assert not Job.objects.filter(state="queued", reason="just_submitted").exists()


@pytest.mark.parametrize("seed", range(4))
def test_invariants_hold_whatever_happens(plant, monkeypatch, seed):
    dice = random.Random(seed)
    users = Users(plant, dice)
    deeds: list[Callable[[], None]] = [
        users.submit,
        users.submit,
        users.submit,
        lambda: users.on_a_job(stop_job),
        lambda: users.on_a_job(suspend_job),
        lambda: users.on_a_job(resume_job),
        lambda: users.on_a_job(delete_job),
        users.fail_a_pod,
        lambda: plant.tick(dice.choice([0, 1, 5])),
        lambda: plant.tick(1),
        lambda: crash_somewhere(plant, dice, monkeypatch),
    ]
    for _ in range(STEPS):
        plant.engine.faults.loses_answers = dice.random() < 0.1
        plant.engine.faults.is_unreachable = dice.random() < 0.1
        plant.engine.faults.stop_delay_seconds = dice.choice([0, 0, 3])
        dice.choice(deeds)()
        check_invariants(plant)
    plant.engine.faults.loses_answers = plant.engine.faults.is_unreachable = False
    Command.objects.update(not_before=plant.cluster.created_at)
    plant.in_seconds(40)
    Command.objects.update(not_before=plant.cluster.created_at)
    plant.in_seconds(40)
    check_invariants(plant)
    check_rest(plant)
