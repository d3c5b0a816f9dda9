"""Telemetry where nothing measures, or does not answer: what pods say in their progress lines while it is fresh."""

import json
from datetime import timedelta

import pytest

from controlplane.engines.base import USAGE, EngineUnreachable, PodUsage, UsageReport
from controlplane.loop.cluster_context import context_of, forget_contexts
from controlplane.models import Device
from jobs.models import Job, Pod
from jobs.telemetry.collect import collect
from tests.builders import make_job, make_project
from tests.loop.plant import Plant


@pytest.fixture
def plant(db):
    plant = Plant()
    plant.engine.capabilities = plant.engine.capabilities - {USAGE}
    forget_contexts()
    yield plant
    plant.close()


def speak(plant: Plant, pod: Pod, utilization: float, memory_mib: int) -> None:
    gauges = {"step": 1, "gpu_utilization": utilization, "gpu_memory_mib": memory_mib}
    plant.engine.print_line(pod.name, json.dumps({"trainyard": 1, **gauges}))


def start(plant: Plant, **fields) -> Pod:
    job = make_job(make_project(), **fields)
    plant.settle()
    return Pod.objects.get(job=job)


def devices(pod: Pod) -> list[tuple[float | None, int | None]]:
    held = pod.allocations.order_by("device__index")
    return list(held.values_list("device__utilization", "device__memory_used_mib"))


def test_what_a_pod_says_counts_for_it_and_its_devices(plant):
    pod = start(plant, gpus=2)
    collect(plant.engine, plant.cluster, context_of(plant.cluster).usage, plant.clock())
    assert devices(pod) == [(None, None)] * 2
    speak(plant, pod, 0.75, 8000)
    collect(plant.engine, plant.cluster, context_of(plant.cluster).usage, plant.clock())
    assert devices(pod) == [(0.75, 4000)] * 2
    pod.refresh_from_db()
    assert (pod.gpu_utilization, pod.gpu_memory_mib) == (0.75, 8000)
    assert Job.objects.get().gpu_utilization == 0.75


def test_sharers_add_up_and_silence_is_not_idleness(plant):
    pod = start(plant, gpus=0.5)
    speak(plant, pod, 0.8, 1000)
    collect(plant.engine, plant.cluster, context_of(plant.cluster).usage, plant.clock())
    assert devices(pod) == [(0.4, 1000)]
    plant.clock.advance(timedelta(seconds=61).total_seconds())
    collect(plant.engine, plant.cluster, context_of(plant.cluster).usage, plant.clock())
    assert devices(pod) == [(None, None)]
    pod.refresh_from_db()
    assert pod.gpu_utilization is None


@pytest.fixture
def measuring(plant):
    """As a cluster with Prometheus."""
    plant.engine.capabilities = plant.engine.capabilities | {USAGE}
    return plant


def answer(monkeypatch, plant: Plant, *reports: UsageReport) -> None:
    monkeypatch.setattr(plant.engine, "usage", lambda: reports)


def break_down(monkeypatch, plant: Plant, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(plant.engine, "usage", fail)


def shown(pod: Pod) -> tuple[float | None, int | None, float | None, int | None]:
    """What the pod's row shows, and its job's: utilisation, MiB, utilisation, step."""
    pod.refresh_from_db()
    job = Job.objects.get(pk=pod.job_id)
    return pod.gpu_utilization, pod.gpu_memory_mib, job.gpu_utilization, job.progress.get("step")


def test_what_a_pod_says_fills_what_prometheus_does_not_tell(measuring, monkeypatch):
    pod = start(measuring)
    silent = UsageReport("dgx1-1", 0, None, None, (PodUsage(pod.name, None, None),))
    answer(monkeypatch, measuring, silent, UsageReport("dgx1-1", 1, 0.3, 10))
    speak(measuring, pod, 0.9, 8000)
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    assert shown(pod) == (0.9, 8000, 0.9, 1)
    assert devices(pod) == [(0.9, 8000)]
    assert Device.objects.get(node__name="dgx1-1", index=1).utilization == 0.3
    measuring.clock.advance(61)
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    assert shown(pod) == (None, None, None, 1)
    assert devices(pod) == [(None, None)]


def test_a_pod_that_prometheus_does_not_name_is_heard(measuring, monkeypatch):
    pod = start(measuring)
    answer(monkeypatch, measuring)
    speak(measuring, pod, 0.9, 8000)
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    assert shown(pod) == (0.9, 8000, 0.9, 1)
    assert devices(pod) == [(0.9, 8000)]


def test_what_is_measured_wins_over_what_is_said_figure_by_figure(measuring, monkeypatch):
    pod = start(measuring)
    answer(monkeypatch, measuring, UsageReport("dgx1-1", 0, 0.2, None, (PodUsage(pod.name, 0.2, None),)))
    speak(measuring, pod, 0.9, 8000)
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    assert shown(pod) == (0.2, 8000, 0.2, 1)
    assert devices(pod) == [(0.2, 8000)]


@pytest.mark.parametrize("error", [EngineUnreachable("Prometheus does not answer."), KeyError("played")])
def test_progress_and_what_pods_say_do_not_wait_for_prometheus(measuring, monkeypatch, error):
    pod = start(measuring)
    break_down(monkeypatch, measuring, error)
    speak(measuring, pod, 0.9, 8000)
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    assert shown(pod) == (0.9, 8000, 0.9, 1)
    assert devices(pod) == [(0.9, 8000)]


def test_what_was_last_measured_is_shown_while_prometheus_is_away(measuring, monkeypatch):
    pod = start(measuring)
    measuring.engine.set_usage(pod.name, 0.4, 2000)
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    break_down(monkeypatch, measuring, EngineUnreachable("Prometheus does not answer."))
    collect(measuring.engine, measuring.cluster, context_of(measuring.cluster).usage, measuring.clock())
    assert shown(pod) == (0.4, 2000, 0.4, None)
    assert devices(pod) == [(0.4, 2000)]
