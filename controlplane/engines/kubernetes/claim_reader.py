"""Read files of a claim: a short-lived pod mounts it read-only and prints them into its log (claim_list.py).

If the caller dies, the pod ends by itself; a repeat with the same name uses it, and a later read in the project
deletes it. A claim that waits for its first pod is not read, because that would bind its volume to the node of
this pod.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.engines.kubernetes import claim_list, data_pod_objects, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.data_pods import DataPod
from controlplane.engines.kubernetes.pod_scripts import python
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.names import Raw, selector
from datasets.storage.base import Blocked, Budget, ContentMissing
from datasets.storage.claims import ReadTask, claim_name
from datasets.storage.volume_files import Child

ROOT = "/volume"
# The time for the pod to mount the claim and start, and the time after which the cluster ends it, also if its caller
# has died.
START_SECONDS, POD_SECONDS = 60.0, 120
# No read takes this long, so a pod of this age is abandoned.
LEFT_SECONDS = 600.0
LABELS = {names.READS: "volumes"}
UNENDED = "status.phase!=Succeeded,status.phase!=Failed"
# By exit code; "": there is no such path.
_REASONS = {claim_list.MISSING: "", claim_list.TOO_LARGE: "too_large", claim_list.UNREADABLE: "unreadable"}


class ClaimReader:
    """Reads files of one project's volumes, by short-lived pods."""

    def __init__(self, client: Client, project: str, profile: ClusterProfile) -> None:
        self._client, self._project, self._profile = client, project, profile

    def read(self, task: ReadTask, budget: Budget) -> tuple[list[Child], bytes, bool]:
        """Return (entries of a directory, content of a file, whether the directory has more entries); only what
        `task` asks for is not empty. Raise ContentMissing if the path does not exist, Blocked if the pod cannot run
        or the path cannot be read, Unreachable if the cluster does not answer, and what `budget` raises."""
        name, namespace = f"trainyard-reader-{task.name}", self._profile.namespace_of(self._project)
        pod = DataPod(self._client, namespace, name, "reads files of volumes")
        pod.remove_older(LEFT_SECONDS, selector({names.DATA_OF: self._profile.installation, **LABELS}))
        node = _node_for(pod.claim(claim_name(task.volume)), pod)
        try:
            pod.create(_pod(name, self._project, self._profile, task, node))
            return _parsed(pod.printed(budget, _REASONS, "not_read", is_passing=False, seconds=START_SECONDS))
        except ApiError as error:
            words = line(f"The log of the pod that reads files of volumes: {error}")
            raise Blocked("not_read", words) from error
        finally:
            pod.remove()


def _node_for(claim: Raw | None, pod: DataPod) -> str:
    """Return the node on which the reading pod must run, "" for any. A claim that only one node can mount binds it to
    the node of the pods that use the claim. Raise ContentMissing if `claim` is None, Blocked if the claim is not
    bound to a volume."""
    if claim is None:
        raise ContentMissing("The volume is not in the cluster.")
    phase = (claim.get("status") or {}).get("phase") or "Pending"
    if phase != "Bound":
        unused = "No job has mounted it yet: the cluster makes its volume for the first pod that does."
        words = unused if phase == "Pending" else line(f"Its claim in the cluster is {phase}.")
        raise Blocked("not_bound", words)
    if any(mode.endswith("Many") for mode in claim["spec"].get("accessModes") or ()):
        return ""
    for one in pod.others(fieldSelector=UNENDED):
        volumes = one["spec"].get("volumes") or ()
        claims = {(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes}
        if claim["metadata"]["name"] in claims and one["spec"].get("nodeName"):
            return str(one["spec"]["nodeName"])
    return ""


def _pod(name: str, project: str, profile: ClusterProfile, task: ReadTask, node: str) -> dict[str, Any]:
    env = {
        claim_list.ROOT: ROOT,
        claim_list.PATH: b64encode(task.path).decode(),
        claim_list.AFTER: b64encode(task.after).decode(),
        claim_list.LIMIT: str(task.limit),
        claim_list.IS_FILE: "yes" if task.is_file else "",
    }
    return data_pod_objects.pod(
        name,
        project,
        profile,
        claim=claim_name(task.volume),
        root=ROOT,
        command=python(claim_list),
        env=env,
        labels=LABELS,
        is_read_only=True,
        seconds=POD_SECONDS,
        node=node,
    )


def _parsed(lines: Iterable[Mapping[str, Any]]) -> tuple[list[Child], bytes, bool]:
    """Return (entries, content, whether there is more) from the pod's output. Raise Blocked if its last line is
    missing."""
    children, content = [], bytearray()
    for said in lines:
        if "entry" in said:
            name, kind, size, mtime = said["entry"]
            children.append(Child(b64decode(name), kind, size, mtime))
        elif "piece" in said:
            content += b64decode(said["piece"])
        elif "done" in said:
            return children, bytes(content), said["done"]
    raise Blocked("not_read", "The log of the pod that reads files of volumes was cut off.")
