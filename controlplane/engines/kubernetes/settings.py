"""The settings of a Kubernetes cluster, each with reader and default. No I/O.

Separate from the engine, because the API validates bodies with it and must not import engines.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane import fields
from controlplane.clusters.settings import (
    IMAGE_NAMES,
    LABEL_VALUE,
    MOUNT_PATHS,
    NAMESPACE_PREFIX,
    QUALIFIED_NAMES,
    Knob,
    SettingsInvalid,
    image,
    label_value,
    mount_path,
    name_like,
    object_name,
    one_of,
    or_empty,
    qualified_name,
    quantity,
)
from controlplane.fields import FieldError, Refused

URL = re.compile(
    r"https?://(?:[A-Za-z0-9][-A-Za-z0-9.]*|\[[0-9a-fA-F:.]+\])(?::[1-9][0-9]{0,4})?(?:/[^\s@?#]*)?"
)
TAKEN_PATHS = ("/work", "/dev", "/proc", "/sys", "/etc/trainyard")  # of pods
OURS = ("trainyard.io/", "app.kubernetes.io/managed-by")
EVERY_POOL = "*"


def labels(value: Any) -> dict[str, str]:
    """Return Kubernetes labels. Raise Refused for invalid ones and for those that Trainyard sets itself."""
    read = fields.mapped(QUALIFIED_NAMES, name_like(LABEL_VALUE, 63, "a label value"), 64)(value)
    return _not_ours(read)


def annotations(value: Any) -> dict[str, str]:
    """Return Kubernetes annotations. Raise Refused for invalid ones and for those that Trainyard sets itself."""
    return _not_ours(fields.mapped(QUALIFIED_NAMES, fields.text(4096), 64)(value))


def _not_ours(read: dict[str, str]) -> dict[str, str]:
    for key in read:
        if key.startswith(OURS):
            raise Refused(
                "reserved_name", f"{key} is set by Trainyard itself.", "/" + fields.pointer_part(key)
            )
    return read


def toleration(value: Any) -> dict[str, str]:
    """Return a toleration such as {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    of which only the key is required. Raise Refused for other values."""
    known = {
        "key": qualified_name,
        "operator": one_of("Exists", "Equal"),
        "value": label_value,
        "effect": _effect,
    }
    if not isinstance(value, dict) or "key" not in value or not value.keys() <= known.keys():
        raise Refused("bad_toleration", "A toleration has a key, and may have operator, value and effect.")
    read = {name: reader(value[name]) for name, reader in known.items() if value.get(name)}
    read.setdefault("operator", "Equal" if read.get("value") else "Exists")
    if read["operator"] == "Exists" and "value" in read:
        raise Refused("bad_toleration", "A toleration with the operator Exists has no value.", "/value")
    return read


def prometheus(value: Any) -> dict[str, Any]:
    """Return {"url": "http://..."}, or {"namespace", "service", "port"} for queries through the cluster's API server.
    Raise Refused for other values."""
    name = fields.dns_label(63)
    forms = ({"url": url}, {"namespace": name, "service": name, "port": fields.whole(1, 65535)})
    for readers in forms:
        if isinstance(value, dict) and value.keys() == readers.keys():
            return {key: read(value[key]) for key, read in readers.items()}
    raise Refused("bad_prometheus", 'Give {"url": ...} or {"namespace": ..., "service": ..., "port": ...}.')


def topology(value: Any) -> dict[str, str]:
    """Return {"topology": NAME, "requiredTopologyLevel": LABEL, "preferredTopologyLevel": LABEL}: a KAI Topology, and
    its levels within which a gang must or should stay, of which one may be missing; {} means none. Raise Refused for
    other values."""
    readers = {
        "topology": object_name,
        "requiredTopologyLevel": qualified_name,
        "preferredTopologyLevel": qualified_name,
    }
    if value == {}:
        return {}
    if not isinstance(value, dict) or not {"topology"} < value.keys() <= readers.keys():
        raise Refused(
            "bad_topology", "Give topology with requiredTopologyLevel, preferredTopologyLevel or both."
        )
    return {name: readers[name](level) for name, level in value.items()}


def host_paths(value: Any) -> dict[str, str]:
    """Return {"/in/the/pod": "/on/the/node"}. Raise Refused for invalid paths, and for places that pods use for other
    purposes."""
    paths: dict[str, str] = fields.mapped(MOUNT_PATHS, mount_path, 20)(value)
    for inside, outside in paths.items():
        is_taken = any(f"{inside}/".startswith(f"{place}/") for place in TAKEN_PATHS)
        if is_taken or ".." in f"{inside}/{outside}".split("/"):
            raise Refused(
                "bad_path",
                f"Give absolute paths without '..', and none in {', '.join(TAKEN_PATHS)}.",
                "/" + fields.pointer_part(inside),
            )
    return paths


def url(value: Any) -> str:
    """Return an http or https address. Raise Refused for any other value, and for one with user name or password."""
    address: str = fields.text(2000)(value)
    if not URL.fullmatch(address):
        raise Refused("bad_url", "Give an http:// or https:// address without user and password.")
    return address


resource_prefix = name_like(
    re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]*"), 317, "a name of resources or its beginning, like vendor.com/"
)
pool = name_like(re.compile(r"\*|[a-z0-9](?:[-a-z0-9]{0,48}[a-z0-9])?"), 50, "the name of a node pool, or *")
_effect = or_empty(one_of("NoSchedule", "PreferNoSchedule", "NoExecute"))
_user = fields.optional(fields.whole(1, 2**31 - 1))

_prefix = name_like(re.compile(r"[a-z](?:[-a-z0-9]{0,11})"), 12, "1 to 12 small letters, digits and hyphens")

EXTRA_RESOURCES = (
    "ephemeral-storage", "hugepages-", "vpc.amazonaws.com/", "rdma/", "aliyun/erdma", "smarter-devices/",
)  # fmt: skip
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}


def _knob(read: fields.Reader, default: Any, words: str) -> Any:
    """Return a dataclass field for one setting: its reader, its default and its description."""
    return field(default_factory=lambda: default, metadata={"knob": Knob(read, default, words)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The validated settings of one Kubernetes cluster. Each field's description is in its metadata."""

    # fmt: off
    gpu_resource: str = _knob(qualified_name, "nvidia.com/gpu", "The extended resource of nodes that stands for GPUs.")
    extra_resources: tuple[str, ...] = _knob(fields.listed(resource_prefix, 50), EXTRA_RESOURCES,
        "Prefixes of the names of resources that jobs may request besides GPUs. Quotas do not count them: do not "
        "add resources that stand for GPUs or other accelerators.")
    pool_label: str = _knob(or_empty(qualified_name), "",
        "The node label that names a node's pool; empty: trainyard.io/pool, then the node group label of the "
        "cloud.")
    node_selector: Mapping[str, str] = _knob(labels, {},
        "Only nodes with all of these labels are used; empty: every node.")
    node_suffix: str = _knob(or_empty(fields.dns_label(50)), "",
        "Suffix of this cluster's node names in Trainyard, after a dot; for clusters whose nodes have the same "
        "names.")
    tolerations: tuple[Mapping[str, str], ...] = _knob(fields.listed(toleration, 50), (GPU_TAINT,),
        "Taints of nodes that pods tolerate.")
    spot_pools: tuple[str, ...] = _knob(fields.listed(pool, 100), (),
        "Pools whose spot taints pods tolerate (EKS, AKS, GKE, ACK); ['*'] is all.")
    images: Mapping[str, str] = _knob(fields.mapped(IMAGE_NAMES, image, 1000), {},
        "Short names of images: {'quickstart': 'registry/...:1'}.")
    default_image: str = _knob(or_empty(image), "", "The image of jobs that name none.")
    control_url: str = _knob(or_empty(url), "",
        "The address of the control plane as pods reach it, for the code of jobs; empty: TRAINYARD_PUBLIC_URL, and"
        " without that jobs with code are refused.")
    code_image: str = _knob(or_empty(image), "",
        "An image with python3, in which pods download jobs' code, fill caches and read kept output; empty: the "
        "job's own image for code, and the default one for the rest.")
    image_pull_policy: str = _knob(one_of("", "Always", "IfNotPresent", "Never"), "",
        "When nodes pull images; empty: the cluster's default.")
    image_pull_secrets: tuple[str, ...] = _knob(fields.listed(object_name, 20), (),
        "Secrets of a project's namespace with which all images are pulled.")
    work_storage_class: str = _knob(or_empty(object_name), "",
        "The storage class of working directories; empty: they are lost with the pod, checkpoints too.")
    work_size: str = _knob(quantity, "20Gi", "The size of a working directory.")
    work_access_mode: str = _knob(one_of("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"), "ReadWriteOnce",
        "How working directories are mounted; ReadWriteMany lets an attempt start on another node at once.")
    cache_storage_class: str = _knob(or_empty(object_name), "",
        "The storage class, one with ReadWriteMany, of the volume of caches of each project; empty: jobs mount no "
        "datasets.")
    cache_size: str = _knob(quantity, "100Gi", "The size of a project's volume of caches.")
    shm_mib: int | None = _knob(fields.optional(fields.whole(1, 10_000_000)), None,
        "Shared memory of jobs that ask for a large one, in MiB; null: half of the pod's memory.")
    runtime_class: str = _knob(or_empty(object_name), "", "The RuntimeClass of pods with GPUs, for example nvidia.")
    service_account: str = _knob(or_empty(object_name), "", "The service account of pods; no token is mounted.")
    topology: Mapping[str, str] = _knob(topology, {},
        "With KAI: the Topology and the levels within which a gang stays.")
    scheduler_name: str = _knob(or_empty(object_name), "", "The scheduler that binds pods; empty: the default one.")
    control_namespace: str = _knob(fields.dns_label(63), "trainyard",
        "The namespace of the control plane, which may reach pods' ports.")
    namespace_prefix: str = _knob(_prefix, NAMESPACE_PREFIX, "The prefix of the namespaces of projects.")
    prometheus: Mapping[str, Any] | None = _knob(fields.optional(prometheus), None,
        "The Prometheus with the GPU metrics of the DCGM exporter.")
    env: Mapping[str, str] = _knob(fields.mapped(fields.ENV_NAMES, fields.text(4096), 100), {},
        "Environment variables of all pods; a job's own take precedence.")
    pod_labels: Mapping[str, str] = _knob(labels, {}, "More labels of all pods.")
    pod_annotations: Mapping[str, str] = _knob(annotations, {}, "More annotations of all pods.")
    pod_security: str = _knob(one_of("restricted", "baseline", "privileged"), "restricted",
        "The pod security standard that projects' namespaces enforce and pods comply with.")
    run_as_user: int | None = _knob(_user, 1000,
        "The user id of pods; null: the image's own, which restricted refuses for root.")
    run_as_group: int | None = _knob(_user, 1000,
        "The group of pods and of their working directory; null: the image's own.")
    network_policy: bool = _knob(fields.switch, True, "Whether pods of one project are closed to those of others.")
    metadata_access: bool = _knob(fields.switch, False,
        "Whether pods reach the cloud's metadata addresses, which grant the node's rights to every caller; by "
        "default the network policy blocks them.")
    mps_memory_limit: bool = _knob(fields.switch, True,
        "Whether shares of a GPU under MPS get a limit of device memory.")
    mpi_operator: bool | None = _knob(fields.optional(fields.switch), None,
        "Whether mpi jobs are given to the MPI operator as MPIJobs; null: if the last check found it and no "
        "work_storage_class is set, since hosts' working directories end with their pods there.")
    host_network: bool = _knob(fields.switch, False,
        "Whether pods use the node's network; needs pod_security privileged.")
    host_paths: Mapping[str, str] = _knob(host_paths, {},
        "Directories of the nodes mounted read-only, {'/in/the/pod': '/on/the/node'}; needs pod_security "
        "privileged.")
    # fmt: on


KNOBS: dict[str, Knob] = {each.name: each.metadata["knob"] for each in dataclasses.fields(Settings)}


def parse_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings, with defaults for those that `body` lacks; lists become tuples. Raise SettingsInvalid with
    all errors."""
    settings, errors = fields.read_fields(body, KNOBS, "setting")
    if not errors and settings["pod_security"] != "privileged":
        words = "Pod security forbids this; set pod_security to privileged with it."
        refused = (name for name in ("host_network", "host_paths") if settings[name])
        errors = [FieldError(f"/{name}", "needs_privileged", words) for name in refused]
    if errors:
        raise SettingsInvalid(errors)
    return settings
