"""All reasons why a job is queued, was started or was requeued: the code, label, colour and sentence of each, for the
API, the CLI and the pages.

The order of QUEUED_REASONS is their precedence: the first reason that applies is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controlplane.clusters import quantities

PROJECT_MISSING = "project_missing"
SPEC_IMPOSSIBLE = "spec_impossible"
NO_SUCH_NODE_POOL = "no_such_node_pool"
OVER_GPU_LIMIT = "over_gpu_limit"
INTERACTIVE_OVER_QUOTA = "interactive_over_quota"
WAITING_FOR_DATA = "waiting_for_data"
DATASET_GONE = "dataset_gone"
VOLUME_FAILED = "volume_failed"
WAITING_FOR_VOLUME = "waiting_for_volume"
PREEMPTED = "preempted"
WAITING_FOR_RECLAIM = "waiting_for_reclaim"
GANG_DOES_NOT_FIT = "gang_does_not_fit"
FRAGMENTED = "fragmented"
OVER_FAIR_SHARE = "over_fair_share"
CLUSTER_FULL = "cluster_full"
RESERVED_FOR_OLDER_GANG = "reserved_for_older_gang"
BACKING_OFF = "backing_off"
ENGINE_UNREACHABLE = "engine_unreachable"
CLUSTER_REFUSES = "cluster_refuses"
JUST_SUBMITTED = "just_submitted"

STARTED_IN_QUOTA = "started_in_quota"
STARTED_OVER_QUOTA = "started_over_quota"

WHOLE_GPU = 1000

# The outcome of an attempt that ended through no fault of the job.
DISRUPTED = "disrupted"

Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. `sentence` makes its text from the details. `colour`: `error` needs a user's action, `waiting`
    resolves by itself, `info` is progress."""

    code: str
    label: str
    colour: str
    sentence: Callable[[Details], str]


def describe(code: str, details: Details | None = None) -> str:
    """Return the sentence of a reason: what happened, then the next step. Raise KeyError for an unknown code."""
    return REASONS[code].sentence(details or {})


def words_for(code: str, message: str) -> str:
    """Return an engine's own message as a sentence, without one the sentence of the code; "" if the code is unknown
    too."""
    if not message:
        return describe(code) if code in REASONS else ""
    return message if message.endswith((".", "!", "?")) else f"{message}."


def gpus(milli_gpus: int) -> str:
    """Format milli-GPUs as GPUs: 2000 is "2", 500 is "0.5"."""
    return f"{milli_gpus / 1000:g}"


def count_gpus(milli_gpus: int) -> str:
    """Format milli-GPUs as a count with its noun: "1 GPU", "0.5 GPUs", "4 GPUs"."""
    return f"{gpus(milli_gpus)} GPU{'' if milli_gpus == 1000 else 's'}"


def _milli(details: Details, key: str) -> str:
    return count_gpus(int(details.get(key, 0)))


def _number(details: Details, key: str) -> str:
    return gpus(int(details.get(key) or 0))


def _project(details: Details) -> str:
    return str(details.get("project", "its project"))


def _project_missing(details: Details) -> str:
    return f"Project {_project(details)} does not exist here. Create it, or submit to another project."


_OURS = ("gpus", "gpu_memory", "gpu_share", "cpus", "memory", "pods")


def _spec_impossible(details: Details) -> str:
    resource, largest = details.get("resource", "gpus"), int(details.get("largest", 0))
    pools = details.get("node_pools") or ()
    where = f"node pool {', '.join(pools)}" if pools else "this cluster"
    if resource == "gpu_share":
        return _share_impossible(where, largest)
    asked = _amount(resource, int(details.get("asked", 0)))
    if resource == "pods":
        return f"Its {asked} do not fit together on {where}, even when it is empty. At most {largest} do."
    rest = " together with the other resources that it requests" if details.get("together") else ""
    if resource not in _OURS and not largest and not rest:
        allow = "If one has it, an admin may allow it by the cluster's setting extra_resources."
        return f"No node of {where} gives jobs {resource}. {allow}"
    return f"No node of {where} has {asked}{rest}. The largest that fits is {_amount(resource, largest)}."


def _share_impossible(where: str, largest: int) -> str:
    if largest:
        return f"A pod gets at most {gpus(largest)} of a GPU on {where}, which shares in fixed parts. Ask for that."
    return (
        f"No node of {where} shares its GPUs. Ask for a whole one, or have an admin enable time-slicing or MPS in "
        "the device plugin."
    )


def _amount(resource: str, number: int) -> str:
    if resource == "gpus":
        return count_gpus(number)
    if resource == "cpus":
        return f"{number / 1000:g} CPUs"
    units = {"gpu_memory": "MiB of GPU memory", "memory": "MiB of memory", "pods": "workers"}
    return quantities.in_words(units.get(resource, resource), number)


def _no_such_node_pool(details: Details) -> str:
    pool = details.get("node_pool", "asked for")
    if details.get("allowed"):
        return (
            f"{_project(details)} may not use node pool {pool}; it may use {', '.join(details['allowed'])}."
        )
    known = f" Existing pools: {', '.join(details['existing'])}." if details.get("existing") else ""
    return f"Node pool {pool} does not exist on this cluster.{known}"


def _over_gpu_limit(details: Details) -> str:
    return (
        f"{_project(details)} holds {_milli(details, 'allocated_milli_gpus')} and may hold at most "
        f"{_number(details, 'limit_milli_gpus')}; this job asks for "
        f"{_number(details, 'request_milli_gpus')}. "
        "Wait for one of its jobs to end, or raise the limit."
    )


def _interactive_over_quota(details: Details) -> str:
    return (
        f"Jobs that cannot be preempted stay inside the quota: {_project(details)} has "
        f"{_milli(details, 'quota_milli_gpus')}, {_number(details, 'non_preemptible_milli_gpus')} of them "
        f"in use by such jobs, and this job asks for {_number(details, 'request_milli_gpus')}. "
        "Stop one, raise the quota, or submit a preemptible job."
    )


def _waiting_for_data(details: Details) -> str:
    dataset, percent, left = (details.get(name) for name in ("dataset", "percent", "eta_seconds"))
    if details.get("data_state") == "failed":
        return f"Its dataset {dataset} could not be brought to the cluster: {details.get('message')} It is tried again."
    where = details.get("fill_at")
    to = "the cluster" if where is None else f"{where}, where it has room"
    if dataset is None or percent is None:
        what = f"Its dataset {dataset} is" if dataset else "Its datasets are"
        return f"{what} still to be brought to {to}. It starts when the files are there."
    if trouble := details.get("message"):
        return (
            f"Its dataset {dataset} is brought to {to} when this has ended: {trouble} {percent} % are there."
        )
    when = "It starts then" if left is None else f"About {_duration(int(left))} left; it starts then"
    return f"Its dataset {dataset} is being brought to {to}: {percent} % are there. {when}."


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _waiting_for_volume(details: Details) -> str:
    volume = details.get("volume", "it mounts")
    if "held_by" in details:
        share = "to share the volume, change its access mode to ReadWriteMany."
        if "is_claim" in details:
            clone = f"yard volume clone {volume} NEW --access-mode ReadWriteMany"
            share = f"to share its files, clone it for many jobs and submit with the clone: {clone}"
        return (
            f"The volume {volume} is for one job at a time, and job {details['held_by']} has it. It starts when that"
            f" job has ended; {share}"
        )
    if "snapshot_for" in details:
        return (
            f"The volume {volume} is for one job at a time, and its snapshot for job {details['snapshot_for']} is not"
            " taken yet. It starts when that is ready, has failed or is deleted."
        )
    if "driver" in details:
        return (
            f"The volume {volume} is of the storage class {details['storage_class']}, whose driver {details['driver']}"
            " this release does not have. It starts when an admin installs a release that has it; to run it without"
            " the volume, stop it and submit it again."
        )
    state = f", it is {details['volume_state']}" if details.get("volume_state") else ""
    return f"The volume {volume} is not ready yet{state}. It starts when the volume is."


def _preempted(details: Details) -> str:
    if details.get("kind") == "move":
        return f"The cluster's scheduler moved it to make room. {_comes_back(details)}"
    return f"Its room went to {_beneficiary(details)}. {_comes_back(details)}"


def _beneficiary(details: Details) -> str:
    """Return the phrase for the job that got the capacity. Without its name in the details, because the reader may
    not see it, the phrase names its project."""
    name, project = details.get("by_name") or details.get("by_job"), details.get("by_project")
    if details.get("kind") == "preempt":
        return f"job {name} of higher priority in the same project" if name else "a job of higher priority"
    if details.get("kind") == "ageing":
        return (
            f"job {name}, which had waited for very long" if name else "a job that had waited for very long"
        )
    if name:
        return f"job {name} of {project}, which reclaimed it" if project else f"job {name}"
    return f"project {project}, which reclaimed it" if project else "other work"


def _comes_back(details: Details) -> str:
    """Return the sentence on when a preempted job restarts. It does not say GPUs, because CPUs or memory may be short
    instead."""
    short = details.get("resource")
    when = f"a node has enough {short} free" if short else "there is room again"
    place = "is in the queue again" if details.get("is_requeued_later") else "keeps its place in the queue"
    return f"It {place} and restarts when {when}."


def _waiting_for_reclaim(details: Details) -> str:
    jobs = details.get("stopping") or ()
    # Set by the loop, which has the jobs whose programs can shrink while they run.
    shrinking = sum(isinstance(job, Mapping) and bool(job.get("is_shrinking")) for job in jobs)
    ways = [("stopping", len(jobs) - shrinking), ("shrinking", shrinking)]
    words = [f"{way} {number} job{'' if number == 1 else 's'}" for way, number in ways if number]
    by = f" by {' and '.join(words)}" if words else ""
    verb = "is" if details.get("request_milli_gpus") == 1000 else "are"
    return f"{_milli(details, 'request_milli_gpus')} {verb} being freed for it{by}. It starts right after."


def _gang_does_not_fit(details: Details) -> str:
    gang = "At least" if "most_pods" in details else "All"
    # A cluster's own scheduler does not report how many GPUs are free, so the text must do without.
    free = f" ({_milli(details, 'free_milli_gpus')} free)" if "free_milli_gpus" in details else ""
    return (
        f"{gang} {details.get('pods', 0)} workers must start together, and only "
        f"{details.get('pods_that_fit', 0)} fit now{free}. It waits for the rest, or ask for fewer workers."
    )


def _fragmented(details: Details) -> str:
    return (
        f"Room for {_milli(details, 'free_milli_gpus')} is free, but no single node has the "
        f"{_number(details, 'request_milli_gpus')} that it needs. "
        f"Ask for {_number(details, 'largest_free_milli_gpus')} to start now, or wait."
    )


_NOTHING_READY = "No GPU of this cluster is ready. It starts when a node is."


def _over_fair_share(details: Details) -> str:
    if not details.get("total_milli_gpus"):
        return _NOTHING_READY
    head = _room_left(details)
    is_at_share = details.get("allocated_milli_gpus") == details.get("fair_share_milli_gpus")
    standing = "is at" if is_at_share else "would pass"
    share = _number(details, "fair_share_milli_gpus")
    used = details.get("used_percent")
    past = f" Past use counts: {used} % of the GPUs." if used else ""
    return f"{head} and {_project(details)} {standing} its fair share ({share}).{past}"


def _cluster_full(details: Details) -> str:
    if short := details.get("resource"):
        # The end of other jobs would not help.
        if details.get("is_shut_out"):
            return (
                f"No node that takes pods has as much {short} as it needs; others are cordoned or not ready. "
                "It waits for one of those, or ask for less."
            )
        rest = " together with the other resources that it requests" if details.get("together") else " for it"
        return f"No node has enough {short} free{rest}. It waits for a job to end, or ask for less."
    if not details.get("total_milli_gpus"):
        return _NOTHING_READY
    return f"{_room_left(details)} and no job may be preempted for it. It waits for a job to end."


def _room_left(details: Details) -> str:
    free, total = int(details.get("free_milli_gpus", 0)), int(details.get("total_milli_gpus", 0))
    withheld = int(details.get("withheld_milli_gpus", 0))
    aside = f" ({gpus(withheld)} more on cordoned or unready nodes)" if withheld > 0 else ""
    if not free:
        return f"All {count_gpus(total)} are in use{aside}"
    return f"Only {gpus(free)} of {count_gpus(total)} {'is' if free == 1000 else 'are'} free{aside}"


def _reserved(details: Details) -> str:
    name, project = (
        details.get("reserved_for_name") or details.get("reserved_for"),
        details.get("reserved_for_project"),
    )
    keeper = f"job {name}" if name else f"a job of {project}" if project else "another job"
    at = details.get("reserved_at")
    if at is None:
        return f"The free GPUs are reserved for {keeper}, which is first in the queue."
    when = f"{datetime.fromtimestamp(at, UTC):%d %b %H:%M} UTC"
    return f"The free GPUs are reserved for {keeper}, expected to start by {when}; this job may run longer than that."


def _backing_off(details: Details) -> str:
    # An absolute time, because a reason with the seconds left would change, and be written, every second.
    at = details.get("not_before")
    when = f"at {datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC" if at is not None else "soon"
    if details.get("disruption"):
        return f"{details['disruption']} It starts again {when}."
    return f"Its last attempt failed. It is retried {when}."


def _engine_unreachable(details: Details) -> str:
    return "The cluster does not answer. Running jobs go on; this one starts when the cluster is back."


def _cluster_refuses(details: Details) -> str:
    words = words_for("", str(details.get("cluster_says", "")))
    return f"The cluster refuses its pods at present{': ' if words else '.'}{words}"


def _just_submitted(details: Details) -> str:
    return "Submitted; the scheduler considers it within a second."


def _started_in_quota(details: Details) -> str:
    if details.get("request_milli_gpus") == 0:
        return f"Started{_size(details)}; it asks for no GPU.{_placed_by_data(details)}"
    quota = _number(details, "quota_milli_gpus")
    return f"Started{_size(details)} inside the quota of {_project(details)} ({quota}).{_placed_by_data(details)}"


def _started_over_quota(details: Details) -> str:
    above = f"on idle GPUs above the quota of {_project(details)}; others may reclaim them."
    return f"Started{_size(details)} {above}{_placed_by_data(details)}"


def _placed_by_data(details: Details) -> str:
    places = details.get("data_at")
    data = details.get("dataset") or "its data"
    return f" Placed where {data} is cached: {', '.join(places)}." if places else ""


def _size(details: Details) -> str:
    """Return the part of a sentence that gives the number of workers of an elastic job and the most that it can have;
    "" for any other job."""
    return f" with {details['pods']} of {details['most_pods']} workers" if "most_pods" in details else ""


def _said(sentence: str) -> Callable[[Details], str]:
    return lambda details: sentence


def _table(*rows: tuple[str, str, str, Callable[[Details], str]]) -> dict[str, Reason]:
    return {code: Reason(code, label, colour, sentence) for code, label, colour, sentence in rows}


QUEUED_REASONS = _table(
    (PROJECT_MISSING, "Project missing", "error", _project_missing),
    (SPEC_IMPOSSIBLE, "Can never fit", "error", _spec_impossible),
    (NO_SUCH_NODE_POOL, "No such node pool", "error", _no_such_node_pool),
    (OVER_GPU_LIMIT, "Over GPU limit", "error", _over_gpu_limit),
    (INTERACTIVE_OVER_QUOTA, "Over quota", "error", _interactive_over_quota),
    (WAITING_FOR_DATA, "Waiting for data", "info", _waiting_for_data),
    (WAITING_FOR_VOLUME, "Waiting for volume", "info", _waiting_for_volume),
    (PREEMPTED, "Preempted", "waiting", _preempted),
    (WAITING_FOR_RECLAIM, "GPUs on their way", "info", _waiting_for_reclaim),
    (GANG_DOES_NOT_FIT, "Gang does not fit", "waiting", _gang_does_not_fit),
    (FRAGMENTED, "Fragmented", "waiting", _fragmented),
    (OVER_FAIR_SHARE, "Over fair share", "waiting", _over_fair_share),
    (CLUSTER_FULL, "Cluster full", "waiting", _cluster_full),
    (RESERVED_FOR_OLDER_GANG, "Reserved", "waiting", _reserved),
    (BACKING_OFF, "Backing off", "waiting", _backing_off),
    (ENGINE_UNREACHABLE, "Cluster unreachable", "error", _engine_unreachable),
    (CLUSTER_REFUSES, "Refused for now", "error", _cluster_refuses),
    (JUST_SUBMITTED, "Just submitted", "info", _just_submitted),
)
"""The reasons why a job is queued, the most specific first: the dictionary's order is the precedence."""

POD_REASONS = _table(
    ("waiting_for_node", "Waiting for node", "info", _said("The cluster has not placed it on its node yet.")),
    ("pod_unreadable", "Pod unreadable", "error", _said("The cluster's report of its pod cannot be read.")),
    ("pulling_image", "Pulling image", "info", _said("Its node is pulling the image.")),
    ("node_lost", "Node lost", "error", _said("Its node was lost.")),
    ("no_such_node", "No such node", "error", _said("Its node was removed before it could start there.")),
    ("no_such_device", "No such GPU", "error", _said("Its GPU was removed before it could start there.")),
    ("unschedulable", "Unschedulable", "error", _said("The cluster could not bind it to the chosen node.")),
    ("evicted", "Evicted", "error", _said("The cluster evicted it from its node.")),
    ("pod_deleted", "Pod deleted", "error", _said("Its pod was deleted in the cluster, not by Trainyard.")),
    ("pod_lost", "Pod lost", "error", _said("Its pod no longer exists.")),
    ("out_of_memory", "Out of memory", "error", _said("It used more memory than its limit.")),
    (
        "image_pull_failed",
        "No image",
        "error",
        _said("Its image could not be pulled; check its name and pull secrets."),
    ),
    ("not_mounted", "Not mounted", "error", _said("A volume or dataset that it mounts is not there.")),
    ("container_not_created", "No container", "error", _said("Its container could not be created.")),
    ("quota_refused", "Quota refused", "error", _said("A ResourceQuota of the cluster has no room for it.")),
    (
        "admission_refused",
        "Not admitted",
        "error",
        _said("An admission policy of the cluster refused its pod."),
    ),
    (
        "namespace_not_ours",
        "Namespace taken",
        "error",
        _said("Its namespace in the cluster is not Trainyard's."),
    ),
    (
        "not_permitted",
        "Not permitted",
        "error",
        _said("Trainyard's account in the cluster may not start it."),
    ),
    (
        "name_taken",
        "Name taken",
        "error",
        _said("The cluster has an object of its name that is not Trainyard's."),
    ),
    (
        "waiting_for_operator",
        "Waiting for operator",
        "error",
        _said("The MPI operator has not created its pod; check that the operator runs."),
    ),
    (
        "credentials_refused",
        "Credentials refused",
        "error",
        _said("The cluster does not accept Trainyard's credentials."),
    ),
    (
        "definition_missing",
        "Definition missing",
        "error",
        _said("The cluster lacks a resource definition (CRD) that it needs."),
    ),
    (
        "cluster_failed",
        "Cluster failed",
        "error",
        _said("The cluster failed repeatedly to start it."),
    ),
    ("cannot_share", "Cannot share", "error", _said("Its node offers whole GPUs only.")),
)
"""Reasons that a cluster reports for a pod (codes of controlplane.engines.base). The cluster's own message, if any,
is shown instead of the sentence."""

REASONS = {
    **QUEUED_REASONS,
    **POD_REASONS,
    **_table(
        (
            DATASET_GONE,
            "Dataset gone",
            "error",
            _said("A dataset that it mounts was deleted or is no longer shared."),
        ),
        (
            VOLUME_FAILED,
            "Volume failed",
            "error",
            _said("A volume that it mounts could not be created, or was deleted."),
        ),
    ),
    **_table(
        (STARTED_IN_QUOTA, "Started", "info", _started_in_quota),
        (STARTED_OVER_QUOTA, "Started over quota", "info", _started_over_quota),
    ),
}
