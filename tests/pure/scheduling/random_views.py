"""Random small clusters from a seed: nodes, projects, running jobs at random places, and queued ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from controlplane.scheduling.view import (
    ClusterView,
    DepartmentView,
    DeviceView,
    JobView,
    NodeView,
    PodPlacement,
    ProjectView,
)
from tests.pure.scheduling.builders import GROWING, asking

NOW = 1_000_000
MEMORY_MIB = 81_920
STYLES = ("plain", "single", "depts", "elastic")


def random_view(seed: int) -> ClusterView:
    """Return the random cluster of this seed. Its style (departments, elastic jobs, one node) depends on the
    seed."""
    dice = random.Random(seed)
    style = STYLES[seed % len(STYLES)]
    nodes = tuple(_node(dice, rank) for rank in range(1 if style == "single" else dice.randint(2, 4)))
    departments = _departments(dice) if style == "depts" else ()
    names = tuple(department.name for department in departments)
    projects = tuple(_project(dice, rank, names) for rank in range(dice.randint(1, 4)))
    if not departments and dice.random() < 0.2:
        projects = tuple(
            replace(item, node_pools=(("train", dice.choice((("a",), ("b", "a"), ("default",)))),))
            if dice.random() < 0.3
            else item
            for item in projects
        )
    running = _running(dice, nodes, projects, style, dice.randint(0, 6))
    queued = tuple(_job(dice, f"q{rank}", 100 + rank, projects, style) for rank in range(dice.randint(1, 6)))
    if seed % 8 > 1:
        # drawn from dice of its own, so that the clusters of earlier seeds stay as they were
        times = random.Random(-seed)
        running, queued = (tuple(_timed(times, job) for job in jobs) for jobs in (running, queued))
    if dice.random() < 0.1:
        at = dice.randrange(len(queued))
        late = replace(queued[at], not_before=NOW + 100)
        queued = (*queued[:at], late, *queued[at + 1 :])
    return ClusterView("random", NOW, nodes, projects, departments, (*running, *queued))


def growing_view(seed: int) -> ClusterView:
    """Return an almost full cluster with running elastic jobs that lack workers. Some projects are inside their
    quotas, others borrow."""
    dice = random.Random(seed)
    nodes = tuple(_node(dice, rank) for rank in range(dice.randint(1, 3)))
    departments = _departments(dice) if dice.random() < 0.25 else ()
    names = tuple(department.name for department in departments)
    projects = tuple(_project(dice, rank, names) for rank in range(dice.randint(2, 4)))
    owner = replace(projects[0], quota_milli_gpus=dice.choice((2000, 3000, 4000)), limit_milli_gpus=None)
    projects = (owner, *projects[1:])
    first = _job(dice, "e0", 90, (owner,), "elastic")
    first = replace(first, milli_gpus=dice.choice((1000, 1000, 1000, 2000)), gpu_memory_mib=None, extras=())
    first = replace(first, min_pods=1, pods=dice.randint(2, 4), is_preemptible=True, kind="train")
    small = tuple(
        _job(dice, f"s{rank}", 20 + rank, projects, "elastic") for rank in range(dice.randint(2, 10))
    )
    rooms = _Rooms(nodes)
    running = _placed(dice, rooms, (first,), projects, pods=1)
    running += _running(dice, nodes, projects, "elastic", dice.randint(0, 4), rooms)
    small = tuple(replace(one, is_preemptible=True, kind="train") for one in small)
    running += _placed(dice, rooms, small, projects, running)
    queued = tuple(
        _job(dice, f"q{rank}", 100 + rank, projects, "elastic") for rank in range(dice.randint(0, 4))
    )
    if dice.random() < 0.5:
        running, queued = (tuple(_timed(dice, job) for job in jobs) for jobs in (running, queued))
    running = tuple(_asking(dice, job) for job in running)
    return ClusterView(GROWING, NOW, nodes, projects, departments, (*running, *queued))


def replacing_view(seed: int) -> ClusterView:
    """Return an almost full cluster of jobs with low priority, with others of high priority queued. Quotas are
    near what the projects hold; a third of the projects may not borrow."""
    dice = random.Random(seed)
    nodes = tuple(_node(dice, rank) for rank in range(dice.randint(1, 4)))
    departments = _departments(dice) if dice.random() < 0.3 else ()
    names = tuple(department.name for department in departments)
    projects = tuple(_project(dice, rank, names) for rank in range(dice.randint(2, 3)))
    projects = tuple(replace(one, limit_milli_gpus=None) for one in projects)
    style = "elastic" if dice.random() < 0.3 else "plain"
    running = _running(dice, nodes, projects, style, dice.randint(4, 12))
    running = tuple(replace(job, priority=dice.choice((40, 40, 50))) for job in running)
    queued = tuple(_job(dice, f"q{rank}", 100 + rank, projects, style) for rank in range(dice.randint(1, 4)))
    queued = tuple(replace(job, priority=dice.choice((50, 60, 60)), extras=()) for job in queued)
    if dice.random() < 0.5:
        running, queued = (tuple(_timed(dice, job) for job in jobs) for jobs in (running, queued))
    projects = tuple(_near_its_quota(dice, one, running) for one in projects)
    return ClusterView("replacing", NOW, nodes, projects, departments, (*running, *queued))


def _near_its_quota(dice: random.Random, project: ProjectView, running: Sequence[JobView]) -> ProjectView:
    """Return the project with a quota near what its jobs hold, from 2 GPUs below to 4 above."""
    held = sum(pod.milli_gpus for job in running if job.project == project.name for pod in job.placements)
    quota = max(0, held // 1000 * 1000 + dice.choice((-2000, -1000, 0, 1000, 2000, 3000, 4000)))
    return replace(
        project,
        quota_milli_gpus=quota,
        limit_milli_gpus=max(quota, held) if dice.random() < 0.33 else None,
    )


def _is_over(job: JobView, pods: int, projects: tuple[ProjectView, ...], running: Sequence[JobView]) -> bool:
    """Return whether `pods` more pods of the job would take its project above its limit."""
    limit = next(item.limit_milli_gpus for item in projects if item.name == job.project)
    held = sum(pod.milli_gpus for item in running if item.project == job.project for pod in item.placements)
    return limit is not None and held + pods * job.milli_gpus > limit


def _placed(
    dice: random.Random,
    rooms: _Rooms,
    jobs: Sequence[JobView],
    projects: tuple[ProjectView, ...],
    running: tuple[JobView, ...] = (),
    pods: int | None = None,
) -> tuple[JobView, ...]:
    """Return those of the jobs that fit, as running, at random places. `running`: jobs that count to limits;
    `pods`: of each job, None for a random number."""
    found: list[JobView] = []
    for job in jobs:
        count = pods or dice.randint(job.fewest_pods, job.pods)
        is_over = _is_over(job, count, projects, (*running, *found))
        placements = None if is_over else rooms.place(dice, job, count)
        if placements is not None:
            started = NOW - dice.choice((10, 600, 3600, 7200))
            found.append(replace(job, state="active", placements=placements, started_at=started))
    return tuple(found)


def _asking(dice: random.Random, job: JobView) -> JobView:
    """Return the job with requests for its missing workers: one by one, or at random all at once, as in a
    scale-out."""
    asks = asking(job)
    lacks = sum(asks.missing)
    return replace(asks, missing=(lacks,)) if lacks > 1 and dice.random() < 0.3 else asks


def _timed(dice: random.Random, job: JobView) -> JobView:
    """Return the job with an expected run time, or unchanged in a fifth of the cases. Running jobs then end at
    round times."""
    if dice.random() < 0.2:
        return job
    if job.started_at is None:
        return replace(job, expected_runtime_seconds=dice.choice((600, 1800, 3600, 7200)))
    end = NOW + 200 + dice.choice((-1200, 600, 1200, 3000, 6000))
    return replace(job, expected_runtime_seconds=max(1, end - job.started_at))


def _node(dice: random.Random, rank: int) -> NodeView:
    indexes = sorted(dice.sample(range(4), dice.choice((1, 2, 2, 3, 4, 4))))
    devices = tuple(DeviceView(index, MEMORY_MIB, dice.choice((0,) * 30 + (500, 1000))) for index in indexes)
    return NodeView(
        f"n{rank}",
        dice.choice(("default",) * 8 + ("a", "b")),
        devices,
        dice.choice((64_000, 64_000, 64_000, 2000, 4000)),
        100_000,
        dice.random() > 0.05,
        dice.choice(((), (), (), (("site/nic", 2),))),
    )


def _departments(dice: random.Random) -> tuple[DepartmentView, ...]:
    return tuple(
        DepartmentView(
            f"d{rank}",
            dice.choice((0, 1000, 2000, 4000)),
            dice.choice((0, 1000, 2000)),
            dice.choice((None, None, None, 5000)),
            dice.choice((0, 0, 0, 1)),
            rank,
        )
        for rank in range(2)
    )


def _project(dice: random.Random, rank: int, departments: tuple[str, ...]) -> ProjectView:
    quota = dice.choice((0, 0, 500, 1000, 1000, 1000, 2000, 4000, 4500))
    return ProjectView(
        f"p{rank}",
        quota,
        dice.choice((0, 1000, 1000, 1000, 2000, 4000)),
        dice.choice((None, None, None, None, quota, 1000, 5000)),
        dice.choice((0, 0, 0, 0, 1)),
        rank,
        dice.choice((*departments, None)) if departments else None,
    )


def _job(dice: random.Random, name: str, rank: int, projects: tuple[ProjectView, ...], style: str) -> JobView:
    milli_gpus = dice.choice((0, 250, 500, 500, 700, 1000, 1000, 1000, 1000, 2000, 2000, 3000, 4000))
    is_preemptible = dice.random() > 0.15
    pods = dice.choice((1, 1, 1, 2, 3)) if milli_gpus in (0, 500, 1000, 2000) else 1
    is_elastic = style == "elastic" and dice.random() < 0.5
    return JobView(
        name,
        dice.choice(projects).name,
        rank,
        kind="train" if is_preemptible else "interactive",
        priority=dice.choice((50, 50, 50, 60)),
        is_preemptible=is_preemptible,
        milli_gpus=milli_gpus,
        gpu_memory_mib=MEMORY_MIB // 2 if milli_gpus == 500 and dice.random() < 0.2 else None,
        pods=pods + dice.randint(1, 3) if is_elastic else pods,
        min_pods=pods if is_elastic else None,
        milli_cpus=dice.choice((0, 0, 0, 1000, 2000)) if milli_gpus else 1000,
        extras=dice.choice(((),) * 9 + ((("site/nic", 1),),)),
    )


def _running(
    dice: random.Random,
    nodes: tuple[NodeView, ...],
    projects: tuple[ProjectView, ...],
    style: str,
    count: int,
    rooms: _Rooms | None = None,
) -> tuple[JobView, ...]:
    """Return `count` jobs at random places, as on a cluster that has run for long. Those that would exceed a
    quota or limit, or fit nowhere, are left out."""
    rooms = _Rooms(nodes) if rooms is None else rooms
    quotas = {project.name: project.quota_milli_gpus or 0 for project in projects}
    running: list[JobView] = []
    for rank in range(count):
        job = _job(dice, f"r{rank}", rank, projects, style)
        pods = dice.randint(job.fewest_pods, job.pods)
        held = sum(
            pod.milli_gpus for item in running if item.project == job.project for pod in item.placements
        )
        is_fixed = not job.is_preemptible and held + pods * job.milli_gpus > quotas[job.project]
        limit = next(item.limit_milli_gpus for item in projects if item.name == job.project)
        is_over = limit is not None and held + pods * job.milli_gpus > limit
        placements = None if is_fixed or is_over else rooms.place(dice, job, pods)
        if placements is not None:
            started = NOW - dice.choice((10, 600, 3600, 7200))
            is_stopping = dice.random() < 0.05
            running.append(
                replace(
                    job, state="active", placements=placements, started_at=started, is_stopping=is_stopping
                )
            )
    return tuple(running)


class _Rooms:
    """The free capacity, by node and device."""

    def __init__(self, nodes: tuple[NodeView, ...]) -> None:
        self.free = {
            node.name: {device.index: 1000 - device.held_milli_gpus for device in node.devices}
            for node in nodes
        }
        self.rest = {node.name: [node.milli_cpus, dict(node.extras)] for node in nodes}

    def place(self, dice: random.Random, job: JobView, pods: int) -> tuple[PodPlacement, ...] | None:
        """Place `pods` pods of the job at random and return their placements. Return None, and take nothing, if
        one does not fit."""
        found: list[PodPlacement] = []
        for rank in range(pods):
            names = list(self.free)
            dice.shuffle(names)
            placement = next(
                (one for name in names if (one := self._pod(dice, job, rank, name)) is not None), None
            )
            if placement is None:
                for taken in found:
                    self._change(taken, job, 1)
                return None
            self._change(placement, job, -1)
            found.append(placement)
        return tuple(found)

    def _pod(self, dice: random.Random, job: JobView, rank: int, name: str) -> PodPlacement | None:
        cpus, extras = self.rest[name]
        if job.milli_cpus > cpus or any(extras.get(need, 0) < amount for need, amount in job.extras):
            return None
        share = min(job.milli_gpus, 1000)
        count = -(-job.milli_gpus // 1000)
        fitting = [index for index, free in self.free[name].items() if free >= share]
        if len(fitting) < count:
            return None
        devices = tuple((index, share) for index in sorted(dice.sample(fitting, count)))
        return PodPlacement(rank, name, devices)

    def _change(self, placement: PodPlacement, job: JobView, sign: int) -> None:
        for index, milli_gpus in placement.devices:
            self.free[placement.node][index] += sign * milli_gpus
        self.rest[placement.node][0] += sign * job.milli_cpus
        for need, amount in job.extras:
            self.rest[placement.node][1][need] += sign * amount


def ageing_view(seed: int) -> ClusterView:
    """Return a random cluster in which each waiting gang has aged, and each running job has just saved a
    checkpoint."""
    one = random_view(seed)
    jobs = tuple(
        replace(
            job,
            waiting_since=0 if job.state == "queued" else None,
            last_checkpoint_at=one.now if job.state == "active" else None,
            started_at=None if job.started_at is None else job.started_at - 3600,
        )
        for job in one.jobs
    )
    return replace(one, jobs=jobs, gang_ageing_seconds=1)
