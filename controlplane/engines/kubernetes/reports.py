"""Build a pod's report from the pod object of the API server. No I/O; the cluster's own words stay in the
message.

A pod is proven gone when the kubelet says that its containers have ended (or never began), when it was never
bound to a node and no longer can be, or when its node is gone or declared dead. A node that only stops
responding frees nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, PodReport
from controlplane.engines.kubernetes import code_delivery, mpi, names
from controlplane.engines.kubernetes.dcgm import Holding
from controlplane.engines.kubernetes.manifests import read_devices
from controlplane.engines.kubernetes.pod_scripts import START_ERRORS
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.names import RawView as Raw

# How many seconds a pod may wait for the following before it counts as failed.
# For the first report of the cluster's scheduler.
SILENT_SECONDS = 3
# For its binding to the node that we chose, whose capacity was free by our data.
BIND_SECONDS = 60
# For a volume that must be provisioned and bound before the pod is.
VOLUME_SECONDS = 300
# For an image whose pull fails, since registries have short outages.
PULL_SECONDS = 300
# For an image that the registry reports as missing or forbidden.
REFUSED_PULL_SECONDS = 30
# For a container that cannot be created, for example because of a missing secret.
CREATE_SECONDS = 120
# For a volume that is still attached to a lost node; Kubernetes detaches it after six minutes.
MOUNT_SECONDS = 900
# For its node to appear in our cache, because it may be new.
NODE_GONE_SECONDS = 60

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
SILENT_NODE_TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
TERMINAL = ("Succeeded", "Failed")

_PULL_ERRORS = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
)  # fmt: skip
_PULL_REFUSED = re.compile(
    r"not found|manifest unknown|unauthori[sz]ed|authentication required|denied|forbidden|InvalidImageName|"
    r"ErrImageNeverPull|never pull",
    re.IGNORECASE,
)
_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*": (\w+): ')
_CREATE_ERRORS = (
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError",
    "PreStartHookError", "PostStartHookError",
)  # fmt: skip
# What the message of a failed start means; the first match counts: reason, a shell's exit code for it, our sentence.
# fmt: off
_START_FAILURES: tuple[tuple[str, str, int | None, str], ...] = (
    (r"chdir|init: mkdir|cwd", base.WORKING_DIR_MISSING, 126, "The working directory could not be entered"),
    (r"executable file not found|exec: .*: no such file or directory|stat .*: no such file",
     base.COMMAND_NOT_FOUND, 127, "There is no such program in the image. Check the command and the image"),
    (r"exec: .*permission denied|exec format error", base.COMMAND_NOT_EXECUTABLE, 126, "The program could not be run"),
    (r"", base.CONTAINER_NOT_CREATED, None, "The container could not be started"),
)
# fmt: on
_VOLUME = re.compile(r"persistentvolumeclaim|volume", re.IGNORECASE)
_STEPS = {code_delivery.CONTAINER: "Fetches its code.", mpi.WAITING: "Waits until its hosts answer."}
_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip


def pod_report(raw: Raw, node: Raw | None, now: datetime) -> PodReport:
    """Return the report of one of our pods. `node`: the pod's node, None if the cluster has none of this name; `now`:
    by the API server's clock. For a malformed pod it raises ArithmeticError, AttributeError, LookupError, TypeError or
    ValueError; then call `unreadable`."""
    container = main_status(raw).get("state") or {}
    if _phase(raw) in TERMINAL:
        # If the cluster declared it failed while its container ran, it is gone only with its node.
        is_dead = node is None or OUT_OF_SERVICE in _taints(node)
        ended = container.get("terminated") or {}
        return _ended(raw, ended, is_gone=is_dead or "running" not in container)
    if _is_gated(raw):
        return _end(raw, base.STOPPED, "Stopped before it was started.", is_gone=True)
    if not _node_name(raw):
        return _unbound(raw, now)
    if lost := _lost(raw, node, now):
        return _end(raw, base.NODE_LOST, lost, is_gone=True)
    if "terminated" in container:
        # Only sidecars are still running, such as the proxy of a service mesh.
        return _ended(raw, container["terminated"], is_gone=False)
    if "running" in container:
        reason, message = _trouble(raw, node)
        started_at = _time(container["running"].get("startedAt"))
        return _open(raw, base.RUNNING, reason, message, started_at=started_at)
    return _starting(raw, node, now)


def unreadable(raw: Raw, error: Exception) -> PodReport:
    """Return the report of a pod for which `pod_report` raised `error`. The pod may run, so its devices stay
    allocated."""
    state = base.STARTING if _phase(raw) in ("", "Pending") else base.RUNNING
    name = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
    sentence = f"The cluster shows pod {name} in a way that cannot be read"
    why = _said(sentence, type(error).__name__, error)
    words = line(f"{why} Its devices stay held until it can be, or is gone.")
    return _open(raw, state, base.POD_UNREADABLE, words)


def has_ended(raw: Raw) -> bool:
    """Return whether the pod's object alone proves that its command has ended."""
    is_over = bool(raw["metadata"].get("deletionTimestamp")) or _is_gated(raw)
    return _phase(raw) in TERMINAL or (is_over and not _node_name(raw))


def is_running(raw: Raw) -> bool:
    """Return whether the pod's object alone shows that its command runs."""
    return _phase(raw) not in TERMINAL and "running" in (main_status(raw).get("state") or {})


def holdings(pods: Iterable[Raw]) -> tuple[Holding, ...]:
    """Return those of our pods that are bound and have not ended, with the devices that they hold."""
    bound = ((raw, raw["metadata"]) for raw in pods if _node_name(raw) and not has_ended(raw))
    return tuple(
        Holding(names.pod_name(raw), (held["namespace"], held["name"]), _node_name(raw), devices_of(raw))
        for raw, held in bound
    )


def devices_of(raw: Raw) -> tuple[DeviceShare, ...]:
    """Return the devices in the annotation of one of our pods; () if it has none or it cannot be read."""
    try:
        return read_devices((raw["metadata"].get("annotations") or {}).get(names.DEVICES, ""))
    except ValueError:
        # The annotation was edited by hand; reporting no devices is better than reporting another pod's.
        return ()


def pinned_node(raw: Raw) -> str:
    """Return the node to which a pod's affinity binds it; "" if the cluster's own scheduler chooses."""
    affinity = ((raw.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _ended(raw: Raw, ended: Raw, *, is_gone: bool) -> PodReport:
    """Return the report of a pod whose command has ended, or whose container never began. `ended`: the `terminated`
    state of its container, {} without one; `is_gone`: no process of it is left."""
    code = ended.get("exitCode")
    if not (code == 0 or (code is None and _phase(raw) == "Succeeded")):
        return _end(raw, *_why(raw, ended), is_gone=is_gone, ended=ended)
    success = base.COMPLETED, "The command ended with exit code 0."
    why = (base.STOPPED, "Stopped.") if _is_stopped(raw) else success
    return _end(raw, *why, is_gone=is_gone, ended=ended, state=base.SUCCEEDED)


def _why(raw: Raw, ended: Raw) -> tuple[str, str]:
    """Return (reason, message) of an unsuccessful end. Specific causes are checked before general ones."""
    if _is_stopped(raw):
        return base.STOPPED, "Stopped." if ended else "Stopped before it was started."
    if ended.get("reason") == "OOMKilled":
        return base.OUT_OF_MEMORY, _out_of_memory(raw)
    if by_cluster := _taken_away(raw) or _rejected(raw, ended):
        return by_cluster
    if ended.get("reason") in START_ERRORS:
        words = str(ended.get("message", ""))
        found = (one for one in _START_FAILURES if re.search(one[0], words))
        return next((reason, _said(sentence, words)) for _, reason, _, sentence in found)
    if ended.get("reason") == "ContainerStatusUnknown" or (
        not ended and _status(raw).get("reason") == "NodeLost"
    ):
        return base.NODE_LOST, _said("The node lost the container", ended.get("message"))
    if _was_deleted(raw, ended):
        return base.POD_DELETED, "The pod was deleted in the cluster."
    return _exit(ended) if ended else _unprepared(raw)


def _unprepared(raw: Raw) -> tuple[str, str]:
    """Return (reason, message) of a pod that failed before its command could begin."""
    words: tuple[object, ...] = (_status(raw).get("reason"), _status(raw).get("message"))
    for status in _steps(raw):
        if without_code := code_delivery.failure(status):
            return without_code[0], line(without_code[1])
        ended = (status.get("state") or {}).get("terminated") or {}
        if code := ended.get("exitCode"):
            words = (status.get("name"), ended.get("reason"), f"exit code {code}", ended.get("message"))
            break
    return base.CONTAINER_NOT_CREATED, _said("The pod could not be prepared", *words)


def _taken_away(raw: Raw) -> tuple[str, str] | None:
    """Return (reason, message) if the cluster itself ended the pod, by its condition or the kubelet's reason; None if
    it did not."""
    status, condition = _status(raw), condition_of(raw, "DisruptionTarget")
    if condition.get("status") == "True":
        words = _said("Evicted by the cluster", condition.get("reason"), condition.get("message"))
        # The pod garbage collector deletes a bound pod only if its node is gone or out of service.
        is_lost = condition.get("reason") == "DeletionByPodGC" and bool(_node_name(raw))
        return (base.NODE_LOST if is_lost else base.EVICTED), words
    if status.get("reason") in ("Evicted", "Preempting", "Terminated", "NodeShutdown", "Shutdown"):
        return base.EVICTED, _said("Evicted by its node", status.get("reason"), status.get("message"))
    return None


def _rejected(raw: Raw, ended: Raw) -> tuple[str, str] | None:
    """Return (reason, message) if the kubelet rejected the pod, because the scheduler's data was outdated; None if it
    did not."""
    status = _status(raw)
    # NodeLost is set for a pod that ran; `_why` reports the node's loss.
    if ended or status.get("containerStatuses") or status.get("reason") in (None, "", "NodeLost"):
        return None
    return base.UNSCHEDULABLE, _said("Its node refused the pod", status["reason"], status.get("message"))


def _exit(ended: Raw) -> tuple[str, str]:
    code = int(ended["exitCode"])
    # Runtimes report an end by signal n as 128 + n, and Linux has 64 signals.
    if 128 < code <= 128 + 64:
        name = _SIGNALS.get(code - 128, f"signal {code - 128}")
        return base.KILLED, _said(f"The command was killed by {name}", ended.get("message"))
    return base.EXIT_CODE, _said(f"The command ended with exit code {code}", ended.get("message"))


def _out_of_memory(raw: Raw) -> str:
    # Not the first container, because a service mesh may have put its own before ours.
    main = _named((raw.get("spec") or {}).get("containers"), "name", names.MAIN_CONTAINER)
    limit = ((main.get("resources") or {}).get("limits") or {}).get("memory", "unknown size")
    return f"The kernel killed the command: it used more memory than its limit of {limit}. Ask for more."


def _was_deleted(raw: Raw, ended: Raw) -> bool:
    """Return whether a user of the cluster deleted the pod before it ended."""
    deleted = _time(raw["metadata"].get("deletionTimestamp"))
    if deleted is None or _stop_word(raw):
        return False
    finished = _time(ended.get("finishedAt"))
    grace = timedelta(seconds=raw["metadata"].get("deletionGracePeriodSeconds") or 0)
    # Both times are in whole seconds, so they may differ by one.
    return finished is None or finished >= deleted - grace - timedelta(seconds=1)


def _unbound(raw: Raw, now: datetime) -> PodReport:
    """Return the report of a pod without a node. One that is being deleted has ended, because the API server binds no
    such pod."""
    if raw["metadata"].get("deletionTimestamp"):
        stopped = base.STOPPED, "Stopped before it was started."
        deleted = base.POD_DELETED, "The pod was deleted before it had a node."
        return _end(raw, *(stopped if _is_stopped(raw) else deleted), is_gone=True)
    condition = condition_of(raw, "PodScheduled")
    words = str(condition.get("message", ""))
    message = _said("The cluster's scheduler has not bound it", words) if words else "Waits for its node."
    limit = VOLUME_SECONDS if _VOLUME.search(words) else BIND_SECONDS
    age = _age(raw["metadata"].get("creationTimestamp"), now)
    if not words and age <= SILENT_SECONDS:
        return _open(raw, base.STARTING)
    if words and pinned_node(raw) and age > limit:
        return _end(raw, base.UNSCHEDULABLE, _said("The cluster cannot place it", words), is_gone=False)
    return _open(raw, base.STARTING, base.WAITING_FOR_NODE, message)


def _starting(raw: Raw, node: Raw | None, now: datetime) -> PodReport:
    """Return the report of a bound pod whose command has not begun."""
    age = _bound_seconds(raw, now)
    if obstacle := _obstacle(raw):
        reason, message, limit = obstacle
        # Until then the cluster retries by itself.
        if age > limit:
            return _end(raw, reason, message, is_gone=False)
        return _open(raw, base.STARTING, reason, message)
    reason, message = _trouble(raw, node)
    if reason:
        return _open(raw, base.STARTING, reason, message)
    for step in _steps(raw):
        if step.get("name") in _STEPS and "running" in (step.get("state") or {}):
            return _open(raw, base.STARTING, message=_STEPS[step["name"]])
    prepared = condition_of(raw, "PodReadyToStartContainers").get("status")
    if prepared == "True":
        message = "The node pulls the image and creates the container."
        return _open(raw, base.STARTING, base.PULLING_IMAGE, message)
    if prepared == "False" and age > MOUNT_SECONDS:
        message = f"Its volumes or its network were not ready on {_node_name(raw)} for {int(age)} s."
        return _end(raw, base.CONTAINER_NOT_CREATED, message, is_gone=False)
    return _open(raw, base.STARTING)


def _obstacle(raw: Raw) -> tuple[str, str, int] | None:
    """Return (reason, message, how many seconds it may last) of the first container that cannot be created; init
    containers come first. None if there is none."""
    for status in (*_steps(raw), main_status(raw)):
        waiting = (status.get("state") or {}).get("waiting") or {}
        what, words = waiting.get("reason"), str(waiting.get("message", ""))
        if what in _CREATE_ERRORS:
            message = _said("The container cannot be created", what, words)
            return base.CONTAINER_NOT_CREATED, message, CREATE_SECONDS
        if what in _PULL_ERRORS:
            # The original error during the kubelet's back-off too, so that the message does not change.
            if waits := _BACK_OFF.match(words):
                what, words = waits[1], words[waits.end() :]
            limit = REFUSED_PULL_SECONDS if _PULL_REFUSED.search(f"{what} {words}") else PULL_SECONDS
            return base.IMAGE_PULL_FAILED, _said("The image cannot be pulled", what, words), limit
    return None


def _lost(raw: Raw, node: Raw | None, now: datetime) -> str:
    """Return why a bound pod is certainly dead: its node is gone or out of service. "" if it may still run."""
    name = _node_name(raw)
    # Pods and nodes arrive by two watches, and that of the nodes may be behind.
    if node is None and _bound_seconds(raw, now) > NODE_GONE_SECONDS:
        return f"Its node {name} was removed from the cluster."
    if OUT_OF_SERVICE in _taints(node):
        return f"Its node {name} was declared dead: it carries the taint {OUT_OF_SERVICE}."
    return ""


def _trouble(raw: Raw, node: Raw | None) -> tuple[str, str]:
    """Return (reason, message) of what may end a pod that has not ended; ("", "") if nothing does."""
    if not _taints(node).isdisjoint(SILENT_NODE_TAINTS):
        return base.NODE_LOST, (
            f"Its node {_node_name(raw)} does not answer. The pod keeps its devices until the node is back, is "
            f"removed from the cluster, or is declared dead by the taint {OUT_OF_SERVICE}."
        )
    if raw["metadata"].get("deletionTimestamp") and not _is_stopped(raw):
        words = "The pod was deleted in the cluster; it is ending."
        return _taken_away(raw) or (base.POD_DELETED, words)
    return "", ""


def _open(raw: Raw, state: str, reason: str = "", message: str = "", **more: Any) -> PodReport:
    return PodReport(names.pod_name(raw), state, reason, message, node=_node_name(raw), **more)


def _end(
    raw: Raw, reason: str, message: str, *, is_gone: bool, ended: Raw | None = None, state: str = base.FAILED
) -> PodReport:
    ended = ended or {}
    return _open(
        raw,
        state,
        reason,
        message,
        exit_code=_exit_code(reason, ended, state),
        started_at=None if ended.get("reason") in START_ERRORS else _time(ended.get("startedAt")),
        finished_at=(_time(ended.get("finishedAt")) or _fallback_end(raw)) if is_gone or ended else None,
        is_proven_gone=is_gone,
    )


_SHELL_CODES = {reason: code for _, reason, code, _ in _START_FAILURES if code}


def _exit_code(reason: str, ended: Raw, state: str) -> int | None:
    """Return the exit code to report, None if unknown. If the runtime could not start the command, it is a shell's
    code for that reason, because the runtime's code is invented."""
    if reason in _SHELL_CODES:
        return _SHELL_CODES[reason]
    if ended.get("reason") in (*START_ERRORS, "ContainerStatusUnknown"):
        return None
    code = ended.get("exitCode")
    if code is None:
        return 0 if state == base.SUCCEEDED else None
    return int(code)


def _fallback_end(raw: Raw) -> datetime | None:
    """Return the best known end time of a pod without a container status, None if there is none. Never the present
    time, because an end time must not change."""
    times = [condition_of(raw, kind).get("lastTransitionTime") for kind in ("DisruptionTarget", "Ready")]
    times += [raw["metadata"].get(key) for key in ("deletionTimestamp", "creationTimestamp")]
    return next((_time(time) for time in times if time), None)


def _said(sentence: str, *words: object) -> str:
    """Return our sentence and, after colons, the cluster's own words, on one line."""
    parts = (sentence, *(line(word or "").rstrip(".") for word in words))
    return line(f"{': '.join(filter(None, parts))}.")


def _status(raw: Raw) -> Raw:
    return raw.get("status") or {}


def _steps(raw: Raw) -> Sequence[Raw]:
    """Return the statuses of the pod's init containers."""
    return _status(raw).get("initContainerStatuses") or ()


def _phase(raw: Raw) -> str:
    return str(_status(raw).get("phase", ""))


def _node_name(raw: Raw) -> str:
    return str((raw.get("spec") or {}).get("nodeName") or "")


def _is_stopped(raw: Raw) -> bool:
    return _stop_word(raw) not in ("", names.AFTER_ITS_END)


def _stop_word(raw: Raw) -> str:
    return str((raw["metadata"].get("labels") or {}).get(names.STOPPED, ""))


def has_begun(raw: Raw) -> bool:
    """Return whether the command's container was created, so that it may have a log."""
    return bool(main_status(raw).get("containerID"))


def has_command_ended(raw: Raw) -> bool:
    return bool((main_status(raw).get("state") or {}).get("terminated"))


def _is_gated(raw: Raw) -> bool:
    gates = (raw.get("spec") or {}).get("schedulingGates") or ()
    return any(gate.get("name") == names.STOP_GATE for gate in gates)


def main_status(raw: Raw) -> Raw:
    """Return the status of the container that runs the command, {} if it has none; service meshes add other
    containers."""
    return _named(_status(raw).get("containerStatuses"), "name", names.MAIN_CONTAINER)


def condition_of(raw: Raw, kind: str) -> Raw:
    """Return the condition of a pod or node with the type `kind`; {} if it has none."""
    return _named(_status(raw).get("conditions"), "type", kind)


def _named(found: Sequence[Raw] | None, key: str, name: str) -> Raw:
    return next((one for one in found or () if one.get(key) == name), {})


def _taints(node: Raw | None) -> set[str]:
    return {taint.get("key", "") for taint in ((node or {}).get("spec") or {}).get("taints") or ()}


def _bound_seconds(raw: Raw, now: datetime) -> float:
    """Return for how many seconds the pod has been bound to its node, or has existed if that is unknown."""
    bound = condition_of(raw, "PodScheduled").get("lastTransitionTime")
    return _age(bound or raw["metadata"].get("creationTimestamp"), now)


def _age(since: str | None, now: datetime) -> float:
    """Return the seconds from `since`, a time of the cluster, to `now`; 0 if it is None."""
    time = _time(since)
    return (now - time).total_seconds() if time else 0.0


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
