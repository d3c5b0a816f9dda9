"""From a job and a placement to the order that the engine gets. The payload is plain JSON, so a command can wait."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from controlplane.engines.base import DeviceShare, PodSpec, pod_name
from controlplane.logs import log_path
from controlplane.scheduling.view import PodPlacement
from jobs.models import Job
from jobs.stopping import STOP_GRACE_SECONDS


def start_payload(
    job: Job, rank: int, role: str, placement: PodPlacement, memory_mib: Mapping[tuple[str, int], int]
) -> dict[str, Any]:
    """Return the JSON of a PodSpec. `memory_mib` maps (node, device index) to the device's memory."""
    spec = job.spec
    return {
        "name": pod_name(str(job.pk), job.attempt, rank),
        "job_id": str(job.pk),
        "job_name": job.name,
        "project": job.project.name,
        "attempt": job.attempt,
        "rank": rank,
        "role": role,
        "world_size": job.pods_wanted,
        "node": placement.node,
        "image": spec["image"],
        "command": list(spec["command"]),
        "args": list(spec["args"]),
        "devices": [
            _share(job, placement.node, index, milli, memory_mib) for index, milli in placement.devices
        ],
        "working_dir": spec["working_dir"],
        "env": spec["env"],
        "ports": [port["port"] for port in spec["ports"]],
        "large_shm": spec["large_shm"],
        "milli_cpus": spec["cpus"],
        "memory_mib": spec["memory_mib"],
        "grace_seconds": STOP_GRACE_SECONDS,
        "log_path": str(log_path(settings.LOG_DIR, str(job.pk), job.attempt, rank)),
    }


def pod_spec(payload: Mapping[str, Any]) -> PodSpec:
    """Return the engine's form of a payload."""
    return PodSpec(
        **{
            **payload,
            "command": tuple(payload["command"]),
            "args": tuple(payload["args"]),
            "ports": tuple(payload["ports"]),
            "devices": tuple(DeviceShare(*device) for device in payload["devices"]),
        }
    )


def _share(
    job: Job, node: str, index: int, milli: int, memory_mib: Mapping[tuple[str, int], int]
) -> list[int]:
    """Return [index, milli-GPUs, MiB]: the memory asked for, or the share of what the device has."""
    return [index, milli, job.gpu_memory_mib or memory_mib[node, index] * milli // 1000]
