"""Refuse submissions that can never run: requests larger than any node, a full queue, a name in use. The checks
return the refused fields with the indexes of their jobs, [] if there are none.

Batches of thousands would repeat the same queries over all devices and jobs, so values are cached for seconds. A
cached value is used to accept a job only when there is ample room; refusals use current values."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db.models import Count, Max

from controlplane.actions.errors import Conflict
from controlplane.config.images import ImageUnknown
from controlplane.fields import FieldError
from controlplane.models import Device, Node, Project
from datasets.actions.artifacts import artifact_refusals
from datasets.actions.mounting import known_volumes, volume_refusals
from datasets.queries.caches import cache_refusal
from datasets.queries.code import code_fields, code_refusal, digest_of, find_tree
from datasets.queries.mounts import mountable_versions
from jobs import lifecycle
from jobs.fields.mounts import normal_path
from jobs.images import installed_images, takes_command_of_image
from jobs.models import Job

# Limit on the unfinished jobs of one project, because the loop keeps those of all projects in memory.
QUEUE_MOST = 10_000
# Below this count a cached count is used, since other processes cannot fill the queue within QUEUE_SECONDS.
FAR_FROM_FULL = 5_000
# How long cached values may be used to accept a job, so that a burst of submissions does not query them for each.
NODES_SECONDS, QUEUE_SECONDS = 5.0, 1.0

T = TypeVar("T")
# Specs by the job's index in the submission, from 0.
Specs = Mapping[int, Mapping[str, Any]]
# Pairs of a job's index and one of its refused fields.
Refusals = list[tuple[int, FieldError]]


@dataclass(frozen=True, slots=True)
class _Largest:
    """The largest capacity of any node of a cluster, and of any device."""

    gpus: int
    device_mib: int
    milli_cpus: int
    memory_mib: int

    def refusal(self, spec: Mapping[str, Any]) -> FieldError | None:
        """Return the first field that requests more than this capacity, with the largest possible value; None
        if the request fits."""
        checks = (
            ("gpus", self.gpus * 1000, f"The largest node has {self.gpus} GPUs; ask for at most {self.gpus} a pod."),
            ("gpu_memory_mib", self.device_mib, f"The largest GPU has {self.device_mib} MiB; ask for at most that."),
            ("cpus", self.milli_cpus, f"The largest node has {self.milli_cpus / 1000:g} CPUs; ask for at most that."),
            ("memory_mib", self.memory_mib, f"The largest node has {self.memory_mib} MiB; ask for at most that."),
        )  # fmt: skip
        refused = ((name, words) for name, most, words in checks if (spec[name] or 0) > most)
        return next((FieldError(f"/{name}", "spec_impossible", words) for name, words in refused), None)

    def refusals(self, specs: Specs) -> Refusals:
        refused = ((place, self.refusal(spec)) for place, spec in specs.items())
        return [(place, error) for place, error in refused if error is not None]


class _Cache(Generic[T]):
    """Values by key, each valid for the given number of seconds; in the memory of this process."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._seen = seconds, dict[Any, tuple[float, T]]()

    def get(self, key: Any) -> T | None:
        at, value = self._seen.get(key, (0.0, None))
        return value if time.monotonic() - at < self._seconds else None

    def put(self, key: Any, value: T) -> T:
        self._seen[key] = time.monotonic(), value
        return value


_largest: _Cache[_Largest] = _Cache(NODES_SECONDS)
_queued: _Cache[int] = _Cache(QUEUE_SECONDS)


def too_large(project: Project, specs: Specs) -> Refusals:
    """Return refusals of requests that exceed the largest node or GPU of the cluster, each with the largest value
    that fits; [] on a cluster whose nodes are not known yet."""
    key = project.cluster_id, project.cluster.created_at
    seen = _largest.get(key)
    if seen is not None and not seen.refusals(specs):
        # If that node has been removed since, the scheduler reports the hold.
        return []
    found = _largest_of(project.cluster_id)
    if found is None:
        # The cluster's nodes are not discovered yet; the scheduler will judge.
        return []
    return _largest.put(key, found).refusals(specs)


def images_unknown(project: Project, specs: Specs) -> Refusals:
    """Return refusals of images that the catalogue lacks, for jobs without a command: the catalogue would supply it.
    There are none on clusters that run containers, and for jobs without an image, which are checked at their start:
    the project may have moved to another cluster by then."""
    named = {place: spec for place, spec in specs.items() if takes_command_of_image(project, spec)}
    if not named:
        return []
    catalogue = installed_images()
    refused: Refusals = []
    for place, spec in named.items():
        try:
            catalogue.command_line(spec["image"], (), tuple(spec["args"]))
        except ImageUnknown as error:
            refused.append((place, FieldError("/image", "image_unknown", str(error))))
    return refused


def code_unknown(project: Project, specs: Specs) -> Refusals:
    """Return refusals of code trees that the project does not have, and of all code on clusters whose pods cannot
    receive it. Replaces each spec's `code` by the stored description of its tree."""
    refused: Refusals = []
    for place, spec in specs.items():
        if spec["code"] is None:
            continue
        if detail := code_refusal(project.cluster):
            refused.append((place, FieldError("/code", "code_not_supported", detail)))
            continue
        digest = digest_of(spec["code"]["tree"])
        row = digest and find_tree(project, digest, spec["code"].get("commit"))
        if row:
            # Use only the store's description: a client could claim any commit.
            spec["code"].clear()
            spec["code"].update(code_fields(row))
        else:
            detail = f"{project.name} has no such code; upload it, as `yard submit --code DIR` does."
            refused.append((place, FieldError("/code/tree", "code_unknown", detail)))
    return refused


def datasets_unknown(project: Project, specs: Specs) -> Refusals:
    """Return refusals of datasets that the project's jobs may not mount, of versions that do not exist, and of
    all datasets on clusters whose pods cannot receive them. Replaces each spec's `version` (a tag or `latest`) by
    the number it has now."""
    mounts = [
        (place, index, each) for place, spec in specs.items() for index, each in enumerate(spec["datasets"])
    ]
    if not mounts:
        return []
    if detail := cache_refusal(project.cluster):
        return [(place, FieldError("/datasets", "datasets_not_supported", detail)) for place, _, _ in mounts]
    found = mountable_versions(project, {_asked(each) for _, _, each in mounts})
    refused: Refusals = []
    for place, index, each in mounts:
        version = found[_asked(each)]
        if isinstance(version, FieldError):
            refused.append((place, version._replace(pointer=f"/datasets/{index}{version.pointer}")))
            continue
        # Resolved now, because `latest` must mean the same version in every attempt.
        each |= {"asked": each["version"], "version": version.number, "version_id": str(version.pk)}
    return refused


def _asked(mount: Mapping[str, Any]) -> tuple[str, str, str]:
    return mount["dataset"], mount["version"], mount.get("subset", "")


def paths_not_allowed(specs: Specs) -> Refusals:
    """Return refusals of host paths that an admin has not listed, and of those below a listed one: jobs can write
    there, and a symbolic link created by a job could lead anywhere on the node."""
    allowed = [normal_path(path) for path in settings.HOST_PATHS]
    known = (
        f"Mount one of: {', '.join(allowed)}."
        if allowed
        else "No admin has allowed any (TRAINYARD_HOST_PATHS)."
    )
    return [
        (
            place,
            FieldError(
                f"/volumes/{index}/host_path", "host_path_not_allowed", f"{path} is not allowed. {known}"
            ),
        )
        for place, spec in specs.items()
        for index, path in enumerate(mount.get("host_path") for mount in spec["volumes"])
        if path is not None and path not in allowed
    ]


def volumes_refused(project: Project, specs: Specs) -> Refusals:
    """Return refusals of volumes that the project does not have, of unknown storage classes, and of volumes on
    clusters without them."""
    known = known_volumes(project, list(specs.values()))
    return [
        (place, FieldError(*refused))
        for place, spec in specs.items()
        for refused in volume_refusals(project, spec, known)
    ]


def artifacts_refused(project: Project, specs: Specs) -> Refusals:
    """Return refusals of artifacts on clusters that cannot collect them, and of two artifacts of one job with the
    same name."""
    return [
        (place, FieldError(*refused))
        for place, spec in specs.items()
        for refused in artifact_refusals(project, spec)
    ]


def names_twice(specs: Specs) -> Refusals:
    """Return refusals of names that another job of the same submission already has."""
    first: dict[str, int] = {}
    return [
        (
            place,
            FieldError(
                "/name", "name_twice", f"{name} is used twice in this submission; give each job its own name."
            ),
        )
        for place, spec in specs.items()
        for name in (spec["name"],)
        if first.setdefault(name, place) != place
    ]


def names_in_use(project: Project, specs: Specs) -> Refusals:
    """Return refusals of names that unfinished jobs of the project have."""
    names = [spec["name"] for spec in specs.values()]
    used = set(_unfinished(project).filter(name__in=names).values_list("name", flat=True))
    words = f"is an unfinished job of {project.name}; choose another name."
    return [
        (place, FieldError("/name", "name_in_use", f"{spec['name']} {words}"))
        for place, spec in specs.items()
        if spec["name"] in used
    ]


def check_room_in_queue(project: Project, wanted: int) -> None:
    """Raise Conflict if `wanted` more unfinished jobs would exceed QUEUE_MOST for the project. For a single job,
    a count up to QUEUE_SECONDS old is used while it is far below the limit."""
    seen = _queued.get(project.pk)
    # Other processes may have added jobs since the count; far from the limit that does not matter.
    if wanted == 1 and seen is not None and seen < FAR_FROM_FULL:
        return
    unfinished = _unfinished(project).count()
    if _queued.put(project.pk, unfinished + wanted) > QUEUE_MOST:
        detail = f"{project.name} has {unfinished} unfinished jobs of at most {QUEUE_MOST}; wait until some have ended."
        raise Conflict("queue_full", detail)


def _unfinished(project: Project) -> Any:
    return Job.objects.filter(project=project).exclude(state__in=lifecycle.FINAL_STATES)


def _largest_of(cluster_id: int) -> _Largest | None:
    nodes = Node.objects.filter(cluster=cluster_id)
    room = nodes.aggregate(nodes=Count("pk"), cpus=Max("milli_cpus"), memory=Max("memory_mib"))
    if not room["nodes"]:
        return None
    per_node = Device.objects.filter(node__cluster=cluster_id).values("node")
    per_node = per_node.annotate(gpus=Count("pk"), memory=Max("memory_mib"))
    devices = per_node.aggregate(most=Max("gpus"), largest=Max("memory"))
    return _Largest(devices["most"] or 0, devices["largest"] or 0, room["cpus"], room["memory"])
