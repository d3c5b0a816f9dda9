"""A large cluster as rows, made in seconds: nodes, projects, running and queued jobs with their pods and
allocations.

No loop runs on the cluster; pages and the live feed read the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.db import connection
from django.utils import timezone

from controlplane.models import Cluster, Counter, Device, Event, Node, NodePool, Project, User
from jobs.kinds.spec import parse_spec
from jobs.models import Allocation, Attempt, Job, Pod
from tests.builders import make_user

BATCH = 500  # rows an INSERT: SQLite bounds the parameters of a statement
SIZES = (1000, 2000, 500, 500, 1000, 4000, 1000)  # milli-GPUs of running jobs, in turn
LONG_NAME = "resnet-152-mixed-precision-ablation-with-a-name-that-takes-63"
LONG_TEAM = "team-with-a-name-as-long-as-they-may-be"
KINDS = ("train", "train", "interactive", "train", "elastic")


@dataclass(frozen=True, slots=True)
class Crowd:
    """The cluster, its projects, and the numbers of running and queued jobs."""

    cluster: Cluster
    projects: list[Project]
    running: int
    queued: int


def make_crowd(
    nodes: int, jobs: int, *, running: int, projects: int = 24, gpus: int = 8, cluster_name: str = "crowd"
) -> Crowd:
    """Create a cluster of `nodes` nodes with `gpus` devices each, and `jobs` unfinished jobs in `projects`
    projects; `running` of them have a pod and shares of devices."""
    cluster = Cluster.objects.create(name=cluster_name, engine="memory")
    devices = _devices(cluster, nodes, gpus)
    teams = _projects(cluster, projects, nodes * gpus // projects)
    user, now = make_user("ana"), timezone.now()
    rank = Counter.objects.advance("submission", jobs) - jobs + 1
    made = [_job(teams[n % projects], user, n, running, now, rank) for n in range(jobs)]
    Job.objects.bulk_create(made, BATCH)
    _place(made[:running], devices, now)
    Event.objects.append([Event(kind="job.submitted")])
    _renew_statistics()
    return Crowd(cluster, teams, running, jobs - running)


def _renew_statistics() -> None:
    """Renew PostgreSQL's statistics, as the loop does while tables grow. With those of empty tables a page takes
    minutes."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def _devices(cluster: Cluster, nodes: int, gpus: int) -> list[Device]:
    pool = NodePool.objects.create(cluster=cluster, name="default")
    machines = Node.objects.bulk_create(
        [
            Node(
                cluster=cluster,
                pool=pool,
                name=f"{cluster.name}-{n:04}",
                milli_cpus=80_000,
                memory_mib=524_288,
            )
            for n in range(nodes)
        ],
        BATCH,
    )
    rows = [_device(node, index) for node in machines for index in range(gpus)]
    return Device.objects.bulk_create(rows, BATCH)


def _device(node: Node, index: int) -> Device:
    use = ((index * 37 + node.pk * 11) % 100) / 100
    return Device(
        node=node,
        index=index,
        uuid=f"{node.name}-{index}",
        model="H100",
        memory_mib=81_920,
        utilization=use,
        memory_used_mib=int(use * 80_000),
    )


def _projects(cluster: Cluster, count: int, quota: int) -> list[Project]:
    return Project.objects.bulk_create(
        Project(
            name=f"{cluster.name}-team-{number:03}" if number else f"{cluster.name}-{LONG_TEAM}",
            cluster=cluster,
            gpu_quota_milli=max(1, quota) * 1000,
            fair_share_milli=max(1, quota) * 1000,
            palette_index=number % 12,
        )
        for number in range(count)
    )


def _job(project: Project, user: User, number: int, running: int, now: datetime, first_rank: int) -> Job:
    is_running = number < running
    milli = SIZES[number % len(SIZES)]
    state: dict[str, Any] = {
        "state": "queued",
        "reason": "cluster_full",
        "queue_position": number - running + 1,
    }
    if is_running:
        progress = {"step": number % 100, "total_steps": 100}
        state = {
            "state": "running",
            "reason": "started_in_quota",
            "progress": progress,
            "allocated_milli": milli,
        }
        state |= {
            "started_at": now - timedelta(seconds=running - number),
            "gpu_utilization": (number % 97) / 100,
        }
    return Job(
        project=project,
        user=user,
        name=LONG_NAME if number in (running - 1, running) else f"job-{number:05}",
        kind=KINDS[number % len(KINDS)],
        spec=_spec(milli) | {"name": f"job-{number:05}"},
        milli_gpus=milli,
        submit_rank=first_rank + number,
        message="All GPUs are in use, and the project is at its fair share.",
        queued_at=now - timedelta(seconds=600 - min(number, 599)),
        attempt=int(is_running),
        **state,
    )


@cache
def _spec(milli: int) -> dict[str, Any]:
    body = {"name": "job", "kind": "train", "image": "quickstart", "command": ["sleep"], "gpus": milli / 1000}
    return parse_spec(body)


def _place(jobs: Sequence[Job], devices: Sequence[Device], now: datetime) -> None:
    """Give each running job a pod and devices."""
    attempts = Attempt.objects.bulk_create(
        [Attempt(job=job, number=1, started_at=now) for job in jobs], BATCH
    )
    free = _free(devices)
    pods, shares = [], []
    for job, attempt in zip(jobs, attempts, strict=True):
        taken = (
            [next(free) for _ in range(max(1, job.milli_gpus // 1000))]
            if job.milli_gpus >= 1000
            else [next(free)]
        )
        pod = Pod(job=job, attempt=attempt, node=taken[0].node, rank=0, name=str(job.pk), state="running")
        pods.append(pod)
        shares += [
            Allocation(pod=pod, device=device, milli_gpus=min(1000, job.milli_gpus)) for device in taken
        ]
    Pod.objects.bulk_create(pods, BATCH)
    Allocation.objects.bulk_create(shares, BATCH)


def _free(devices: Sequence[Device]) -> Iterator[Device]:
    yield from devices
    raise ValueError("more running jobs than devices")
