"""Idle limits and looks at GPUs: time in which nobody could look at a cluster is no idleness of its jobs."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from controlplane.engines.base import USAGE, EngineUnreachable, PodUsage
from controlplane.engines.memory import MemoryEngine
from controlplane.loop.cluster_context import forget_contexts
from controlplane.loop.telemetry_step import collect_once
from controlplane.models import Cluster, NodePool
from jobs.models import Job, Pod
from jobs.telemetry import collect as collecting
from tests.builders import make_job, make_node, make_project
from tests.engines import give_engine
from tests.loop.plant import Plant

IDLE_SECONDS = 10
LONG_SECONDS = 3 * IDLE_SECONDS  # much longer than WATCH_GAP_SECONDS too


@pytest.fixture(autouse=True)
def _forgetful(plant: Plant) -> Iterator[None]:
    forget_contexts()
    yield
    forget_contexts()


@pytest.fixture
def other(plant: Plant) -> Iterator[Cluster]:
    """A second cluster, of one node."""
    settings = {"nodes": {"far-1": {"devices": 1, "memory_mib": 32768, "pool": "default"}}}
    cluster = Cluster.objects.create(name="other", engine="memory", settings=settings)
    make_node(cluster, "far-1", 1, NodePool.objects.create(cluster=cluster, name="default"))
    give_engine(cluster, MemoryEngine(settings, clock=plant.clock))
    yield cluster
    give_engine(cluster, None)


def notebook(plant: Plant, project: str = "team-a", cluster: Cluster | None = None, gpus: float = 1) -> Job:
    owner = make_project(project, cluster=cluster, interactive_idle_seconds=IDLE_SECONDS)
    job = make_job(owner, "notebook", kind="interactive", gpus=gpus)
    plant.settle()
    return job


def watch(plant: Plant, seconds: int) -> None:
    """Let time pass as the worker does: each second a look and a cycle."""
    for _ in range(seconds):
        plant.clock.advance(1)
        collect_once(plant.clock())
        plant.tick()


def standing(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.state, job.reason


def say(plant: Plant, job: Job, **fields) -> None:
    plant.engine.print_line(Pod.objects.get(job=job).name, json.dumps({"trainyard": 1, **fields}))


def be_away() -> None:
    raise EngineUnreachable("Prometheus does not answer.")


def know_nothing(engine: MemoryEngine):
    """Answers as of a Prometheus that answers and has no figures."""
    usage = engine.usage

    def answer():
        return tuple(
            replace(
                report,
                utilization=None,
                memory_used_mib=None,
                pods=tuple(PodUsage(pod.pod_name, None, None) for pod in report.pods),
            )
            for report in usage()
        )

    return answer


def expect_a_new_clock(plant: Plant, job: Job) -> None:
    """After a gap the whole idle limit passes once more."""
    watch(plant, IDLE_SECONDS - 2)
    assert standing(job)[0] == "running"
    watch(plant, 4)
    assert standing(job) == ("timed_out", "interactive_idle")


def test_nobody_is_called_idle_while_what_measures_is_away(plant, monkeypatch):
    job = notebook(plant)
    monkeypatch.setattr(plant.engine, "usage", be_away)
    watch(plant, 3 * IDLE_SECONDS // 2)
    assert standing(job)[0] == "running"
    monkeypatch.undo()
    expect_a_new_clock(plant, job)


@pytest.mark.parametrize("measures", [True, False])
def test_nobody_is_called_idle_while_a_cluster_is_away(plant, monkeypatch, measures):
    if not measures:
        monkeypatch.setattr(plant.engine, "capabilities", plant.engine.capabilities - {USAGE})
    job = notebook(plant)
    say(plant, job, gpu_utilization=0.0)
    watch(plant, 2)
    plant.engine.faults.is_unreachable = True
    watch(plant, LONG_SECONDS)
    plant.engine.faults.is_unreachable = False
    plant.tick()  # the loop is back before the next look
    assert standing(job)[0] == "running"
    expect_a_new_clock(plant, job)


def test_what_is_not_known_is_not_idle_and_what_a_pod_says_is_known(plant, monkeypatch):
    monkeypatch.setattr(plant.engine, "usage", know_nothing(plant.engine))
    job = notebook(plant)
    watch(plant, 3 * IDLE_SECONDS // 2)
    assert standing(job)[0] == "running"
    say(plant, job, gpu_utilization=0.0)
    expect_a_new_clock(plant, job)


def test_what_a_pod_says_counts_while_what_measures_is_away(plant, monkeypatch):
    monkeypatch.setattr(plant.engine, "usage", be_away)
    job = notebook(plant)
    say(plant, job, gpu_utilization=0.0)
    expect_a_new_clock(plant, job)


def test_where_only_pods_tell_silence_is_idle(plant, monkeypatch):
    monkeypatch.setattr(plant.engine, "capabilities", plant.engine.capabilities - {USAGE})
    job = notebook(plant)
    expect_a_new_clock(plant, job)


def test_a_job_that_holds_no_gpu_is_known_to_use_none(plant):
    job = notebook(plant, gpus=0)
    expect_a_new_clock(plant, job)


def broken(engine: MemoryEngine, cluster: Cluster, memory: collecting.UsageMemory, now: object) -> None:
    if cluster.name == "other":
        raise ValueError("played")
    collecting.collect(engine, cluster, memory, now)


def test_one_clusters_gap_is_not_anothers(plant, other, monkeypatch):
    """Whatever keeps us from looking at one cluster, its jobs run on and the idle jobs of the others end."""
    far, near = notebook(plant, "team-b", other), notebook(plant)
    monkeypatch.setattr("controlplane.loop.telemetry_step.collect", broken)
    watch(plant, 3 * IDLE_SECONDS // 2)
    assert standing(far)[0] == "running"
    assert standing(near) == ("timed_out", "interactive_idle")


def test_a_cluster_that_waits_for_a_look_was_not_watched(plant, other):
    job = notebook(plant, "team-b", other)
    Cluster.objects.filter(pk=other.pk).update(state=Cluster.CHECKING)
    watch(plant, LONG_SECONDS)
    Cluster.objects.filter(pk=other.pk).update(state=Cluster.ATTACHED)
    plant.tick()
    assert standing(job)[0] == "running"
    expect_a_new_clock(plant, job)
