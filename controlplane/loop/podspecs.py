"""Make the commands that start a job's pods, from the job and its placement. A payload is JSON, so that the command
can be stored."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings

from controlplane.config.service_tokens import service_token
from controlplane.engines.base import (
    CodeSource,
    DeviceShare,
    GangMember,
    Mount,
    PodSpec,
    SecretValue,
    pod_name,
)
from controlplane.engines.variables import SERVICE_TOKEN, VOLUMES
from controlplane.logstore.reader import log_path
from controlplane.models import Project
from controlplane.scheduling.view import PodPlacement
from datasets.queries.code import code_source
from datasets.queries.job_data import dataset_mounts
from datasets.queries.volumes import volume_mount
from jobs.fields.declared import DECLARED
from jobs.kinds.base import PodShape
from jobs.kinds.registry import KINDS
from jobs.models import Job
from jobs.transitions import STOP_GRACE_SECONDS


def start_payloads(
    job: Job,
    shapes: Iterable[PodShape],
    placements: Mapping[int, PodPlacement],
    memory_mib: Mapping[tuple[str, int], int],
) -> list[dict[str, Any]]:
    """Return the PodSpecs of the pods `shapes` as JSON. `placements`: of all pods of the attempt, by rank.
    `memory_mib`: the memory of each device, by (node, device index)."""
    # Read once for all nodes.
    mounts = dataset_mounts(job, {at.node for at in placements.values()})
    return [_start_payload(job, shape, placements, memory_mib, mounts) for shape in shapes]


def _start_payload(
    job: Job,
    shape: PodShape,
    placements: Mapping[int, PodPlacement],
    memory_mib: Mapping[tuple[str, int], int],
    mounts: Mapping[str, list[list[Any]]],
) -> dict[str, Any]:
    """Return one pod's PodSpec as JSON. `mounts`: the mounts of datasets, by node; the others as in
    `start_payloads`."""
    placement, kind = placements[shape.rank], KINDS[job.kind]
    return {
        **_wishes(job.spec),
        "name": pod_name(str(job.pk), job.attempt, shape.rank),
        "job_id": str(job.pk),
        "job_name": job.name,
        "project": job.project.name,
        "attempt": job.attempt,
        "rank": shape.rank,
        "role": shape.role,
        "is_host": shape.is_host,
        "launches": _gang(job, placements.values()) if shape.is_launcher else [],
        "world_size": len(placements),
        # Pods that have begun need all others of the gang: each was started with the gang's size.
        "min_pods": len(placements),
        "has_stable_names": kind.has_stable_names,
        "is_elastic": kind.bounds(job.spec) is not None,
        "kind_env": {**kind.environment(job.spec, len(placements)), **_service_env(job), **_volumes_env(job)},
        "node": placement.node,
        "devices": [
            _share(job, placement.node, index, milli, memory_mib) for index, milli in placement.devices
        ],
        "kind": job.kind,
        "is_preemptible": job.is_preemptible,
        "priority": job.priority,
        "labels": job.labels,
        "grace_seconds": STOP_GRACE_SECONDS,
        "log_path": str(log_path(settings.LOG_DIR, str(job.pk), job.attempt, shape.rank)),
        "code": _code(job),
        "mounts": [
            *(list(_mount(job.project, mount)) for mount in job.spec.get("volumes", ())),
            *mounts[placement.node],
        ],
        "has_equal_mounts": all(one == mounts[placement.node] for one in mounts.values()),
    }


def pod_spec(payload: Mapping[str, Any]) -> PodSpec:
    """Return the PodSpec that a command's payload describes, also if an older version wrote the command."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in payload.items()
    }
    secrets = payload.get("secret_env", {})
    given |= {
        "devices": tuple(DeviceShare(*device) for device in payload["devices"]),
        "launches": tuple(
            GangMember(rank, name, node, tuple(devices))
            for rank, name, node, devices in payload.get("launches", ())
        ),
        "secret_env": {name: SecretValue(**source) for name, source in secrets.items()},
        "mounts": tuple(Mount(*mount) for mount in payload.get("mounts", ())),
        "code": CodeSource(**payload["code"]) if payload.get("code") else None,
    }
    return PodSpec(**given)


def _wishes(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the job's spec that the engine gets unchanged. Fields that a job of an older version lacks
    get their default."""
    unchanged = {field.pod: spec.get(field.name, field.default) for field in DECLARED if field.pod}
    return unchanged | {"ports": [port["port"] for port in spec["ports"]]}


def _service_env(job: Job) -> dict[str, str]:
    has_ports = bool(job.spec["ports"])
    return {SERVICE_TOKEN: service_token(settings.SECRET_KEY, str(job.pk))} if has_ports else {}


def _volumes_env(job: Job) -> dict[str, str]:
    """Return the environment variable with the paths of the volumes to which the job may write; {} without any. Host
    paths are left out, because they have no snapshots."""
    volumes = (mount for mount in job.spec.get("volumes", ()) if "host_path" not in mount)
    paths = [mount["mount_path"] for mount in volumes if not mount["read_only"]]
    return {VOLUMES: ":".join(paths)} if paths else {}


def _mount(project: Project, mount: Mapping[str, Any]) -> Mount:
    if "host_path" in mount:
        return Mount(mount["host_path"], mount["mount_path"])
    return volume_mount(project, mount)


def _code(job: Job) -> dict[str, Any] | None:
    code = job.spec.get("code")
    if not code:
        return None
    return code_source(job.project.cluster, job.project_id, str(job.pk), job.attempt, code["tree"])


def _gang(job: Job, placements: Iterable[PodPlacement]) -> list[list[Any]]:
    """Return [rank, pod name, node, device indexes] of every pod of the attempt, by rank."""
    return [
        [at.rank, pod_name(str(job.pk), job.attempt, at.rank), at.node, [index for index, _ in at.devices]]
        for at in sorted(placements, key=lambda at: at.rank)
    ]


def _share(
    job: Job, node: str, index: int, milli: int, memory_mib: Mapping[tuple[str, int], int]
) -> list[int]:
    """Return a pod's share of a device as [index, milli-GPUs, MiB]: the memory that the job requests, else the same
    fraction of the device's memory."""
    return [index, milli, job.gpu_memory_mib or memory_mib[node, index] * milli // 1000]
