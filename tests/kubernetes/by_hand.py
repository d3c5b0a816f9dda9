"""Rows, a real cluster, and the loop run by the test itself: it decides when a cycle runs and which time it sees."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import Actor
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.kubernetes_api.credentials import Access
from controlplane.loop.cluster_context import forget_contexts
from controlplane.loop.cycle import run_cycle
from controlplane.loop.execute import execute_due
from controlplane.loop.project_sync import sync_projects_once
from controlplane.models import Cluster, Command, Project
from jobs.actions import delete_job
from jobs.models import Allocation, Job, Pod
from tests.builders import make_project, make_user
from tests.engines import give_engine
from tests.kube import KubeCluster, gpu_labels
from tests.kubernetes.chart import engine_kubeconfig
from tests.waiting import wait_until


class Yard:
    """A cluster row of its own on a Kubernetes cluster. `ahead`: by how much the loop's clock is ahead of the
    true one. `access`: another way to the API server, such as through a proxy; `settings`: of the engine."""

    def __init__(
        self,
        kube: KubeCluster,
        state_dir: Path,
        *,
        scheduler: str = "planner",
        access: Access | None = None,
        **settings: Any,
    ) -> None:
        self.name = f"t{secrets.token_hex(3)}"
        self.settings = {
            # with the chart's rights and no more
            "credentials": {"kubeconfig": engine_kubeconfig(kube, scheduler=scheduler), "context": ""},
            "scheduler": scheduler,
            "installation": self.name,
            "namespace_prefix": f"{self.name}-",
            "default_image": "nobody/runs:it",
            **settings,
        }
        self.kube, self.prefix, self.state_dir = kube, f"{self.name}-", state_dir
        self.access = access
        self.ahead = timedelta()
        self.nodes: list[str] = []
        self.cluster = Cluster.objects.create(name=self.name, engine="kubernetes", scheduler=scheduler)
        self._open()

    def add_node(self, gpus: int = 4, resources: Mapping[str, str] | None = None, **labels: str) -> str:
        """Create a fake node with `gpus` GPUs; return its name. With the setting node_selector of `own`, no other
        test uses the node."""
        name = f"{self.name}-{len(self.nodes)}"
        selector = self.settings.get("node_selector", {})
        labels = {**gpu_labels(32768, "default"), **selector, **labels}
        self.kube.add_node(name, gpus=gpus, labels=labels, resources=resources)
        self.nodes.append(name)
        self.look_at_nodes()
        return name

    def look_at_nodes(self) -> None:
        """Let the next cycle read the nodes again."""
        forget_contexts()

    def project(self, name: str = "team", quota: float = 4, **fields: Any) -> Project:
        project = make_project(name, quota, cluster=self.cluster, **fields)
        assert sync_projects_once()
        return project

    def tick(self) -> None:
        """Run one cycle and all due commands, also long ones."""
        assert run_cycle(timezone.now() + self.ahead) is not None
        while execute_due():
            pass

    def until(self, predicate: Callable[[], object], what: str, seconds: float = 30) -> None:
        def turned() -> object:
            self.tick()
            return predicate()

        wait_until(turned, seconds, what)

    def until_is(self, job: Job, state: str, reason: str = "") -> None:
        def is_so() -> bool:
            job.refresh_from_db()
            return job.state == state and reason in ("", job.reason)

        try:
            self.until(is_so, f"{job.name} to be {state} {reason}")
        except AssertionError as error:
            raise AssertionError(f"{job.name}: {job.state} {job.reason} {job.details}") from error

    def until_succeeded(self, job: Job) -> None:
        """Wait, at most 90 s, until the job has ended, and assert that it succeeded. For programs in real
        containers."""

        def has_ended() -> bool:
            job.refresh_from_db()
            return job.state in ("succeeded", "failed")

        self.until(has_ended, f"the end of {job.name}", 90)
        assert job.state == "succeeded", (job.reason, job.message)

    def path_of(self, job: Job, rank: int = 0) -> str:
        """Return the path, at the API server, of the job's newest pod of this rank."""
        pod = Pod.objects.filter(job=job, rank=rank).latest("pk")
        return f"/api/v1/namespaces/{self.prefix}{job.project.name}/pods/{pod.name}"

    def restart(self) -> None:
        """Open a new engine, as a new process does."""
        self.engine.close()
        self._open()

    def close(self) -> None:
        for job in Job.objects.all():
            delete_job(job, actor=actor())
        self.until(lambda: not self._end(), "every pod to be gone")
        give_engine(self.cluster, None)
        self.engine.close()
        for node in self.nodes:
            self.kube.api("DELETE", f"/api/v1/nodes/{node}")

    def _end(self) -> object:
        """Make all pending commands due; return the pods that still exist."""
        Command.objects.filter(state=Command.PENDING).update(not_before=self.cluster.created_at)
        return self.engine.pods()

    def _open(self) -> None:
        self.engine = KubernetesEngine(self.settings, self.state_dir, access=self.access)
        give_engine(self.cluster, self.engine)


def own() -> dict[str, Any]:
    """Return engine settings that restrict a cluster to nodes that `Yard.add_node` creates for it."""
    return {"node_selector": {"yard": secrets.token_hex(3)}}


def actor() -> Actor:
    return Actor(user=make_user())


def devices(job: Job) -> list[tuple[int, int]]:
    held = Allocation.objects.filter(pod__job=job, released_at=None).order_by("device__index")
    return list(held.values_list("device__index", "milli_gpus"))


def started(yard: Yard, *jobs: Job) -> None:
    for job in jobs:
        yard.until_is(job, "running")


def put_forward(owner: object, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a clock `seconds` ahead: the function `name` of `owner`, which returns seconds or a datetime."""
    tell = getattr(owner, name)
    first = tell()
    by = timedelta(seconds=seconds) if isinstance(first, datetime) else seconds
    monkeypatch.setattr(owner, name, lambda: tell() + by)
