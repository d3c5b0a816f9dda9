"""Find requests that can never be satisfied, even on an idle cluster: the project or pool is missing, or the nodes
have too little."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from controlplane.scheduling import reasons
from controlplane.scheduling.accounts import Account
from controlplane.scheduling.capacity import WHOLE_GPU, FreeCapacity
from controlplane.scheduling.expected_ends import rounded_up
from controlplane.scheduling.fit import (
    Request,
    amount_of,
    host_needs,
    place,
    pods_that_fit,
    pools_for,
    request_of,
    total_milli_gpus,
    without,
)
from controlplane.scheduling.initial_capacity import open_empty
from controlplane.scheduling.order import LAST, JobClass, QueuedProject, job_key, queued_projects
from controlplane.scheduling.view import ClusterView, JobView, NodeView, ProjectView, SharingMode

# The cache is bounded because a scheduler runs for weeks and every job may have another request.
MOST_VERDICTS = 10_000

_OF_DEVICES = ("gpus", "gpu_memory", "gpu_share")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job cannot start. `code`: of reasons.py; `details`: the numbers that were compared."""

    code: str
    details: dict[str, Any]


class FeasibilityCheck:
    """Checks jobs against the cluster as if it were empty and every node accepted pods."""

    def __init__(self, view: ClusterView) -> None:
        self._projects = {project.name: project for project in view.projects}
        self._pools = tuple(sorted({node.pool for node in view.nodes}))
        self._view = view
        self._verdicts: dict[Request, Refusal | None] = {}

    @cached_property
    def _empty(self) -> FreeCapacity:
        # Made when first read, because a new state takes a fifth longer with it, and most requests surely fit.
        return open_empty(self._view)

    def refuse(self, job: JobView) -> Refusal | None:
        """Return why this job can never start on the cluster as it is; None if it can, or if no nodes are known yet."""
        project = self._projects.get(job.project)
        if project is None:
            return Refusal(reasons.PROJECT_MISSING, {"project": job.project})
        if not self._view.nodes:
            # A cluster that has not reported its nodes yet may still grow, so it is treated as full and not as
            # too small.
            return None
        missing = self._missing_pool(job, project)
        if missing is None:
            return self._impossible(self.request(job))
        # A request that fits on no node is reported first, because another pool would not help it.
        return self._impossible(request_of(job, ())) or missing

    def request(self, job: JobView) -> Request:
        """Return the job's request, with those of its allowed pools that exist. Raise KeyError if its project is not
        in the view."""
        pools = pools_for(job, self._projects[job.project])
        return request_of(job, tuple(pool for pool in pools if pool in self._pools))

    def _missing_pool(self, job: JobView, project: ProjectView) -> Refusal | None:
        allowed = dict(project.node_pools).get(job.kind, ())
        numbers = {"project": project.name, "existing": list(self._pools)}
        if job.node_pool is not None and job.node_pool not in self._pools:
            return Refusal(reasons.NO_SUCH_NODE_POOL, {**numbers, "node_pool": job.node_pool})
        if job.node_pool is not None and allowed and job.node_pool not in allowed:
            numbers = {"project": project.name, "allowed": list(allowed), "node_pool": job.node_pool}
            return Refusal(reasons.NO_SUCH_NODE_POOL, numbers)
        if allowed and not set(allowed) & set(self._pools):
            return Refusal(reasons.NO_SUCH_NODE_POOL, {**numbers, "node_pool": ", ".join(allowed)})
        return None

    def _impossible(self, request: Request) -> Refusal | None:
        if request.locations:
            # Locations are ignored, because the data can be copied to every node.
            request = replace(request, locations=())
        if request not in self._verdicts:
            if len(self._verdicts) >= MOST_VERDICTS:
                self._verdicts.clear()
            self._verdicts[request] = self._examine(request)
        return self._verdicts[request]

    def _examine(self, request: Request) -> Refusal | None:
        """Return the first resource of which the empty cluster has too little, with the most that a node has; None if
        the request fits."""
        if _surely_fits(request, self._view.nodes):
            return None
        empty = self._empty
        if place(request, empty) is not None:
            return None
        one = replace(request, pods=1)
        pools = list(request.pools)
        if place(one, empty) is not None:
            fit = pods_that_fit(request, empty, request.pods)
            return self._refusal("pods", request.pods, fit, pools)
        nodes = self._nodes_for(one)
        for resource, asked, largest, relieved in self._shortages(one):
            # If the request fits without one resource, that is the resource to report.
            if place(relieved, empty) is not None or asked > largest:
                together = {"together": True} if self._is_there(resource, asked, nodes) else {}
                return self._refusal(resource, asked, largest, pools, **together)
        return self._refusal("gpus", request.milli_gpus, self._most_gpus(self._nodes_for(one)), pools)

    def _is_there(self, resource: str, asked: int, nodes: Sequence[NodeView]) -> bool:
        """Return whether a node has enough of this resource, even if it lacks another one."""
        if resource == "gpus":
            return asked <= self._most_gpus(nodes)
        return resource not in _OF_DEVICES and asked <= max(amount_of(node, resource) for node in nodes)

    def _nodes_for(self, request: Request) -> list[NodeView]:
        return [node for node in self._view.nodes if not request.pools or node.pool in request.pools]

    def _shortages(self, one: Request) -> list[tuple[str, int, int, Request]]:
        """Return the resources to test, as (resource, amount requested, most that one node has, the request without
        the resource)."""
        nodes = self._nodes_for(one)
        memory = max((device.memory_mib for node in nodes for device in node.devices), default=0)
        no_gpu = replace(one, milli_gpus=0, gpu_memory_mib=None)
        modes = {device.mode for node in nodes for device in node.devices}
        share = max(map(_largest_share, modes), default=WHOLE_GPU)
        gpus = ("gpus", one.milli_gpus, self._most_gpus(self._able(nodes, no_gpu)), no_gpu)
        if one.gpu_memory_mib is not None and (share == WHOLE_GPU or one.gpu_memory_mib > memory):
            gpus = ("gpu_memory", one.gpu_memory_mib, memory, no_gpu)
        elif one.is_share and share < WHOLE_GPU:
            gpus = ("gpu_share", min(map(one.share_of, modes)), share, no_gpu)
        return [gpus, *(self._host_shortage(nodes, one, need) for need in host_needs(one))]

    def _host_shortage(
        self, nodes: Sequence[NodeView], one: Request, need: str
    ) -> tuple[str, int, int, Request]:
        relieved = without(one, need)
        largest = max(amount_of(node, need) for node in self._able(nodes, relieved))
        return need, amount_of(one, need), largest, relieved

    def _able(self, nodes: Sequence[NodeView], rest: Request) -> Sequence[NodeView]:
        """Return the nodes that, when empty, have the CPUs, memory and extra resources of `rest`; all nodes if none
        has."""
        return [node for node in nodes if self._empty.node(node.name).has_host_capacity(rest)] or nodes

    @staticmethod
    def _most_gpus(nodes: Iterable[NodeView]) -> int:
        """Return the milli-GPUs of all whole devices of the node with the most; 0 if these nodes give out single
        parts only."""
        counts = [sum(_largest_whole(device.mode) for device in node.devices) for node in nodes]
        return max(counts, default=0) * WHOLE_GPU

    @staticmethod
    def _refusal(resource: str, asked: int, largest: int, pools: list[str], **more: bool) -> Refusal:
        details = {"resource": resource, "asked": asked, "largest": largest, "node_pools": pools, **more}
        return Refusal(reasons.SPEC_IMPOSSIBLE, details)


def _surely_fits(request: Request, nodes: Iterable[NodeView]) -> bool:
    """Return whether the request fits on these nodes when they are empty. The test is quick, mostly of one node: True
    is certain, False proves nothing."""
    if len(request.pools) > 1 or request.extras or request.is_share:
        return False
    missing = request.pods
    for node in nodes:
        if request.admits(node) and not any(device.is_single for device in node.devices):
            needs = (
                (len(node.devices), request.whole_devices),
                (node.milli_cpus, request.milli_cpus),
                (node.memory_mib, request.memory_mib),
            )
            missing -= min([there // asked for there, asked in needs if asked], default=missing)
            if missing <= 0:
                return True
    return False


def _largest_share(mode: SharingMode) -> int:
    """Return the largest share of one device that a pod can get, in milli-GPUs: one part where a pod gets a single
    part, else the whole device; 0 for a device that is not shared."""
    if mode.parts == 1:
        return 0
    return WHOLE_GPU // mode.parts if mode.is_single else WHOLE_GPU


def _largest_whole(mode: SharingMode) -> int:
    return 0 if mode.is_single and mode.parts > 1 else 1


_Key = tuple[Any, ...]
_attributes = attrgetter(
    "project", "kind", "node_pool", "milli_gpus", "gpu_memory_mib", "pods", "min_pods", "sizes", "milli_cpus",
    "memory_mib", "extras", "priority", "is_preemptible", "avoid", "locations", "fillable",
    "is_waiting_for_data", "data_progress", "is_waiting_for_volume", "volume_wait", "not_before", "promised",
    "was_preempted_by", "was_preempted_by_project",
)  # fmt: skip


def _alike(job: JobView) -> _Key:
    """Return the key of a job's class: jobs with equal keys are refused, explained and placed alike."""
    return (*_attributes(job), rounded_up(job.expected_runtime_seconds), job.workers_for)


class QueuedJobs:
    """The queued jobs of a view in classes of equal jobs, and those that can never start. Jobs may be added and
    removed while nodes and projects stay the same."""

    def __init__(self, view: ClusterView, accounts: Mapping[str, Account]) -> None:
        self._view = view
        self._accounts = accounts
        self._check = FeasibilityCheck(view)
        self._classes: dict[_Key, JobClass] = {}
        self._impossible: dict[_Key, tuple[list[JobView], Refusal]] = {}
        # None after the oldest job of a class has changed, or a class was added or removed.
        self._in_order: list[JobClass] | None = None
        self._projects: dict[Account, QueuedProject] | None = None
        # Equal requests are one object, because phases compare the requests of thousands of classes.
        self._requests: dict[Request, Request] = {}
        members: dict[_Key, list[JobView]] = {}
        for job in view.jobs:
            if job.state == "queued":
                members.setdefault(_alike(job), []).append(job)
        for key, jobs in members.items():
            self._open(key, jobs)

    def _open(self, key: _Key, jobs: list[JobView]) -> None:
        jobs.sort(key=job_key)
        refusal = self._check.refuse(jobs[0])
        if refusal is not None:
            self._impossible[key] = jobs, refusal
            return
        self._in_order = self._projects = None
        request = self._shared(self._check.request(jobs[0]))
        milli_gpus = total_milli_gpus(request, self._view)
        seconds = self._sorted_seconds(jobs[0]) if self._view.queue_order == "shortest" else 0
        self._classes[key] = JobClass(jobs, self._accounts[jobs[0].project], request, milli_gpus, seconds)

    def _shared(self, request: Request) -> Request:
        if len(self._requests) >= MOST_VERDICTS:
            self._requests.clear()
        return self._requests.setdefault(request, request)

    def _sorted_seconds(self, job: JobView) -> int:
        """Return the run time, in seconds, by which a job is sorted where the shortest goes first; LAST if it is
        unknown. A preempted job counts as longer by `requeue_rank_seconds`."""
        expected = rounded_up(job.expected_runtime_seconds)
        later = 0 if job.was_preempted_by is None else self._view.requeue_rank_seconds or 0
        return LAST if expected is None else expected + later

    def add(self, job: JobView) -> None:
        """Add a queued job. All jobs of its class are undecided then."""
        key = _alike(job)
        if key in self._classes:
            self._in_order = None
            self._classes[key].rewind()
            insort(self._classes[key].jobs, job, key=job_key)
        elif key in self._impossible:
            insort(self._impossible[key][0], job, key=job_key)
        else:
            self._open(key, [job])

    def remove(self, job: JobView) -> None:
        """Remove a job, which must equal the one that was added. All jobs of its class are undecided then."""
        key = _alike(job)
        if key in self._classes:
            self._in_order = None
            self._classes[key].rewind()
        jobs = self._classes[key].jobs if key in self._classes else self._impossible[key][0]
        del jobs[bisect_left(jobs, job_key(job), key=job_key)]
        if not jobs:
            self._projects = None
            self._classes.pop(key, None)
            self._impossible.pop(key, None)

    def classes(self) -> list[JobClass]:
        """Return the classes that can run on this cluster, sorted by first submission, with all their jobs
        undecided. Do not modify the list: it is kept."""
        for one in self._classes.values():
            # Classes are kept between cycles, and the last cycle has moved the position of a few.
            if one.is_moved:
                one.rewind()
        if self._in_order is None:
            self._in_order = sorted(self._classes.values(), key=lambda one: job_key(one.jobs[0]))
        return self._in_order

    def projects(self, but: Collection[JobClass]) -> list[QueuedProject]:
        """Return the projects of all classes that can run on this cluster, without the classes `but`."""
        if self._projects is None:
            self._projects = queued_projects(self._classes.values())
        if not but:
            return list(self._projects.values())
        changed, left_out = {one.account for one in but}, set(but)
        rest = [one for account in changed for one in self._projects[account].classes if one not in left_out]
        kept = [one for account, one in self._projects.items() if account not in changed]
        return kept + list(queued_projects(rest).values())

    def next_due(self, now: int) -> int | None:
        """Return when the next back-off after `now` ends, in Unix seconds; None if no job backs off."""
        times = [one.jobs[0].not_before for one in self._classes.values()]
        return min((at for at in times if at is not None and at > now), default=None)

    def impossible(self) -> list[tuple[JobView, Refusal]]:
        """Return the jobs that can never start here, sorted by first submission."""
        found = [(job, refusal) for jobs, refusal in self._impossible.values() for job in jobs]
        return sorted(found, key=lambda one: (one[0].submit_rank, one[0].id))


def line_up(
    view: ClusterView, accounts: Mapping[str, Account]
) -> tuple[list[JobClass], list[tuple[JobView, Refusal]]]:
    """Return the queued jobs that can run on this cluster, in classes of equal jobs, and those that never can, with
    the reason. Both are sorted by first submission."""
    queued = QueuedJobs(view, accounts)
    return queued.classes(), queued.impossible()
