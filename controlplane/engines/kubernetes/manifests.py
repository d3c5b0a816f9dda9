"""Build the objects of an attempt from a PodSpec, as plain dicts. No I/O.

CPUs are requested and not limited: other pods may use a node's idle cores, and throttled data loaders starve
a GPU. Memory is limited to the request, because it cannot be reclaimed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, EngineRefused, NodeReport, PodSpec
from controlplane.engines.kubernetes import code_delivery, elastic, mounts, mpi, names
from controlplane.engines.kubernetes.config import SPOT_TAINTS, ClusterProfile
from controlplane.engines.kubernetes.names import WORK_DIR
from controlplane.engines.pod_env import device_env, identity_env, thread_env

CHECKPOINT_DIR = f"{WORK_DIR}/checkpoints"
MASTER_PORT = 29500
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
# Neither autoscaler may remove a node to save cost while a job runs on it.
KEEP_NODE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}

# NVIDIA's runtime gives a container the devices that these variables name. The device plugin sets the first for a
# pod with GPUs, but a value in the pod would override that.
GIVES_DEVICES = frozenset((
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS",
))  # fmt: skip

_REFERENCE = re.compile(r"\$?\$\([A-Za-z_][A-Za-z0-9_]*\)")
_PLAIN = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PLAIN_LABEL = re.compile(f"{_PLAIN}=(?:{_PLAIN})?")


def anchor(spec: PodSpec, profile: ClusterProfile) -> dict[str, Any]:
    """Return the ConfigMap that owns all objects of the attempt; deleting it deletes them."""
    data = {"job": spec.job_name, "attempt": str(spec.attempt), "world_size": str(spec.world_size)}
    metadata = _metadata(spec, profile, names.anchor_name(spec.job_id, spec.attempt))
    return names.manifest("ConfigMap", metadata, data={**data, **mpi.launch_data(spec)})


def beside(spec: PodSpec, profile: ClusterProfile, made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that must exist before the pod, apart from the anchor: the headless service that gives each
    rank a host name, and the claim of its working directory. `made`: the anchor as the cluster returned it."""
    found = []
    if has_service(spec):
        selected = {names.JOB_ID: spec.job_id, names.ATTEMPT: str(spec.attempt)}
        metadata = _metadata(spec, profile, names.service_name(spec.job_id, spec.attempt))
        metadata["ownerReferences"] = [owner(made)]
        # Ranks look each other up before any of them is ready, so their addresses must be published at once.
        body = {"clusterIP": "None", "selector": selected, "publishNotReadyAddresses": True}
        found.append(names.manifest("Service", metadata, spec=body))
    claim = work_claim(spec, profile)
    return [*found, claim] if claim else found


def work_claim(spec: PodSpec, profile: ClusterProfile) -> dict[str, Any] | None:
    """Return the claim of a rank's working directory; None if the cluster keeps none and it is deleted with the pod.
    The claim is owned by no attempt, so that the next attempt finds its checkpoints."""
    if not profile.work_storage_class:
        return None
    metadata = _metadata(spec, profile, names.claim_name(spec.job_id, spec.rank))
    metadata["labels"].pop(names.ATTEMPT)
    metadata["labels"][names.RANK] = str(spec.rank)
    return claim_of(metadata, profile.work_access_mode, profile.work_storage_class, profile.work_size)


def claim_of(metadata: Mapping[str, Any], access_mode: str, storage_class: str, size: str) -> dict[str, Any]:
    """Return a PersistentVolumeClaim. `size`: a quantity such as 20Gi."""
    spec = {
        "accessModes": [access_mode],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    return names.manifest("PersistentVolumeClaim", metadata, spec=spec)


def launch_key(
    spec: PodSpec, profile: ClusterProfile, made: Mapping[str, Any], private_key: str, public_key: str
) -> dict[str, Any]:
    """Return the Secret with the attempt's own key pair, in OpenSSH's formats, for pods for which `mpi.needs_launch`
    is True. `made`: the anchor."""
    metadata = _metadata(spec, profile, names.key_name(spec.job_id, spec.attempt))
    metadata["ownerReferences"] = [owner(made)]
    data = {mpi.PRIVATE_KEY: private_key, mpi.PUBLIC_KEY: public_key}
    return names.manifest("Secret", metadata, type="kubernetes.io/ssh-auth", stringData=data)


def pod(
    spec: PodSpec, profile: ClusterProfile, node: NodeReport | None, made: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the Pod of a spec. `node`: the report of `spec.node`, None if the cluster's own scheduler chooses;
    `made`: the anchor as the cluster returned it. Raise EngineRefused: CANNOT_SHARE if the node cannot give the
    share, IMAGE_UNKNOWN without an image, NOT_SUPPORTED for a resource that jobs may not request."""
    metadata = _metadata(spec, profile, spec.name)
    # Users' labels are free text, and Kubernetes refuses a pod with an invalid label: such labels are an annotation.
    plain = {key: value for key, value in spec.labels.items() if _PLAIN_LABEL.fullmatch(f"{key}={value}")}
    rest = without(spec.labels, *plain)
    metadata["labels"] = {
        **profile.pod_labels,
        # With our prefix, because without it they could trigger controllers.
        **{names.USER_LABEL + key: value for key, value in plain.items()},
        **metadata["labels"],
        names.RANK: str(spec.rank),
        names.ROLE: spec.role,
    }
    own = {
        names.DEVICES: write_devices(spec.devices),
        names.DECLARED_PORTS: ",".join(map(str, spec.ports)),
        names.USER_LABELS: json.dumps(rest, sort_keys=True) if rest else "",
    }
    metadata["annotations"] = {**KEEP_NODE, **profile.pod_annotations, **without_empty(own)}
    metadata["finalizers"] = [names.FINALIZER]
    metadata["ownerReferences"] = [owner(made)]
    return names.manifest("Pod", metadata, spec=without_empty(_pod_spec(spec, profile, node)))


def tombstone(pod_name: str, project: str, profile: ClusterProfile) -> dict[str, Any]:
    """Return a Pod that never starts, which occupies the name of a pod that must not start. Its scheduling gate is
    never removed."""
    job_id, attempt, rank = pod_name.rsplit("-", 2) if pod_name.count("-") >= 2 else (pod_name, "0", "0")
    identity = {names.JOB_ID: job_id, names.ATTEMPT: attempt, names.RANK: rank, names.STOPPED: "true"}
    labels = {**names.labels(profile.installation, project), **identity}
    metadata = profile.metadata(pod_name, project, labels)
    # The image is never pulled, because the gate is never removed.
    container = {
        "name": names.MAIN_CONTAINER,
        "image": "stopped-before-its-start",
        "securityContext": container_security(profile),
    }
    body = {
        "schedulingGates": [{"name": names.STOP_GATE}],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": pod_security(profile),
        "containers": [without_empty(container)],
    }
    return names.manifest("Pod", {**metadata, "finalizers": [names.FINALIZER]}, spec=body)


def owner(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ownerReference to the attempt's anchor, as controller, because `kubectl drain` evicts only pods with
    one."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": made["metadata"]["name"],
        "uid": made["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def has_service(spec: PodSpec) -> bool:
    """Return whether the attempt has a headless service, by which its pods have host names."""
    is_gang = spec.world_size > 1 or spec.min_pods > 1 or spec.is_host or len(spec.launches) > 1
    return is_gang or spec.has_stable_names


def write_devices(devices: Iterable[DeviceShare]) -> str:
    """Return devices as text, index:milli-GPUs:MiB of each: `0:1000:32768,1:500:16384`."""
    return ",".join(f"{share.index}:{share.milli_gpus}:{share.memory_mib}" for share in devices)


def read_devices(text: str) -> tuple[DeviceShare, ...]:
    """Return the devices in a text of `write_devices`. Raise ValueError for any other text."""
    parts = [part.split(":") for part in text.split(",") if part]
    return tuple(DeviceShare(int(index), int(milli), int(mib)) for index, milli, mib in parts)


def image_of(spec: PodSpec, profile: ClusterProfile) -> str:
    """Return the reference of the pod's image: what the cluster's settings have for its name (with or without tag),
    else the name itself, else the default image. Raise EngineRefused(IMAGE_UNKNOWN) if there is none."""
    bare = re.sub(r"(@.*|:[^/:]*)$", "", spec.image)
    reference = (
        profile.images.get(spec.image) or profile.images.get(bare) or spec.image or profile.default_image
    )
    if not reference:
        known = ", ".join(sorted(profile.images)) or "none has a short name here"
        raise EngineRefused(
            base.IMAGE_UNKNOWN, f"The job names no image, and the cluster has no default. Images: {known}."
        )
    return reference


def gpu_request(spec: PodSpec, node: NodeReport | None) -> int:
    """Return how many units of the node's GPU resource the pod requests: GPUs, or parts on a node that divides them.
    `node` None: count whole GPUs only, because shares are requested from the scheduler that places them. Raise
    EngineRefused(CANNOT_SHARE) if the node cannot give the share."""
    if node is None:
        return sum(share.milli_gpus == 1000 for share in spec.devices)
    wanted = [-(-share.milli_gpus * node.device_parts // 1000) for share in spec.devices]
    if any(share.milli_gpus < 1000 for share in spec.devices) and node.device_parts == 1:
        raise EngineRefused(
            base.CANNOT_SHARE,
            f"{node.name} offers whole GPUs only. Enable time-slicing or MPS in its NVIDIA device plugin "
            "(sharing.timeSlicing or sharing.mps, with replicas), or attach the cluster with KAI Scheduler.",
        )
    if node.is_one_part_per_pod and sum(wanted) > 1:
        raise EngineRefused(
            base.CANNOT_SHARE,
            f"{node.name} shares each GPU by MPS among {node.device_parts} pods, and its device plugin gives a pod one "
            f"part only: ask for at most {1000 // node.device_parts / 1000:g} of a GPU, or for another node pool.",
        )
    return sum(wanted)


def escaped(argument: str) -> str:
    """Return a command argument in which Kubernetes replaces `$(NAME)` and nothing else. Other `$$` are kept, because
    in many scripts they are the shell's process id."""
    if "$$" not in argument:
        return argument
    pieces, end = [], 0
    for match in _REFERENCE.finditer(argument):
        pieces += [argument[end : match.start()].replace("$", "$$"), match[0]]
        end = match.end()
    return "".join([*pieces, argument[end:].replace("$", "$$")])


def _metadata(spec: PodSpec, profile: ClusterProfile, name: str) -> dict[str, Any]:
    return profile.metadata(name, spec.project, names.labels_of(spec, profile.installation))


def _pod_spec(spec: PodSpec, profile: ClusterProfile, node: NodeReport | None) -> dict[str, Any]:
    is_named = has_service(spec)
    secrets = dict.fromkeys((*profile.image_pull_secrets, *spec.image_pull_secrets))
    container = without_empty(_container(spec, profile, node))
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace_seconds,
        "priorityClassName": profile.priority_class(spec.is_preemptible),
        "schedulerName": profile.scheduler_name,
        "serviceAccountName": profile.service_account,
        "automountServiceAccountToken": False,
        # Otherwise every service of the namespace, one per gang, would add variables to the environment.
        "enableServiceLinks": False,
        # As process 1 of its PID namespace a command would ignore SIGTERM unless it installs a handler.
        "shareProcessNamespace": True,
        "runtimeClassName": profile.runtime_class if spec.devices else "",
        "imagePullSecrets": [{"name": name} for name in secrets],
        "nodeSelector": dict(profile.node_selector),
        "affinity": _affinity(spec, profile),
        "tolerations": _tolerations(spec, profile, node),
        "securityContext": pod_security(profile),
        "hostname": names.host_name(spec.rank) if is_named else "",
        "subdomain": names.service_name(spec.job_id, spec.attempt) if is_named else "",
        "hostNetwork": profile.host_network or None,
        "dnsPolicy": "ClusterFirstWithHostNet" if profile.host_network else "",
        "dnsConfig": mpi.dns_config(spec, profile.namespace_of(spec.project)),
        "initContainers": code_delivery.init_containers(spec, container, profile.code_image),
        "containers": [container],
        "volumes": [{"name": name, **source} for name, (_, source) in _volumes(spec, profile).items()],
    }


def _container(spec: PodSpec, profile: ClusterProfile, node: NodeReport | None) -> dict[str, Any]:
    command, args = list(map(escaped, spec.command)), list(map(escaped, spec.args))
    if spec.is_host:
        command, args = ["/bin/sh", f"{mpi.LAUNCH_DIR}/{mpi.HOST_FILE}"], []
    return {
        "name": names.MAIN_CONTAINER,
        "image": image_of(spec, profile),
        "imagePullPolicy": profile.image_pull_policy,
        "command": command,
        "args": args,
        "workingDir": spec.working_dir or WORK_DIR,
        "env": _environment(spec, profile, node),
        "ports": [{"containerPort": port} for port in spec.ports],
        "resources": _resources(spec, profile, node),
        "securityContext": container_security(profile),
        "volumeMounts": [{"name": name, **mount} for name, (mount, _) in _volumes(spec, profile).items()],
    }


def _environment(spec: PodSpec, profile: ClusterProfile, node: NodeReport | None) -> list[dict[str, Any]]:
    """Return the container's variables; later ones override earlier ones: defaults, the cluster's, the user's, the
    pod's identity and devices. Variables by which NVIDIA's runtime gives devices are dropped."""
    own = {
        **identity_env(spec, {port: port for port in spec.ports}),
        **device_env(spec, (share.index for share in spec.devices)),
        **_mps_limit(spec, profile, node),
    }
    if not spec.devices:
        # CUDA images request every GPU; where NVIDIA's runtime is the default, pods without GPUs would see them
        # all.
        own["NVIDIA_VISIBLE_DEVICES"] = "void"
    plain = {**_defaults(spec), **mpi.environment(spec), **profile.env, **spec.env}
    values = {name: {"value": _literal(value)} for name, value in plain.items()} | {
        name: {"valueFrom": {"secretKeyRef": {"name": source.secret, "key": source.key}}}
        for name, source in spec.secret_env.items()
    }
    values = {name: value for name, value in values.items() if name not in GIVES_DEVICES}
    values |= {name: {"value": _literal(value)} for name, value in own.items()}
    values |= elastic.environment(spec, profile)
    if not spec.node:
        values["TRAINYARD_NODE"] = {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return [{"name": name, **value} for name, value in values.items()]


def _defaults(spec: PodSpec) -> dict[str, str]:
    ranks = {
        "MASTER_ADDR": f"{names.host_name(0)}.{names.service_name(spec.job_id, spec.attempt)}",
        "MASTER_PORT": str(MASTER_PORT),
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.world_size),
    }
    common = {"HOME": WORK_DIR, "PYTHONUNBUFFERED": "1", **thread_env(spec)}
    return common | {"TRAINYARD_CHECKPOINT_DIR": CHECKPOINT_DIR} | (ranks if has_service(spec) else {})


def _literal(value: str) -> str:
    """Return a variable's value, escaped so that Kubernetes replaces nothing in it."""
    return value.replace("$", "$$") if "$$" in value or "$(" in value else value


def _mps_limit(spec: PodSpec, profile: ClusterProfile, node: NodeReport | None) -> dict[str, str]:
    has_mps = node is not None and node.labels.get(names.SHARING_STRATEGY) == "mps"
    if not (has_mps and profile.mps_memory_limit and spec.devices):
        return {}
    limits = [f"{place}={share.memory_mib}M" for place, share in enumerate(spec.devices)]
    return {MPS_MEMORY_LIMIT: ",".join(limits)}


def _resources(spec: PodSpec, profile: ClusterProfile, node: NodeReport | None) -> dict[str, Any]:
    profile.check_extra_resources(spec.extra_resources)
    count = gpu_request(spec, node)
    resource = node.labels.get(names.GPU_RESOURCE, profile.gpu_resource) if node else profile.gpu_resource
    limited = {**spec.extra_resources, "memory": f"{spec.memory_mib}Mi"}
    if count:
        limited[resource] = str(count)
    return {"requests": {**limited, "cpu": f"{spec.milli_cpus}m"}, "limits": limited}


def _volumes(spec: PodSpec, profile: ClusterProfile) -> mounts.Volumes:
    claim = {"persistentVolumeClaim": {"claimName": names.claim_name(spec.job_id, spec.rank)}}
    work = {"mountPath": WORK_DIR}, claim if profile.work_storage_class else {"emptyDir": {}}
    volumes: mounts.Volumes = {"work": work, **mpi.volumes(spec), **elastic.volumes(spec, profile)}
    if spec.large_shm:
        # It counts as the pod's memory, so a larger size would be useless.
        size = min(profile.shm_mib or spec.memory_mib // 2, spec.memory_mib)
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{size}Mi"}}
        volumes["shm"] = {"mountPath": "/dev/shm"}, memory
    for resource in sorted(spec.extra_resources):
        if resource.startswith("hugepages-"):
            medium = {"emptyDir": {"medium": resource.replace("hugepages", "HugePages", 1)}}
            volumes[resource.lower()] = {"mountPath": f"/dev/{resource}"}, medium
    return volumes | mounts.volumes_of(profile.host_paths, spec.mounts)


def _affinity(spec: PodSpec, profile: ClusterProfile) -> dict[str, Any]:
    """Return the affinity to the chosen node; without one, to the spec's node pools and not to the nodes to avoid.
    Not `nodeName`: with an affinity kube-scheduler still checks and binds the pod, which taints, device plugins and
    WaitForFirstConsumer volumes need."""
    if spec.node:
        return on_nodes([spec.node])
    avoided = [_is_node(node, "NotIn") for node in spec.avoid_nodes]
    pools = [{"matchExpressions": each} for each in profile.pool_terms(spec.node_pools)]
    # In every term, because terms are alternatives.
    return _required([{**term, "matchFields": avoided} for term in pools or [{}]] if avoided else pools)


def on_nodes(nodes: Iterable[str]) -> dict[str, Any]:
    """Return the affinity of a pod that may run only on these nodes; {} for none given, which allows any."""
    return _required([{"matchFields": [_is_node(node, "In")]} for node in nodes])


def _is_node(node: str, operator: str) -> dict[str, Any]:
    # A match field accepts only one value.
    return {"key": "metadata.name", "operator": operator, "values": [node]}


def _required(terms: list[dict[str, Any]]) -> dict[str, Any]:
    kind = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {kind: {"nodeSelectorTerms": terms}}} if terms else {}


def _tolerations(spec: PodSpec, profile: ClusterProfile, node: NodeReport | None) -> list[dict[str, str]]:
    """Return the profile's tolerations, and those of spot taints if the pod may run in a spot pool."""
    # Without a node the cluster's scheduler may choose any of these pools.
    pools = [node.pool] if node else list(spec.node_pools) or ["*"]
    has_spot = any(profile.has_spot(pool) for pool in pools) and (node is not None or spec.is_preemptible)
    spot = [{"key": key, "operator": "Exists"} for key in SPOT_TAINTS] if has_spot else []
    return [*(dict(toleration) for toleration in profile.tolerations), *spot]


def pod_security(profile: ClusterProfile) -> dict[str, Any]:
    """Return the security context of a pod, from the cluster's settings."""
    return without_empty(
        {
            "runAsNonRoot": True if profile.pod_security == "restricted" else None,
            "runAsUser": profile.run_as_user,
            "runAsGroup": profile.run_as_group,
            "fsGroup": profile.run_as_group,
            # Ownership of a large volume is not changed file by file at every start if its root is right already.
            "fsGroupChangePolicy": "OnRootMismatch" if profile.run_as_group else None,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    )


def container_security(profile: ClusterProfile) -> dict[str, Any]:
    """Return the security context of a container: what the standard "restricted" requires, {} for other standards."""
    # Other standards require nothing here, and images may need what this forbids.
    if profile.pod_security != "restricted":
        return {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields whose values are not "", [], {} or None; False and 0 are kept."""
    return {name: value for name, value in fields.items() if value not in ("", [], {}, None)}


def without(fields: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the fields except these keys."""
    return {name: value for name, value in fields.items() if name not in keys}
