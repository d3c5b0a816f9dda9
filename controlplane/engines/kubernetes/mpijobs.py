"""Attempts that are given to the MPI operator: an MPIJob, and what each pod that it makes is told. Pure.

The operator makes the pods of all hosts from one template, with names of its own and nothing of ours that is particular
to one of them. So they wait behind a scheduling gate until `start` says of each who it is, what it holds and where it
goes, and lifts the gate in the same patch. From then on it is as any pod of ours, but for its name. A pod that the
operator makes anew later stays behind the gate, and goes with the attempt's anchor. How ranks reach one another is the
same as without the operator (mpi.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controlplane.engines.base import CANNOT_SHARE, EngineRefused, PodSpec, pod_name
from controlplane.engines.kubernetes import manifests, mpi, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.mpi_hostfile import host_files

GROUP_VERSION = "kubeflow.org/v2beta1"
LAUNCHED_BY, OPERATOR = "launched_by", "mpi-operator"  # in the anchor's data
OPERATORS_KEY_DIR = "/etc/trainyard/operator-ssh"  # where the operator puts its key, which nobody needs
OWN_WORD = "own-word.trainyard.io/"  # annotation: a variable of one host, which the template reads from there
OWN_WORDS = ("TRAINYARD_RANK", "TRAINYARD_NODE", "TRAINYARD_GPU_DEVICES", "TRAINYARD_GPU_MEMORY_MIB", "RANK")

Raw = Mapping[str, Any]


def collection(namespace: str) -> str:
    """Return the path of a namespace's MPIJobs."""
    return f"/apis/{GROUP_VERSION}/namespaces/{namespace}/mpijobs"


def suits(spec: PodSpec, profile: ClusterProfile) -> bool:
    """Whether the attempt is one for the operator; the same for each of its pods.

    What a share of a GPU asks for depends on the node that it is on, which one template for all cannot say.
    """
    is_whole = all(share.milli_gpus == 1000 for share in spec.devices)
    return mpi.needs_launch(spec) and spec.world_size > 1 and is_whole and profile.gives_to_mpi_operator


def marked(anchor: Raw, spec: PodSpec) -> dict[str, Any]:
    """The anchor of an attempt that goes to the operator. Who made it first has decided for all of its pods."""
    return {**anchor, "data": {**anchor["data"], LAUNCHED_BY: OPERATOR, **host_files(hosts(spec))}}


def is_marked(anchor: Raw) -> bool:
    """Whether the operator makes the pods of this anchor's attempt."""
    return (anchor.get("data") or {}).get(LAUNCHED_BY) == OPERATOR


def mpi_job_name(spec: PodSpec) -> str:
    """The MPIJob has the name of the attempt's service, since the operator makes that."""
    return names.service_name(spec.job_id, spec.attempt)


def hosts(spec: PodSpec) -> list[str]:
    """The names of the attempt's pods behind the operator's service, by rank."""
    job = mpi_job_name(spec)
    workers = (f"{job}-worker-{rank - 1}.{job}" for rank in range(1, spec.world_size))
    return [f"{job}-launcher.{job}", *workers]


def host_of(launcher: PodSpec) -> PodSpec:
    """The hosts of this launcher, as if they were one pod."""
    name = pod_name(launcher.job_id, launcher.attempt, 1)
    return replace(launcher, name=name, rank=1, role="worker", launches=(), is_host=True)


def host_profile(profile: ClusterProfile) -> ClusterProfile:
    """Claims have one name per pod, and hosts one template: their working directories live as long as they."""
    return replace(profile, work_storage_class="")


def mpi_job(spec: PodSpec, launcher: Raw, host: Raw, made: Raw) -> dict[str, Any]:
    """The MPIJob of `spec`, the launcher's. `launcher` and `host` are pods as we would make them; `made` the anchor.

    The operator's words for MPICH leave those alone by which we tell the implementations where sshd is.
    """
    replicas = {
        "Launcher": _replicas(1, launcher, spec),
        "Worker": _replicas(spec.world_size - 1, host, spec),
    }
    labels = {key: value for key, value in launcher["metadata"]["labels"].items() if key not in _OF_A_POD}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "MPIJob",
        "metadata": {
            "name": mpi_job_name(spec),
            "namespace": launcher["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [manifests.owner(made)],
        },
        "spec": {
            "slotsPerWorker": 1,
            "runLauncherAsWorker": True,
            "mpiImplementation": "MPICH",
            "sshAuthMountPath": OPERATORS_KEY_DIR,
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "mpiReplicaSpecs": replicas,
        },
    }


def placement(found: Raw, wanted: Raw, gpu_resource: str) -> dict[str, Any]:
    """A merge patch that makes one of our pods of `found`, which the operator made; `wanted` is that pod as we would
    make it. 409 when it changed. Raises EngineRefused(CANNOT_SHARE)."""
    if _gpus(found, gpu_resource) != _gpus(wanted, gpu_resource):
        words = "Its nodes divide their GPUs differently, and the MPI operator makes equal pods."
        raise EngineRefused(CANNOT_SHARE, f"{words} Choose one node pool, or set mpi_operator to false.")
    metadata, gates = found["metadata"], found["spec"].get("schedulingGates") or ()
    variables = wanted["spec"]["containers"][0]["env"]
    own = {f"{OWN_WORD}{each['name']}": each["value"] for each in variables if _is_own(each)}
    tolerations = list(found["spec"].get("tolerations") or ())
    tolerations += [one for one in wanted["spec"].get("tolerations") or () if one not in tolerations]
    return {
        "metadata": {
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


_OF_A_POD = (names.RANK, names.ROLE)
_FOR_THE_OPERATOR = ("restartPolicy", "hostname", "subdomain", "affinity")


def _replicas(count: int, pod: Raw, spec: PodSpec) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": "Never", "template": _template(pod, spec)}


def _template(pod: Raw, spec: PodSpec) -> dict[str, Any]:
    metadata = pod["metadata"]
    body = {key: value for key, value in pod["spec"].items() if key not in _FOR_THE_OPERATOR}
    main, *more = body["containers"]
    variables = [_variable(each, spec) for each in main["env"]]
    body |= {
        "schedulingGates": [{"name": names.PLACE_GATE}],
        "containers": [{**main, "env": variables}, *more],
    }
    if "initContainers" in body:
        body["initContainers"] = [_waiting(each, spec) for each in body["initContainers"]]
    return {
        "metadata": {
            "labels": {key: value for key, value in metadata["labels"].items() if key != names.RANK},
            "annotations": {
                key: value for key, value in metadata["annotations"].items() if key != names.DEVICES
            },
        },
        "spec": body,
    }


def _variable(each: Raw, spec: PodSpec) -> dict[str, Any]:
    if _is_own(each):
        path = f"metadata.annotations['{OWN_WORD}{each['name']}']"
        return {"name": each["name"], "valueFrom": {"fieldRef": {"fieldPath": path}}}
    if each["name"] == "MASTER_ADDR" and each.get("value") == mpi.hosts(spec)[0]:
        return {"name": "MASTER_ADDR", "value": hosts(spec)[0]}
    return dict(each)


def _is_own(variable: Raw) -> bool:
    return variable["name"] in OWN_WORDS and "value" in variable


def _waiting(container: Raw, spec: PodSpec) -> dict[str, Any]:
    if container["name"] != mpi.WAITING:
        return dict(container)
    return {**container, "command": [*container["command"][:2], *hosts(spec)]}


def _gpus(pod: Raw, resource: str) -> int:
    limits = pod["spec"]["containers"][0]["resources"].get("limits") or {}
    return sum(int(count) for name, count in limits.items() if name.startswith(resource))
