"""Render KAI Scheduler's objects from ours, and translate its status into our reports. No I/O.

There is a `Queue` per project and department under a root of ours, so that other owners' queues keep their shares.
We create the `PodGroup` of each attempt: its pods name it and have an annotation that disables KAI's own grouper.
Units are KAI's: GPUs in devices (0.5 is half a device), CPUs in millicores, memory in 10^6 bytes. -1 means
unlimited; an absent limit would mean that nothing is allowed, so all nine numbers are always written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.clusters import quantities
from controlplane.engines import base
from controlplane.engines.base import DepartmentReport, PodReport, PodSpec, ProjectReport, Verdict
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.manifests import without
from controlplane.engines.kubernetes.reports import condition_of
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.names import FIELD_MANAGER, key_of
from controlplane.scheduling import reasons

SCHEDULER = "kai-scheduler"

QUEUE_LABEL = "kai.scheduler/queue"
POD_GROUP = "pod-group-name"
SKIP_GROUPER = "kai.scheduler/skip-podgrouper"
GPU_FRACTION = "gpu-fraction"
GPU_MEMORY = "gpu-memory"  # MiB
SHARED_CONFIG = "runai/shared-gpu-configmap"
# Label: pods with the same value share one device.
DEVICE_GROUP = "runai-gpu-group"

PRIORITY_CLASS = "trainyard-priority-"
UNBOUNDED = -1

# The reason of the events that KAI writes about an evicted PodGroup.
EVICTED = "Evict"
EVICTION_EVENTS = f"reason={EVICTED},involvedObject.kind=PodGroup"  # field selector
# A pod's group was created before it; if it is not listed after this time, it was deleted.
GROUP_DELAY = timedelta(seconds=30)
# The longest time between a pod's deletion and the event that names its preemptor, for which the report of its end
# waits.
EVENT_DELAY = timedelta(seconds=3)

_GANG = re.compile(r"Resources were found for (\d+) pods while (\d+) are required")
_SHORT_OF = {"resources: CPU": "cpus", "resources: memory": "memory"}


def queues(
    projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport], profile: ClusterProfile
) -> list[dict[str, Any]]:
    """Return all Queue objects of this installation, parents before children."""
    root = root_queue(profile)
    tops = [item.quota_milli_gpus for item in departments]
    tops += [item.quota_milli_gpus for item in projects if not item.department]
    # A department without a quota may use everything, so the root must be unlimited too.
    quota = None if None in tops else sum(milli_gpus or 0 for milli_gpus in tops)
    # With a weight of 0, no queue below the root would ever get idle GPUs.
    whole = DepartmentReport("", quota, None, max(quota or 0, 1000))
    found = [_queue(root, "", whole, profile)]
    found += [_queue(department_queue(item.name, profile), root, item, profile) for item in departments]
    for item in projects:
        parent = department_queue(item.department, profile) if item.department else root
        # No other installation has a namespace of this name.
        found.append(_queue(profile.namespace_of(item.name), parent, item, profile))
    return found


def root_queue(profile: ClusterProfile) -> str:
    """Return the name of the queue above all of ours. No namespace of ours can have this name."""
    return profile.namespace_prefix.rstrip("-.")


def department_queue(department: str, profile: ClusterProfile) -> str:
    """Return the name of a department's queue. Its dot distinguishes it from the name of any project's queue."""
    return f"{root_queue(profile)}.{department}"


def _queue(
    name: str, parent: str, item: ProjectReport | DepartmentReport, profile: ClusterProfile
) -> dict[str, Any]:
    # CPUs and memory are not divided between projects, as is the case without KAI.
    free = {"quota": UNBOUNDED, "overQuotaWeight": 1, "limit": UNBOUNDED}
    gpu = {
        "quota": _devices(item.quota_milli_gpus),
        "overQuotaWeight": _devices(item.weight_milli),
        "limit": _devices(item.limit_milli_gpus),
    }
    spec = {
        "displayName": name,
        "priority": item.priority,
        "resources": {"gpu": gpu, "cpu": free, "memory": free},
        **({"parentQueue": parent} if parent else {}),
    }
    return names.manifest("Queue", {"name": name, "labels": names.labels(profile.installation)}, spec=spec)


def _devices(milli_gpus: int | None) -> float:
    """Return milli-GPUs as devices, UNBOUNDED for None. Whole numbers are ints, as the API server returns them."""
    if milli_gpus is None:
        return UNBOUNDED
    return milli_gpus // 1000 if milli_gpus % 1000 == 0 else milli_gpus / 1000


def priority_class(priority: int) -> dict[str, Any]:
    """Return the PriorityClass of jobs with this priority, from whose value KAI takes their order in a queue."""
    return names.manifest(
        "PriorityClass",
        {"name": f"{PRIORITY_CLASS}{priority}", "labels": {names.MANAGED_BY: FIELD_MANAGER}},
        value=priority,
        globalDefault=False,
        preemptionPolicy="PreemptLowerPriority",
        description="Order of Trainyard's jobs inside a KAI queue.",
    )


def beside(spec: PodSpec, owner: Mapping[str, Any], profile: ClusterProfile) -> tuple[dict[str, Any], ...]:
    """Return the objects that must exist before the pod. `owner`: their ownerReference.

    For a share these include the empty config maps into which KAI's binder writes the device. Without them the binder
    creates them and reads them at once from a cache that may not contain them yet; then the bind fails, and the next
    share is placed on a device of its own. The binder adopts only objects equal to its own, labels included, so these
    have no labels. After a bind that failed for another reason it deletes them and creates its own.
    """
    metadata = {"namespace": profile.namespace_of(spec.project), "ownerReferences": [dict(owner)]}
    # With index 0, because the main container of a pod is the first.
    maps = (f"{_share_config(spec)}-0", f"{_share_config(spec)}-0-evar") if is_share(spec) else ()
    made = (names.manifest("ConfigMap", {"name": name, **metadata}) for name in maps)
    return priority_class(spec.priority), pod_group(spec, owner, profile), *made


def pod_group(spec: PodSpec, owner: Mapping[str, Any], profile: ClusterProfile) -> dict[str, Any]:
    """Return the PodGroup of the pod's attempt, the same for all its pods. `owner`: its ownerReference."""
    queue = profile.namespace_of(spec.project)
    wanted: dict[str, Any] = {
        "queue": queue,
        "minMember": spec.min_pods,
        # KAI takes a priority only from a PriorityClass, so every priority in use has one.
        "priorityClassName": f"{PRIORITY_CLASS}{spec.priority}",
        # Written explicitly, because KAI would derive it from the priority's value.
        "preemptibility": "preemptible" if spec.is_preemptible else "non-preemptible",
    }
    if profile.topology:
        wanted["topologyConstraint"] = dict(profile.topology)
    labels = {**names.labels_of(spec, profile.installation), QUEUE_LABEL: queue}
    metadata = profile.metadata(names.anchor_name(spec.job_id, spec.attempt), spec.project, labels)
    return names.manifest("PodGroup", {**metadata, "ownerReferences": [dict(owner)]}, spec=wanted)


def dress(pod: Mapping[str, Any], spec: PodSpec, profile: ClusterProfile) -> dict[str, Any]:
    """Return the pod in the form that KAI requires: its scheduler, queue and group, and a share of a device as
    annotations. The annotation of the devices held is removed until the pod is placed."""
    metadata = pod["metadata"]
    labels = {**metadata.get("labels", {}), QUEUE_LABEL: profile.namespace_of(spec.project)}
    annotations = {
        **without(metadata.get("annotations", {}), names.DEVICES),
        # The group has the name of the anchor, which can be derived from each pod of the attempt.
        POD_GROUP: names.anchor_name(spec.job_id, spec.attempt),
        SKIP_GROUPER: "true",
    }
    body = {**pod["spec"], "schedulerName": profile.scheduler_name or SCHEDULER}
    if is_share(spec):
        device = spec.devices[0]
        fraction = {GPU_FRACTION: f"{device.milli_gpus / 1000:g}"} if device.milli_gpus else {}
        annotations |= fraction or {GPU_MEMORY: str(device.memory_mib)}
        # Of `beside`: KAI's webhook would choose a random name but keeps ours, and where no webhook runs the binder
        # requires one.
        annotations[SHARED_CONFIG] = _share_config(spec)
        # The resource request would add a whole device.
        (main,) = body["containers"]
        amounts = {kind: without(main["resources"][kind], profile.gpu_resource) for kind in main["resources"]}
        body["containers"] = [{**main, "resources": amounts}]
    return {**pod, "metadata": {**metadata, "labels": labels, "annotations": annotations}, "spec": body}


def is_share(spec: PodSpec) -> bool:
    """Return whether the pod requests less than one whole device."""
    return any(device.milli_gpus < 1000 for device in spec.devices)


def _share_config(spec: PodSpec) -> str:
    return f"{spec.job_id}-{spec.attempt}-{spec.rank}"


def group_key(pod: Mapping[str, Any]) -> str:
    metadata = pod["metadata"]
    return key_of(metadata["namespace"], (metadata.get("annotations") or {}).get(POD_GROUP, ""))


def verdict(group: Mapping[str, Any], profile: ClusterProfile) -> Verdict | None:
    """Return why KAI does not place an attempt, from its PodGroup; None if KAI has not reported a reason."""
    conditions = (group.get("status") or {}).get("schedulingConditions") or ()
    # The newest condition is the last, so look from the end.
    condition = next((item for item in reversed(conditions) if item.get("status", "True") == "True"), None)
    if condition is None:
        return None
    # A long bound, because the whole message is parsed.
    words = line(condition.get("message", ""), 4000)
    explained = condition.get("reasons") or ()
    for item in explained:
        if (known := _CODES.get(item.get("reason", ""))) is not None:
            code, bound = known
            numbers = _numbers(bound, (item.get("details") or {}).get("queueDetails"), profile)
            return Verdict(code, line(item.get("message", words)), numbers)
    return _from_words(words)


_QUOTA, _LIMIT = "quota_milli_gpus", "limit_milli_gpus"
# KAI's reason: ours, and the bound that caused the refusal.
_CODES = {
    "NonPreemptibleOverQuota": (reasons.INTERACTIVE_OVER_QUOTA, _QUOTA),
    "OverLimit": (reasons.OVER_GPU_LIMIT, _LIMIT),
    "QueueDoesNotExist": (reasons.PROJECT_MISSING, ""),
}


def _numbers(bound: str, queue: Mapping[str, Any] | None, profile: ClusterProfile) -> dict[str, Any]:
    """Return the numbers that KAI compared, by our names; {} without `queue`, KAI's report of them. KAI reports 0 for
    an absent bound, so a bound of 0 is kept only if it is `bound`, which caused the refusal."""
    if queue is None:
        return {}
    fields = {
        _QUOTA: "queueDeservedResources",
        "allocated_milli_gpus": "queueAllocatedResources",
        "non_preemptible_milli_gpus": "queueAllocatedNonPreemptibleResources",
        _LIMIT: "queueResourceLimits",
        "request_milli_gpus": "podGroupRequestedResources",
    }
    amounts = {ours: (queue.get(theirs) or {}).get(profile.gpu_resource) for ours, theirs in fields.items()}
    numbers = {name: quantities.milli(amount) for name, amount in amounts.items() if amount is not None}
    absent = {name for name in (_QUOTA, _LIMIT) if name != bound and not numbers.get(name)}
    return {"queue": queue.get("name", ""), **without(numbers, *absent)}


def _from_words(words: str) -> Verdict:
    gang = _GANG.search(words)
    if gang is not None and int(gang[1]) > 0:
        numbers = {"pods": int(gang[2]), "pods_that_fit": int(gang[1])}
        return Verdict(reasons.GANG_DOES_NOT_FIT, words, numbers)
    short_of = [resource for text, resource in _SHORT_OF.items() if text in words]
    # With GPUs or GPU memory short, the code says enough.
    short = {"resource": short_of[0]} if short_of and "resources: GPU" not in words else {}
    return Verdict(reasons.CLUSTER_FULL, words, short)


TAKEN = "The cluster's scheduler gave its resources to other work."


def eviction(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (key of the preempted PodGroup, for whom) from an event; None for any other event. For whom: the id of
    our job that gets the capacity, `namespace/name` of another owner's pod group, or "" if the pods are only moved.
    KAI's message is dropped, because it names pods of other projects."""
    about = event.get("involvedObject") or {}
    if event.get("reason") != EVICTED or about.get("kind") != "PodGroup":
        return None
    noted = event["metadata"].get("annotations") or {}
    return key_of(about.get("namespace", ""), about.get("name", "")), line(_taker(noted))


def _taker(noted: Mapping[str, str]) -> str:
    group = noted.get("evictor-pod-group-name", "")
    if not group or noted.get("evictor-action-type", "").lower() == "consolidation":
        return ""
    parts = base.parts_of(f"{group}-0")
    # The ids of our jobs are UUIDs.
    if parts is not None and len(parts[0]) == 36:
        return parts[0]
    return f"{noted.get('evictor-pod-group-namespace', '')}/{group}"


def without_group(report: PodReport, pod: Mapping[str, Any], now: datetime) -> PodReport:
    """Return the report of a pod whose PodGroup is not in the cluster. If the pod waits for a node and is older than
    GROUP_DELAY, it is reported as failed (UNSCHEDULABLE), so that it is created again with a group; else the report is
    unchanged."""
    made_at = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    if report.node or report.state != base.STARTING or now - made_at < GROUP_DELAY:
        return report
    words = "Its pod group was removed from the cluster: KAI will not place it."
    return replace(report, state=base.FAILED, reason=base.UNSCHEDULABLE, message=words)


def with_answers(
    report: PodReport, pod: Mapping[str, Any], said: Verdict | None, taken_by: str | None, now: datetime
) -> PodReport:
    """Return the report with KAI's status added: the group of its shared device, why it waits (`said`), and who
    preempted it (`taken_by`, see `eviction`; None if no eviction was reported)."""
    shared = (pod["metadata"].get("labels") or {}).get(DEVICE_GROUP, "")
    report = replace(report, device_group=shared)
    if not report.node and report.state == base.STARTING:
        bound = condition_of(pod, "PodBound")
        # Binding it to the node that KAI chose failed.
        if said is None and bound.get("status") == "False":
            said = Verdict(reasons.CLUSTER_FULL, line(bound.get("message", "")))
        return replace(report, verdict=said)
    if report.reason in (base.POD_DELETED, base.EVICTED, base.KILLED):
        return _given_way(report, pod, taken_by, now)
    return report


def _given_way(report: PodReport, pod: Mapping[str, Any], taken_by: str | None, now: datetime) -> PodReport:
    """Return the report of a deleted pod, as preempted if KAI's event about it has arrived. Until EVENT_DELAY after
    the deletion, in which the event may still arrive, the pod is reported as running."""
    deleted_at = pod["metadata"].get("deletionTimestamp")
    if taken_by is not None and deleted_at:
        return replace(report, reason=base.PREEMPTED, message=TAKEN, taken_by=taken_by)
    is_young = deleted_at is not None and now - datetime.fromisoformat(deleted_at) < EVENT_DELAY
    if is_young and report.state == base.FAILED and report.reason == base.POD_DELETED:
        return replace(report, state=base.RUNNING, is_proven_gone=False, exit_code=None, finished_at=None)
    return report
