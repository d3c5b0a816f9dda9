"""Build the MPIJob of an attempt, and the patches that turn the MPI operator's pods into ours. No I/O.

The operator creates the pods of all hosts from one template, under its own names. They wait behind a
scheduling gate until `start` patches each one's identity, devices and node, and lifts the gate in the same
patch. Afterwards a pod differs from our other pods in its name only. A pod that the operator recreates later
stays behind the gate and is removed with the attempt's anchor. Ranks reach each other as without the operator
(mpi.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controlplane.engines.base import CANNOT_SHARE, EngineRefused, PodSpec, pod_name
from controlplane.engines.kubernetes import manifests, mpi, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.manifests import without
from controlplane.engines.mpi_hostfile import host_files
from controlplane.kubernetes_api.names import RawView

# A key in the anchor's data.
LAUNCHED_BY, OPERATOR = "launched_by", "mpi-operator"
# The path where the operator mounts its key; our launcher uses its own key.
OPERATORS_KEY_DIR = "/etc/trainyard/operator-ssh"
# All hosts are made from one template, so a variable's value for one host is in this annotation, to which the template
# refers.
OWN_WORD = "own-word.trainyard.io/"
OWN_WORDS = ("TRAINYARD_RANK", "TRAINYARD_NODE", "TRAINYARD_GPU_DEVICES", "TRAINYARD_GPU_MEMORY_MIB", "RANK")


def suits(spec: PodSpec, profile: ClusterProfile) -> bool:
    """Return whether the MPI operator runs the attempt, the same for all its pods. It does not if pods request shares
    of GPUs or mount different claims, because one template serves all hosts."""
    is_wanted = profile.mpi_operator
    if is_wanted is None:
        # Only if jobs have no persistent working directory, which they would lose.
        is_wanted = profile.has_mpi_operator and not profile.work_storage_class
    is_uniform = spec.has_equal_mounts and all(share.milli_gpus == 1000 for share in spec.devices)
    return is_wanted and is_uniform and mpi.needs_launch(spec) and spec.world_size > 1


def anchor(spec: PodSpec, profile: ClusterProfile) -> dict[str, Any]:
    """Return the attempt's anchor, with the operator's host names and the mark that the operator creates the pods."""
    found = manifests.anchor(spec, profile)
    return {**found, "data": {**found["data"], LAUNCHED_BY: OPERATOR, **host_files(hosts(spec))}}


def mpi_job_name(spec: PodSpec) -> str:
    """Return the MPIJob's name: that of the attempt's service, which the operator names after the MPIJob."""
    return names.service_name(spec.job_id, spec.attempt)


def hosts(spec: PodSpec) -> list[str]:
    """Return the host names of the attempt's pods in the operator's service, by rank."""
    job = mpi_job_name(spec)
    workers = (f"{job}-worker-{rank - 1}.{job}" for rank in range(1, spec.world_size))
    return [f"{job}-launcher.{job}", *workers]


def host_of(launcher: PodSpec) -> PodSpec:
    """Return the spec for the MPIJob's Worker template: that of rank 1, which stands for all hosts of this launcher."""
    name = pod_name(launcher.job_id, launcher.attempt, 1)
    return replace(launcher, name=name, rank=1, role="worker", launches=(), is_host=True)


def mpi_job(spec: PodSpec, launcher: RawView, host: RawView, made: RawView) -> dict[str, Any]:
    """Return the MPIJob of an attempt. `spec`: the launcher's; `launcher` and `host`: our manifests of the two kinds
    of pods; `made`: the anchor."""
    metadata = {
        "name": mpi_job_name(spec),
        "namespace": launcher["metadata"]["namespace"],
        "labels": without(launcher["metadata"]["labels"], names.RANK, names.ROLE),
        "ownerReferences": [manifests.owner(made)],
    }
    body = {
        # One rank per pod, as without the operator.
        "slotsPerWorker": 1,
        # The launcher is rank 0 (decision 13).
        "runLauncherAsWorker": True,
        # The operator's variables for MPICH do not override those by which we point mpirun at our sshd.
        "mpiImplementation": "MPICH",
        "sshAuthMountPath": OPERATORS_KEY_DIR,
        # Pods stay until we have read how they ended, and we do the retries ourselves.
        "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
        "mpiReplicaSpecs": {
            "Launcher": _replicas(1, launcher, spec),
            "Worker": _replicas(spec.world_size - 1, host, spec),
        },
    }
    return names.manifest("MPIJob", metadata, spec=body)


def placement(found: RawView, wanted: RawView, gpu_resource: str) -> dict[str, Any]:
    """Return the merge patch that turns `found`, a pod that the operator created, into `wanted`, the pod that we
    would create. The server answers it with 409 if `found` has changed. Raise EngineRefused(CANNOT_SHARE) if they
    request different numbers of GPUs."""
    if _gpus(found, gpu_resource) != _gpus(wanted, gpu_resource):
        words = "Its nodes divide their GPUs differently, and the MPI operator creates equal pods."
        raise EngineRefused(CANNOT_SHARE, f"{words} Choose one node pool, or set mpi_operator to false.")
    metadata, gates = found["metadata"], found["spec"].get("schedulingGates") or ()
    variables = wanted["spec"]["containers"][0]["env"]
    own = {f"{OWN_WORD}{each['name']}": each["value"] for each in variables if _is_own(each)}
    tolerations = list(found["spec"].get("tolerations") or ())
    tolerations += [one for one in wanted["spec"].get("tolerations") or () if one not in tolerations]
    return {
        "metadata": {
            # The operator writes the same object; with this version the patch cannot undo its changes.
            "resourceVersion": metadata["resourceVersion"],
            "labels": {**wanted["metadata"]["labels"], names.POD: wanted["metadata"]["name"]},
            "annotations": {**wanted["metadata"]["annotations"], **own},
            "finalizers": [*metadata.get("finalizers", ()), names.FINALIZER],
        },
        "spec": {
            "schedulingGates": [gate for gate in gates if gate["name"] != names.PLACE_GATE] or None,
            "affinity": wanted["spec"].get("affinity"),
            "tolerations": tolerations,
        },
    }


def _replicas(count: int, pod: RawView, spec: PodSpec) -> dict[str, Any]:
    """Return an entry of mpiReplicaSpecs for `count` pods: our manifest of one of them, without what identifies that
    pod."""
    metadata = {
        "labels": without(pod["metadata"]["labels"], names.RANK),
        "annotations": without(pod["metadata"]["annotations"], names.DEVICES),
    }
    # The operator sets these itself.
    body = without(pod["spec"], "restartPolicy", "hostname", "subdomain", "affinity")
    (main,) = body["containers"]
    body["schedulingGates"] = [{"name": names.PLACE_GATE}]
    body["containers"] = [{**main, "env": [_variable(each, spec) for each in main["env"]]}]
    if "initContainers" in body:
        body["initContainers"] = [
            {**one, "command": [*one["command"][:2], *hosts(spec)]} if one["name"] == mpi.WAITING else one
            for one in body["initContainers"]
        ]
    return {"replicas": count, "restartPolicy": "Never", "template": {"metadata": metadata, "spec": body}}


def _variable(each: RawView, spec: PodSpec) -> dict[str, Any]:
    if _is_own(each):
        path = f"metadata.annotations['{OWN_WORD}{each['name']}']"
        return {"name": each["name"], "valueFrom": {"fieldRef": {"fieldPath": path}}}
    if each["name"] == "MASTER_ADDR" and each.get("value") == mpi.hosts(spec)[0]:
        return {"name": "MASTER_ADDR", "value": hosts(spec)[0]}
    return dict(each)


def _is_own(variable: RawView) -> bool:
    return variable["name"] in OWN_WORDS and "value" in variable


def _gpus(pod: RawView, resource: str) -> int:
    # Of all containers, because a service mesh may have put its own before ours.
    limits = ((one.get("resources") or {}).get("limits") or {} for one in pod["spec"]["containers"])
    return sum(int(each[name]) for each in limits for name in each if name.startswith(resource))
