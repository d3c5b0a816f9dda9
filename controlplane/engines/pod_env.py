"""Environment variables that every engine sets in pods. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.engines.base import PodSpec


def identity_env(spec: PodSpec, ports: Mapping[int, int]) -> dict[str, str]:
    """Return the variables with the pod's identity and ports, which users cannot override. `ports`: declared port ->
    the port on which the pod must listen."""
    words = {
        "TRAINYARD_JOB": spec.job_name,
        "TRAINYARD_JOB_ID": spec.job_id,
        "TRAINYARD_PROJECT": spec.project,
        "TRAINYARD_ATTEMPT": str(spec.attempt),
        "TRAINYARD_RANK": str(spec.rank),
        "TRAINYARD_ROLE": spec.role,
        "TRAINYARD_WORLD_SIZE": str(spec.world_size),
        "TRAINYARD_NODE": spec.node,
        **spec.kind_env,
    }
    # In reverse, so that PORT is the first declared port.
    for declared in reversed(spec.ports):
        words[f"PORT_{declared}"] = words["PORT"] = str(ports[declared])
    return words


def device_env(spec: PodSpec, indexes: Iterable[int]) -> dict[str, str]:
    """Return the variables with the device `indexes` and the pod's share. For several devices it is the smallest
    share."""
    share = min((share.milli_gpus for share in spec.devices), default=0)
    memory_mib = min((share.memory_mib for share in spec.devices), default=0)
    return {
        "TRAINYARD_GPU_DEVICES": ",".join(str(index) for index in indexes),
        "TRAINYARD_GPU_SHARE": f"{share / 1000:g}",
        "TRAINYARD_GPU_MEMORY_MIB": str(memory_mib),
    }


def thread_env(spec: PodSpec) -> dict[str, str]:
    """Return the variables that limit compute threads to the pod's CPUs, rounded down, at least 1; by default
    libraries use all CPUs of the machine."""
    return {"OMP_NUM_THREADS": str(max(1, spec.milli_cpus // 1000))}
