"""The names and paths of our objects in a cluster, and the labels and annotations that identify them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.engines.base import PodSpec
from controlplane.kubernetes_api.names import FIELD_MANAGER, selector

# The API version and the plural name in paths of each kind of object that we create.
KINDS = {
    "Namespace": ("v1", "namespaces"),
    "Pod": ("v1", "pods"),
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "ResourceQuota": ("v1", "resourcequotas"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses"),
    "MPIJob": ("kubeflow.org/v2beta1", "mpijobs"),
    "Queue": ("scheduling.run.ai/v2", "queues"),
    "PodGroup": ("scheduling.run.ai/v2alpha2", "podgroups"),
}

# Labels of pods, anchors, services and claims. All values are valid label values: ids, DNS labels and numbers.
# The installation that owns the object; several may share a cluster.
INSTALLATION = "trainyard.io/installation"
PROJECT = "trainyard.io/project"
# In place of INSTALLATION, on a project's claim for caches and on pods that work on a project's data: the
# installation. Pods with this label belong to no job.
DATA_OF = "trainyard.io/data-of"
# On pods that show files of volumes: "volumes".
READS = "trainyard.io/reads"
JOB_ID = "trainyard.io/job-id"
JOB_NAME = "trainyard.io/job"
ATTEMPT = "trainyard.io/attempt"
RANK = "trainyard.io/rank"
ROLE = "trainyard.io/role"
KIND = "trainyard.io/kind"
# On a pod that we were asked to stop: "true", or AFTER_ITS_END if its command had ended before.
STOPPED = "trainyard.io/stopped"
AFTER_ITS_END = "after-its-end"
# Our name for a pod that an operator created and named.
POD = "trainyard.io/pod"
# The prefix of the job's own labels, which could trigger controllers without it.
USER_LABEL = "user.trainyard.io/"
MANAGED_BY = "app.kubernetes.io/managed-by"
# Labels that the MPI operator gives to the pods of an MPIJob.
MPI_JOB, MPI_ROLE = "training.kubeflow.org/job-name", "training.kubeflow.org/job-role"

# Labels of nodes, ours and those of NVIDIA's feature discovery.
POOL = "trainyard.io/pool"
# Only in our reports: the resource name on a node that renames shared GPUs.
GPU_RESOURCE = "trainyard.io/gpu-resource"
GPU_MODEL = "nvidia.com/gpu.product"
# MiB of a whole device, even if it is shared.
GPU_MEMORY = "nvidia.com/gpu.memory"
GPU_REPLICAS = "nvidia.com/gpu.replicas"
SHARING_STRATEGY = "nvidia.com/gpu.sharing-strategy"

# Annotations of pods.
# "0:1000:32768,1:500:16384": index, milli-GPUs, MiB of each device held.
DEVICES = "trainyard.io/devices"
DECLARED_PORTS = "trainyard.io/ports"  # "8888,6006"
# The job's own labels that are invalid as Kubernetes labels, as JSON.
USER_LABELS = "trainyard.io/labels"

# Keeps the end of a pod readable until we have recorded it.
FINALIZER = "trainyard.io/report"
# The scheduling gate of a pod that must never start.
STOP_GATE = "trainyard.io/stopped"
# The scheduling gate of a pod created by an operator, until we have assigned its identity and node.
PLACE_GATE = "trainyard.io/place"

WORK_DIR = "/work"
MAIN_CONTAINER = "main"


def manifest(kind: str, metadata: Mapping[str, Any], **rest: Any) -> dict[str, Any]:
    """Return an API object of a kind in KINDS. `rest`: its top-level fields besides metadata, such as `spec` or
    `data`."""
    return {"apiVersion": KINDS[kind][0], "kind": kind, "metadata": dict(metadata), **rest}


def list_path(kind: str, namespace: str = "") -> str:
    """Return the API path of all objects of a kind in a namespace; "" for all namespaces, or for kinds without one."""
    version, plural = KINDS[kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def path_of(raw: Mapping[str, Any], kind: str = "") -> str:
    """Return the API path of an object. `kind`: its kind if it comes from a list, whose objects do not contain it."""
    metadata = raw["metadata"]
    return f"{list_path(kind or raw['kind'], metadata.get('namespace', ''))}/{metadata['name']}"


def anchor_name(job_id: str, attempt: int) -> str:
    """Return the name of the ConfigMap that owns all objects of an attempt."""
    return f"{job_id}-{attempt}"


def service_name(job_id: str, attempt: int) -> str:
    """Return the name of an attempt's headless service. It begins with a letter, as services must."""
    return f"job-{job_id}-{attempt}"


def key_name(job_id: str, attempt: int) -> str:
    """Return the name of the Secret with the SSH key of an attempt's launcher."""
    return f"{job_id}-{attempt}-ssh"


def host_name(rank: int) -> str:
    """Return a pod's host name in its attempt's service; it depends only on the rank."""
    return f"rank-{rank}"


def claim_name(job_id: str, rank: int) -> str:
    """Return the name of the claim for a rank's working directory, which all attempts of the job share."""
    return f"work-{job_id}-{rank}"


def pod_name(raw: Mapping[str, Any]) -> str:
    """Return our name for one of our pods: its label if an operator named the pod, else its own name."""
    metadata = raw["metadata"]
    return str((metadata.get("labels") or {}).get(POD) or metadata["name"])


def made_by(raw: Mapping[str, Any]) -> str | None:
    """Return the id of the installation in an object's label, None without one."""
    theirs: str | None = (raw["metadata"].get("labels") or {}).get(INSTALLATION)
    return theirs


def is_unplaced(raw: Mapping[str, Any]) -> bool:
    """Return whether the MPI operator created this pod and `start` has not made it ours yet. Until then a scheduling
    gate keeps it from running."""
    labels = raw["metadata"].get("labels") or {}
    return MPI_ROLE in labels and POD not in labels


def operated(mpi_job: str, rank: int) -> str:
    """Return the key under which the cache has the unplaced pod of a rank, whose own name may be random."""
    return f"{mpi_job}/{rank}"


def operated_by(raw: Mapping[str, Any]) -> str:
    """Return the key of an unplaced pod, in the form of `operated`: the launcher is rank 0, `<job>-worker-0` is rank
    1. Without such labels and name, return the pod's name."""
    labels, name = raw["metadata"]["labels"], str(raw["metadata"]["name"])
    number = name.rpartition("-")[2]
    is_launcher = labels[MPI_ROLE] == "launcher"
    if MPI_JOB not in labels or not (is_launcher or (number.isascii() and number.isdecimal())):
        return name
    return operated(labels[MPI_JOB], 0 if is_launcher else int(number) + 1)


def namespace_path(namespace: str) -> str:
    return f"{list_path('Namespace')}/{namespace}"


def pod_path(raw: Mapping[str, Any]) -> str:
    return path_of(raw, "Pod")


def labels(installation: str, project: str = "") -> dict[str, str]:
    """Return the labels of all objects of an installation, and with `project` those of a project's objects."""
    ours = {MANAGED_BY: FIELD_MANAGER, INSTALLATION: installation}
    return {**ours, PROJECT: project} if project else ours


def labels_of(spec: PodSpec, installation: str) -> dict[str, str]:
    """Return the labels that all objects of an attempt have."""
    return {
        **labels(installation, spec.project),
        JOB_ID: spec.job_id,
        JOB_NAME: spec.job_name,
        ATTEMPT: str(spec.attempt),
        KIND: spec.kind,
    }


def ours(installation: str) -> str:
    """Return the label selector for all objects of this installation."""
    return selector({INSTALLATION: installation})


def of_job(installation: str, job_id: str) -> str:
    """Return the label selector for all objects of a job, of every attempt."""
    return selector({INSTALLATION: installation, JOB_ID: job_id})
