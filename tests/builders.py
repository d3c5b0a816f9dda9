"""Functions that create rows for tests, one for each kind."""

from typing import Any

from controlplane.access import SYSTEM, Actor
from controlplane.actions.accounts import create_user
from controlplane.engines.simulated import simulated_nodes
from controlplane.models import Cluster, Counter, Device, Node, NodePool, Project, User
from jobs.actions import submit_job
from jobs.models import Job


def make_counters() -> None:
    """Create the counters, which the flush after a transactional test deletes."""
    for name in ("event", "submission"):
        Counter.objects.get_or_create(name=name)


def make_cluster(name: str = "memory", engine: str = "memory", nodes: int = 2, gpus: int = 8) -> Cluster:
    """Return the cluster of this name, created on first use, with `nodes` nodes dgx1-1, dgx1-2, ... of `gpus`
    devices with 32 GiB each, as rows and as engine settings."""
    names = [f"dgx1-{number}" for number in range(1, nodes + 1)]
    settings = {"nodes": {node: {"devices": gpus, "memory_mib": 32768, "pool": "default"} for node in names}}
    cluster, is_new = Cluster.objects.get_or_create(
        name=name, defaults={"engine": engine, "settings": settings}
    )
    if is_new:
        pool = NodePool.objects.create(cluster=cluster, name="default")
        for node in names:
            make_node(cluster, node, gpus, pool)
    return cluster


def make_node(cluster: Cluster, name: str, gpus: int = 8, pool: NodePool | None = None) -> Node:
    """Create a ready node with 80 CPUs, 512 GiB and `gpus` devices, the same that a memory engine would report."""
    node = Node.objects.create(cluster=cluster, name=name, pool=pool, milli_cpus=80_000, memory_mib=524_288)
    [report] = simulated_nodes({name: {"devices": gpus, "memory_mib": 32768}})
    Device.objects.bulk_create(
        Device(node=node, index=one.index, uuid=one.uuid, model=one.model, memory_mib=one.memory_mib)
        for one in report.devices
    )
    return node


def make_project(name: str = "team-a", quota: float = 4, **fields: Any) -> Project:
    """Create a project with a quota in GPUs, on the cluster of make_cluster() unless `fields` gives another."""
    return Project.objects.create(
        name=name,
        cluster=fields.pop("cluster", None) or make_cluster(),
        gpu_quota_milli=round(quota * 1000),
        palette_index=Project.objects.count() % 12,
        **fields,
    )


def make_user(name: str = "ana", *, is_admin: bool = False) -> User:
    """Return the user of that name, created on first use."""
    return User.objects.filter(username=name).first() or create_user(
        name, None, actor=SYSTEM, is_admin=is_admin
    )


def make_job(project: Project, name: str = "job", user: User | None = None, **body: Any) -> Job:
    """Submit a job that runs until it is stopped, with one GPU unless `body`, fields of the request, says
    otherwise."""
    spec = {"name": name, "kind": "train", "command": ["sleep", "infinity"], "gpus": 1} | body
    return submit_job(project, spec, actor=Actor(user=user or make_user()))
