"""The scheduler's input: one cluster at one moment, as frozen plain data.

Units: milli-GPUs (1 GPU = 1,000), MiB, milli-CPUs (1 CPU = 1,000), whole Unix seconds. Ids are strings.
`view_to_dict` and `view_from_dict` convert to and from plain JSON, so that any moment can be stored and replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

JobState = Literal["queued", "active"]
"""queued: wants to start. active: starting, running or stopping, and holds its placements."""


Extras = tuple[tuple[str, int], ...]
"""Resources of nodes beside GPUs, processors and memory, by the cluster's names: ((name, whole units), ...)."""


class Need(Protocol):
    """CPUs, memory and extra resources: those that each pod of a job requests, or those of a node."""

    @property
    def milli_cpus(self) -> int: ...

    @property
    def memory_mib(self) -> int: ...

    @property
    def extras(self) -> Extras: ...


class SharingMode(NamedTuple):
    """How a device is shared. `memory_mib`: its whole memory. `parts`: into how many equal parts it can be divided; a
    share is rounded up to whole parts (1,000: any share; 1: whole device only). `is_single`: a pod gets at most one
    part, so that no pod gets the whole of a divided device."""

    memory_mib: int
    parts: int = 1000
    is_single: bool = False


# A cluster has few modes and thousands of devices: one shared tuple per mode.
_sharing_mode = lru_cache(maxsize=1024)(SharingMode)


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One GPU. `held_milli_gpus`: held by other software, or by pods of jobs that are not active in this view until the
    pods are confirmed to have ended. `parts` and `is_single`: see SharingMode."""

    index: int
    memory_mib: int
    held_milli_gpus: int = 0
    parts: int = 1000
    is_single: bool = False

    @property
    def mode(self) -> SharingMode:
        """The device's sharing mode."""
        return _sharing_mode(self.memory_mib, self.parts, self.is_single)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `milli_cpus`, `memory_mib` and `extras` are the totals that pods may use, not what is free.
    `is_schedulable`: it gets new pods; False if it is cordoned, drained or not ready. `location`: where it reads
    cached data from; "" in a cluster with one location."""

    name: str
    pool: str
    devices: tuple[DeviceView, ...]
    milli_cpus: int
    memory_mib: int
    is_schedulable: bool = True
    extras: Extras = ()
    location: str = ""


@dataclass(frozen=True, slots=True)
class ShareView:
    """The rights of a department or project. A quota or limit of None is unlimited. `weight`: the over-quota weight, in
    any unit that is the same for all of them; the caller has set the default, which is the quota in milli-GPUs.
    `priority`: higher ones get surplus first. `created_rank`: lower is older."""

    name: str
    quota_milli_gpus: int | None
    weight: int
    limit_milli_gpus: int | None = None
    priority: int = 0
    created_rank: int = 0


@dataclass(frozen=True, slots=True)
class DepartmentView(ShareView):
    """A group of projects with rights of its own."""


@dataclass(frozen=True, slots=True)
class ProjectView(ShareView):
    """A project's rights on this cluster. `node_pools`: by job kind, the pools that it may use, the preferred one
    first; a kind without pools may use all. `usage`: the share of the cluster that was used recently, 0 to 1, in which
    older use counts less."""

    department: str | None = None
    node_pools: tuple[tuple[str, tuple[str, ...]], ...] = ()
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where one pod runs or is to run. `devices`: ((device index, milli-GPUs), ...); () for a pod without GPUs."""

    rank: int
    node: str
    devices: tuple[tuple[int, int], ...] = ()

    @property
    def milli_gpus(self) -> int:
        """The milli-GPUs that this pod holds, all its devices together."""
        return sum([milli_gpus for _, milli_gpus in self.devices])


@dataclass(frozen=True, slots=True)
class JobView:
    """One unfinished job.

    Per pod: `milli_gpus` (0, a share below 1,000, or a multiple of 1,000) or, if `gpu_memory_mib` is set, a share
    of one device with that much memory; `milli_cpus`; `memory_mib`; `extras`.
    `pods`: the gang size; all start or none. With `min_pods` the job is elastic: every size from `min_pods` to
    `pods` (if `sizes` is not empty, every such size in it) is a valid gang, and the Start decides which.
    `submit_rank`: the order of first submissions; a preempted job keeps its rank unless the view has
    `requeue_rank_seconds`.
    `is_stopping`: active and being stopped; it holds its GPUs until its pods are proven gone.
    `promised`: where an earlier cycle reserved capacity for this queued job, from its last recorded Hold.
    `avoid`: nodes on which the cluster has recently refused the job; used only if nothing else fits.
    `volume_wait`: details of the reason `waiting_for_volume`.
    `waiting_since`: when a job that has never started was submitted.
    `not_before`: when its back-off ends; None without one.
    `expected_runtime_seconds`: declared or learned, None if unknown; for a preempted job the remaining time.
    `was_preempted_by`: the id of the job that took its GPUs (`was_preempted_by_project`: its project), until it
    starts again. `was_preempted_kind`: the kind of that preemption if known, else "".
    `data_progress`: details of the reason while `is_waiting_for_data`.
    `locations`: the locations of nodes that have its data, the only ones where it may start; empty means all.
    `fillable`: other locations to which its data could be copied while it waits.
    `copies`: (location, seconds) until all of a queued job's data is there, of copies with a known rate; the location
    is "" on a cluster with only one.
    `missing`: of an active elastic job, the gangs of workers to add now, by their number of pods (see growth.py);
    `promised` is then where an earlier cycle reserved capacity for them.
    `workers_for`: the id of the active job of which this queued job is a gang of missing workers, "" for other jobs;
    only growth.py sets it.
    `name`: only for messages.
    """

    id: str
    project: str
    submit_rank: int
    kind: str = "train"
    state: JobState = "queued"
    priority: int = 50
    is_preemptible: bool = True
    milli_gpus: int = 0
    gpu_memory_mib: int | None = None
    pods: int = 1
    min_pods: int | None = None
    sizes: tuple[int, ...] = ()
    milli_cpus: int = 0
    memory_mib: int = 0
    extras: Extras = ()
    node_pool: str | None = None
    expected_runtime_seconds: int | None = None
    waiting_since: int | None = None
    not_before: int | None = None
    is_waiting_for_data: bool = False
    data_progress: tuple[tuple[str, str | int], ...] = ()
    is_waiting_for_volume: bool = False
    volume_wait: tuple[tuple[str, str], ...] = ()
    is_stopping: bool = False
    was_preempted_by: str | None = None
    was_preempted_by_project: str | None = None
    was_preempted_kind: str = ""
    started_at: int | None = None
    last_checkpoint_at: int | None = None
    placements: tuple[PodPlacement, ...] = ()
    promised: tuple[PodPlacement, ...] = ()
    avoid: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    fillable: tuple[str, ...] = ()
    copies: tuple[tuple[str, int], ...] = ()
    missing: tuple[int, ...] = ()
    workers_for: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """The name to show to users: the job's name, or its id if the view has no names."""
        return self.name or self.id

    @property
    def fewest_pods(self) -> int:
        """The number of pods of the smallest gang with which the job can start."""
        return self.pods if self.min_pods is None else self.min_pods


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The complete input of one decision. `now` is in Unix seconds; a decision reads no other clock.

    `usage_weight_milli`: how strongly past usage lowers a share of the surplus (1,000 = the usual k of 1).
    `min_runtime_seconds`: how long after its start a job cannot be reclaimed for a project above its quota.
    `queue_order`: the order of jobs of one project and priority: "submission", or "shortest" expected run time
    first, and GPUs beyond the quotas to the job of any project with the fewest GPU-seconds.
    `placement`: "packed" (tightest fit) or "fragmentation" (gradient, see fragmentation.py).
    `gang_ageing_seconds`: how long a gang of several pods waits for its first start until it may take GPUs of its
    own project's jobs and those that others borrow (ageing.py); 0: never.
    `requeue_rank_seconds`: None: a preempted job keeps its rank. Else the ranks are times in microseconds, and a
    preempted job has the rank of one that is submitted so many seconds after it was stopped; where the shortest goes
    first it counts as so many seconds longer.
    """

    name: str
    now: int
    nodes: tuple[NodeView, ...] = ()
    projects: tuple[ProjectView, ...] = ()
    departments: tuple[DepartmentView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    is_engine_reachable: bool = True
    usage_weight_milli: int = 1000
    min_runtime_seconds: int = 0
    gang_ageing_seconds: int = 0
    placement: str = "packed"
    queue_order: str = "submission"
    requeue_rank_seconds: int | None = None


def view_to_dict(view: ClusterView) -> dict[str, Any]:
    """Return the view as JSON data."""
    return asdict(view)


def view_from_dict(data: Mapping[str, Any]) -> ClusterView:
    """Return the view that `view_to_dict` wrote. Raise TypeError or KeyError for an unknown or a missing field."""
    plain = {
        **data,
        "nodes": tuple(_node(node) for node in data["nodes"]),
        "projects": tuple(_project(project) for project in data["projects"]),
        "departments": tuple(DepartmentView(**department) for department in data["departments"]),
        "jobs": tuple(_job(job) for job in data["jobs"]),
    }
    return ClusterView(**plain)


def _node(data: Mapping[str, Any]) -> NodeView:
    devices = tuple(DeviceView(**device) for device in data["devices"])
    return NodeView(**{**data, "devices": devices, "extras": _extras(data)})


def _extras(data: Mapping[str, Any]) -> Extras:
    return tuple((name, amount) for name, amount in data.get("extras", ()))


def _project(data: Mapping[str, Any]) -> ProjectView:
    pools = tuple((kind, tuple(names)) for kind, names in data["node_pools"])
    return ProjectView(**{**data, "node_pools": pools})


# Of fields in stored views that were written before the fields got their present names.
_OLD_NAMES = {"grows": "workers_for"}
_NAMES = ("avoid", "sizes", "locations", "fillable", "missing")


def _job(data: Mapping[str, Any]) -> JobView:
    pods = {name: placements_from_lists(data[name]) for name in ("placements", "promised")}
    wait = tuple((name, value) for name, value in data.get("volume_wait", ()))
    progress = tuple((name, value) for name, value in data.get("data_progress", ()))
    copies = tuple((name, seconds) for name, seconds in data.get("copies", ()))
    plain = {name: tuple(data.get(name, ())) for name in _NAMES} | {"extras": _extras(data)}
    named = {_OLD_NAMES.get(name, name): value for name, value in data.items()}
    pairs = {"volume_wait": wait, "data_progress": progress, "copies": copies}
    return JobView(**{**named, **pods, **plain, **pairs})


def placements_to_lists(placements: Iterable[PodPlacement]) -> list[dict[str, Any]]:
    """Return placements as JSON would read them back, so that stored and new ones compare equal."""
    return [
        {"rank": pod.rank, "node": pod.node, "devices": [list(device) for device in pod.devices]}
        for pod in placements
    ]


def placements_from_lists(data: Iterable[Mapping[str, Any]]) -> tuple[PodPlacement, ...]:
    """Return placements from their plain form: that of `dataclasses.asdict` or `placements_to_lists`, also read back
    from JSON."""
    return tuple(
        PodPlacement(pod["rank"], pod["node"], tuple((index, milli) for index, milli in pod["devices"]))
        for pod in data
    )
