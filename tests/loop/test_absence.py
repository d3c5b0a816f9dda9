"""The control plane is away for an hour: pods go on, and what comes back adopts what it finds."""

import pytest
from django.db import connections

from controlplane.engines.memory import MemoryEngine, VirtualClock
from controlplane.loop import runner
from controlplane.loop.cluster_context import forget_contexts
from controlplane.loop.runner import Runner
from controlplane.loop.wake import listen, stop_listening
from controlplane.models import Command
from jobs.models import Attempt, Job, Pod
from tests.builders import make_cluster, make_counters, make_job, make_project
from tests.engines import give_engine
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock(monkeypatch):
    """The wall clock of the loop, which can be put forward and back."""
    clock = VirtualClock()
    monkeypatch.setattr(runner.timezone, "now", clock)
    forget_contexts()
    return clock


@pytest.fixture
def plant(clock, transactional_db):
    make_counters()
    cluster = make_cluster()
    engine = MemoryEngine(cluster.settings, clock=clock)
    give_engine(cluster, engine)
    listen(ignore)  # while nobody runs a loop: there is no Redis to carry wake-ups
    yield cluster, engine
    stop_listening(ignore)
    give_engine(cluster, None)


def ignore() -> None:
    """A bell that nobody hears."""


def run_until(condition, what: str) -> None:
    """One life of the loop's process: all of its threads, until something has come true."""
    loop = Runner()
    loop.start()
    try:
        wait_until(condition, 20, what)
    finally:
        loop.stop()
        connections.close_all()


def states() -> dict[str, str]:
    return dict(Job.objects.values_list("name", "state"))


@pytest.mark.parametrize("jump_seconds", [3600, -3600])
def test_an_hour_away_changes_nothing_for_what_runs_and_what_ended_is_taken_over(plant, clock, jump_seconds):
    _, engine = plant
    project = make_project(quota=16)
    for name in ("stays", "ends", "fails", "gang"):
        make_job(project, name, **({"workers": 3} if name == "gang" else {}))
    run_until(lambda: set(states().values()) == {"running"}, "the jobs' start")
    pods = {pod.job.name: pod.name for pod in Pod.objects.select_related("job").order_by("-rank")}
    before = set(Pod.objects.values_list("name", flat=True))
    engine.finish(pods["ends"])  # while nobody looks
    engine.finish(pods["fails"], 3)
    clock.advance(jump_seconds)
    make_job(project, "late")
    expected = {
        "stays": "running",
        "gang": "running",
        "ends": "succeeded",
        "fails": "failed",
        "late": "running",
    }
    run_until(lambda: states() == expected, "what follows from the hour")
    assert Attempt.objects.exclude(job__name="late").exclude(number=1).count() == 0
    held = set(Pod.objects.filter(released_at=None).exclude(job__name="late").values_list("name", flat=True))
    assert held == before - {pods["ends"], pods["fails"]}
    running = {pod.name for pod in engine.pods() if not pod.is_proven_gone}
    assert running == set(Pod.objects.filter(released_at=None).values_list("name", flat=True))


def test_what_was_ordered_before_the_end_is_carried_out_once_after_it(plant):
    cluster, engine = plant
    engine.faults.loses_answers = True
    make_job(make_project())
    run_until(lambda: Command.objects.filter(tries__gte=1, state="pending").exists(), "the first try")
    engine.faults.loses_answers = False
    Command.objects.update(not_before=cluster.created_at)
    run_until(lambda: states() == {"job": "running"}, "the job's start")
    assert len(engine.pods()) == 1
