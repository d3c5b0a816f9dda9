"""The parts of a campaign on Kubernetes: users, injected faults, and an observer at the API server."""

from __future__ import annotations

import http.client
import json
import random
import secrets
import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import connections
from django.db.models import Q

from controlplane.access import Actor, NotVisible
from controlplane.actions.errors import Conflict
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.manifests import read_devices
from controlplane.loop.runner import Runner
from controlplane.models import Cluster, Command, Lease, Project
from jobs import lifecycle
from jobs.actions import delete_job, resume_job, stop_job, submit_job, suspend_job
from jobs.command_kinds import FORGET_POD
from jobs.models import Job, Pod
from tests.builders import make_user
from tests.engines import give_engine
from tests.kube import GPU, MERGE, KubeCluster, gpu_labels
from tests.kubernetes.proxy import FaultProxy, Faults

LABEL = "campaign"
CLAIMS, SELECTED_NODE = "/api/v1/persistentvolumeclaims", "volume.kubernetes.io/selected-node"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
TERMINAL = ("Succeeded", "Failed")

Raw = dict[str, Any]


class Witness:
    """Follows our pods at the API server, without the proxy; `broken`: a sentence for each broken promise.

    A pod counts as alive from its binding until it or its node ends."""

    def __init__(self, kube: KubeCluster, installation: str) -> None:
        self.broken: list[str] = []
        self._kube, self._query = kube, f"labelSelector={names.ours(installation)}"
        self._alive: dict[str, Raw] = {}  # by uid
        self._ran: dict[str, set[str]] = defaultdict(set)  # uids by name
        self._lost_nodes: set[str] = set()
        found = kube.must("GET", f"/api/v1/pods?{self._query}")
        self._version = found["metadata"]["resourceVersion"]
        self._is_closing = False
        self._answer = self._watch()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def lose_node(self, name: str) -> None:
        """Let no pod of this node count as alive any more."""
        self._lost_nodes.add(name)

    def close(self) -> None:
        self._is_closing = True
        with suppress(AttributeError, OSError):  # it is between two watches, or just at the end of one
            self._answer.fp.raw._sock.shutdown(2)  # its reader waits in a thread
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._answer.close()

    def _watch(self) -> Any:
        url = f"{self._kube.url}/api/v1/pods?watch=1&resourceVersion={self._version}&{self._query}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._kube.token}"})
        return urllib.request.urlopen(request, context=self._kube._context, timeout=600)

    def _follow(self) -> None:
        """Take all events of our pods. The server may end a watch at any time: the next one continues from there.
        An error means that events were missed, which is reported in `broken`."""
        while not self._is_closing:
            with suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
                for line in self._answer:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        self.broken.append(f"the witness was blind: {event['object']}")
                        return
                    self._take(event["object"], is_gone=event["type"] == "DELETED")
                    self._version = event["object"]["metadata"]["resourceVersion"]
            if not self._is_closing:
                self._answer = self._watch()

    def _take(self, pod: Raw, *, is_gone: bool) -> None:
        metadata = pod["metadata"]
        is_over = is_gone or pod.get("status", {}).get("phase") in TERMINAL
        if is_over or not pod["spec"].get("nodeName"):
            self._alive.pop(metadata["uid"], None)
            return
        self._alive[metadata["uid"]] = pod
        self._ran[metadata["name"]].add(metadata["uid"])
        if len(self._ran[metadata["name"]]) > 1:
            self.broken.append(f"{metadata['name']} ran twice")
        self.broken += self._doubled()

    def _doubled(self) -> Iterator[str]:
        held: Counter[tuple[str, int]] = Counter()
        ranks: Counter[tuple[str, str]] = Counter()
        for pod in self._alive.values():
            if pod["spec"]["nodeName"] in self._lost_nodes:
                continue
            labels = pod["metadata"]["labels"]
            ranks[labels[names.JOB_ID], labels[names.RANK]] += 1
            for share in devices(pod):
                held[pod["spec"]["nodeName"], share.index] += share.milli_gpus
        for rank, count in ranks.items():
            if count > 1:
                yield f"two pods of one rank were alive at a time: {rank}"
        for device, milli in held.items():
            if milli > 1000:
                yield f"{milli} milli-GPUs of one device were given out at a time: {device}"


def devices(pod: Raw) -> Any:
    return read_devices(pod["metadata"]["annotations"].get(names.DEVICES, ""))


@dataclass
class Plant:
    """The control plane in this process, behind the proxy. `restart` has the effect of a killed worker and a new
    one on rows and cluster; the threads of the old one go on for a moment, as in a process that was only paused."""

    kube: KubeCluster
    proxy: FaultProxy
    cluster: Cluster
    state_dir: Path
    engine: KubernetesEngine = field(init=False)
    loop: Runner = field(init=False)
    _past: list[Runner] = field(default_factory=list)

    def start(self) -> None:
        settings = {**self.cluster.settings, "cluster": self.cluster.name}
        self.engine = KubernetesEngine(settings, self.state_dir, access=self.proxy.access())
        give_engine(self.cluster, self.engine)
        self.loop = Runner()
        self.loop.start()

    def kill(self) -> None:
        self.loop.stop(0)
        self.engine.close()
        self._past.append(self.loop)
        Lease.objects.update(expires_at=LONG_AGO)
        Command.objects.filter(state=Command.CLAIMED).update(claim_expires_at=LONG_AGO)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.proxy.faults = Faults()
        self.proxy.thaw()
        self.kill()
        for loop in self._past:
            for thread in loop._threads:
                thread.join(30)
        give_engine(self.cluster, None)
        connections.close_all()


@dataclass
class Campaign:
    """Draws what happens next; `deed` does one thing that users, nodes, networks or processes do. `schedule`
    records it, `expected` the states in which each job may end."""

    plant: Plant
    witness: Witness
    dice: random.Random
    projects: list[Project]
    schedule: list[str] = field(default_factory=list)
    expected: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # ends by job id
    _count: int = 0
    _nodes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.actor = Actor(user=make_user())
        for shared in (False, True):
            self.add_node(4, is_shared=shared)
        self._deeds: list[Callable[[], str]] = [
            *[self.submit] * 8,
            *[lambda verb=verb: self.on_a_job(verb) for verb in (stop_job, suspend_job, delete_job)],
            *[lambda: self.on_a_job(resume_job)] * 2,
            *[self.end_a_pod] * 3,
            *[self.delete_a_pod] * 2,
            *[self.draw_faults] * 4,
            self.cut,
            self.freeze,
            self.kill,
        ]

    def deed(self) -> None:
        self.schedule.append(self.dice.choice(self._deeds)())

    def add_node(self, gpus: int, *, is_shared: bool) -> str:
        """Create a fake node with whole GPUs, or with GPUs of two parts each if `is_shared`. Return a text for
        the schedule."""
        name = f"{LABEL}-{secrets.token_hex(3)}"
        parts = {f"{GPU}.replicas": "2", f"{GPU}.sharing-strategy": "time-slicing"} if is_shared else {}
        labels = {**gpu_labels(32768, "default"), **parts, **self.plant.cluster.settings["node_selector"]}
        self.plant.kube.add_node(name, gpus=gpus * (2 if is_shared else 1), labels=labels)
        self._nodes.append(name)
        return f"node {name}"

    def remove_a_node(self) -> str:
        """Delete a node from the cluster and create another. Return a text for the schedule."""
        name = self._nodes.pop(self.dice.randrange(len(self._nodes)))
        self.witness.lose_node(name)
        self.plant.kube.must("DELETE", f"/api/v1/nodes/{name}")
        self.add_node(4, is_shared=self.dice.random() < 0.5)
        return f"node {name} is gone"

    def remove_nodes(self) -> None:
        for name in self._nodes:
            self.plant.kube.must("DELETE", f"/api/v1/nodes/{name}")

    def submit(self) -> str:
        self._count += 1
        dice, name = self.dice, f"job-{self._count}"
        kind = dice.choice(["train", "train", "train", "interactive", "mpi"])
        body: Raw = {
            "name": name,
            "kind": kind,
            "command": ["sleep", "infinity"],
            "cpus": 0.1,
            "memory_mib": 64,
        }
        body["gpus"] = dice.choice([0, 0.5, 1, 1, 2]) if kind != "mpi" else 1
        if kind == "mpi" or (kind == "train" and body["gpus"] >= 1):
            body["workers"] = dice.choice([1, 2, 2])
        if kind != "interactive":
            body["retries"] = dice.choice([0, 1])
        job = submit_job(dice.choice(self.projects), body, actor=self.actor)
        return f"submit {name} {kind} {body['gpus']}x{body.get('workers', 1)} = {job.pk}"

    def on_a_job(self, verb: Callable[..., object]) -> str:
        jobs = list(Job.objects.exclude(state__in=lifecycle.FINAL_STATES).order_by("submit_rank"))
        if not jobs:
            return "no job"
        job = self.dice.choice(jobs)
        try:
            verb(job, actor=self.actor)
        except (Conflict, NotVisible):
            return f"{job.name} is in no state for {verb.__name__}"
        if verb in (stop_job, delete_job):
            self.expected[str(job.pk)].add(lifecycle.STOPPED)
        return f"{verb.__name__} {job.name}"

    def end_a_pod(self) -> str:
        pod = self._a_pod()
        if pod is None:
            return "no pod to end"
        code = self.dice.choice([0, 0, 3])
        metadata = pod["metadata"]
        self.expected[metadata["labels"][names.JOB_ID]].add(lifecycle.FAILED if code else lifecycle.SUCCEEDED)
        try:
            self.plant.kube.end_pod(metadata["namespace"], metadata["name"], code)
        except (AssertionError, KeyError) as error:
            return f"{metadata['name']} was quicker: {error}"
        return f"{metadata['name']} ends with {code}"

    def delete_a_pod(self) -> str:
        pod = self._a_pod()
        if pod is None:
            return "no pod to delete"
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        grace = self.dice.choice(["", "?gracePeriodSeconds=0"])
        self.plant.kube.api("DELETE", f"{path}{grace}")
        return f"kubectl delete pod {metadata['name']} {grace}"

    def draw_faults(self) -> str:
        dice = self.dice
        faults = Faults(
            drop=dice.choice([0, 0.05, 0.2]),
            lose_answer=dice.choice([0, 0.1, 0.3]),
            late=dice.choice([0, 0.3]),
            late_seconds=dice.choice([0.2, 1]),
            busy=dice.choice([0, 0.1, 0.5]),
            failing=dice.choice([0, 0.1]),
            gone=dice.choice([0, 0.3]),
            cut=dice.choice([0, 0.05]),
            repeat=dice.choice([0, 0.2]),
            swap=dice.choice([0, 0.2]),
            stall_seconds=dice.choice([0, 0, 0.5]),
        )
        self.plant.proxy.faults = faults
        return f"{faults}"

    def cut(self) -> str:
        return f"cut {self.plant.proxy.cut_all()} connections"

    def freeze(self) -> str:
        """Let the proxy answer nothing for a while; afterwards waiting requests are carried out, or not. Return a
        text for the schedule."""
        self.plant.proxy.freeze()
        rest(self.dice.choice([0.5, 2]))
        self.plant.proxy.thaw()
        return "the API server was frozen"

    def kill(self) -> str:
        self.plant.restart()
        return "kill of the worker"

    def _a_pod(self) -> Raw | None:
        """Return one of our running pods, as the API server has it; None if there is none."""
        found = [pod for pod in pods_of(self.plant) if pod["status"].get("phase") == "Running"]
        return self.dice.choice(sorted(found, key=lambda pod: pod["metadata"]["name"])) if found else None


def pods_of(plant: Plant) -> list[Raw]:
    """Return our pods, as the API server has them."""
    return found(plant, "/api/v1/pods")


def found(plant: Plant, collection: str) -> list[Raw]:
    selector = names.ours(plant.cluster.settings["installation"])
    items: list[Raw] = plant.kube.must("GET", f"{collection}?labelSelector={selector}")["items"]
    return items


def hurry() -> None:
    """Make waiting jobs and pending commands due now, except commands that forget a pod, so that its name stays
    reserved against late starts."""
    due = Command.objects.filter(state=Command.PENDING).exclude(kind=FORGET_POD)
    due.update(not_before=LONG_AGO)
    Job.objects.filter(state=lifecycle.QUEUED, not_before__isnull=False).update(not_before=LONG_AGO)


def let_names_go() -> None:
    """Make the commands that forget a pod due now: no start is unfinished any more."""
    Command.objects.filter(state=Command.PENDING, kind=FORGET_POD).update(not_before=LONG_AGO)


def free_claims(plant: Plant) -> None:
    """Let unbound claims forget a selected node that was deleted, as a provisioner does after minutes."""
    nodes = {node["metadata"]["name"] for node in plant.kube.must("GET", "/api/v1/nodes")["items"]}
    for claim in found(plant, CLAIMS):
        metadata = claim["metadata"]
        node = (metadata.get("annotations") or {}).get(SELECTED_NODE)
        if node is not None and node not in nodes and claim["status"].get("phase") != "Bound":
            path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{metadata['name']}"
            plant.kube.must("PATCH", path, {"metadata": {"annotations": {SELECTED_NODE: None}}}, kind=MERGE)


def rest(seconds: float) -> None:
    """Wait; there is no condition to wait for."""
    threading.Event().wait(seconds)


def faults_of_rest(plant: Plant) -> Iterator[str]:
    """Yield the differences between rows, engine and API server, when nothing is in progress."""
    server = {pod["metadata"]["name"]: pod for pod in pods_of(plant)}
    rows = {pod.name: pod for pod in Pod.objects.filter(released_at=None).select_related("node", "job")}
    held = {name for name, pod in server.items() if names.STOPPED in pod["metadata"]["labels"]}
    for name in (server.keys() - held) ^ rows.keys():
        yield f"{name} is only {'in the cluster' if name in server else 'in the rows'}"
    for name in server.keys() & rows.keys():
        yield from _faults_of_pod(server[name], rows[name])
    seen = {
        name: raw["metadata"]["resourceVersion"] for name, raw in plant.engine._watching.look().ours.items()
    }
    is_so = {name: raw["metadata"]["resourceVersion"] for name, raw in server.items()}
    if seen != is_so:
        yield f"the model is not the server's: {seen.items() ^ is_so.items()}"
    for job in Job.objects.filter(state=lifecycle.RUNNING):
        pods = Pod.objects.filter(job=job, attempt__number=job.attempt)
        if pods.filter(Q(released_at=None) | Q(state="succeeded")).count() != job.pods_wanted:
            yield f"{job.name} runs without all of its pods"


def _faults_of_pod(raw: Raw, row: Pod) -> Iterator[str]:
    held = {(share.index, share.milli_gpus) for share in devices(raw)}
    allocated = set(row.allocations.filter(released_at=None).values_list("device__index", "milli_gpus"))
    if held != allocated:
        yield f"{row.name} holds {held} in the cluster and {allocated} in the rows"
    if raw["spec"].get("nodeName") != row.node.name:
        yield f"{row.name} is on {raw['spec'].get('nodeName')} and not on {row.node.name}"
