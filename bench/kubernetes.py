"""The Kubernetes engine on a real API server, beside kube-scheduler alone and, if its programs are there, KAI
Scheduler.

All use one cluster of fake nodes, one after another, so that each has the machine for itself.
Run: python -m bench.kubernetes    (TRAINYARD_KAI_BIN: directory of KAI's programs; BENCH_NODES=100 for a smaller
cluster)
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import urllib3

from bench.harness import RESULTS, Row, report
from bench.kubernetes_plant import (
    CONNECTIONS,
    NAMESPACE,
    Api,
    add_nodes,
    at_once,
    kai,
    place_with_kai,
    place_with_kube_scheduler,
    undecided,
    wait_bound,
)
from bench.kubernetes_reading import follow_latencies, job_calls, reflector_costs
from tests import servers
from tests.kube import KubeCluster, KubeMissing, kube_cluster
from tests.waiting import wait_until

NODES, GPUS = int(os.environ.get("BENCH_NODES", "500")), 8
BATCH = 100  # jobs a request, as `yard submit --file` sends them
RECLAIMS = 7
LOG_CHARACTERS = 5000
# By default kube-scheduler sends at most 50 requests a second, which would be measured instead of us. The
# limit is lifted for its own pods and for the binding of ours.
SCHEDULER = {"kube-scheduler": ("--kube-api-qps=1000", "--kube-api-burst=2000")}
OURS = "trainyard.io/installation"


def main() -> None:
    """Measure and report; without a Kubernetes cluster print the reason and remove the old results."""
    try:
        measure()
    except KubeMissing as reason:
        print(f"Not measured, there is no Kubernetes here: {reason}")
        (RESULTS / "kubernetes.json").unlink(missing_ok=True)


def measure() -> None:
    """Run all measurements on one cluster and report."""
    count = NODES * GPUS
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with kube_cluster(more=SCHEDULER) as kube:
            api = Api(kube)
            add_nodes(api, NODES, GPUS)
            api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            wait_until(lambda: _has_account(api), timeout=30, what="the namespace's service account")
            with our_plant(kube, Path(directory) / "state") as call:
                ours = place_with_us(api, call, count, BATCH)
                pod = undecided(one_of_ours(api))
                reclaims = [1000 * reclaim(api, call, number) for number in range(RECLAIMS)]
            remove_ours(api)
            same = [place_with_kube_scheduler(api, count, pod)]
            with our_plant(kube, Path(directory) / "second") as call:
                alone = place_with_us(api, call, count, 1)
            remove_ours(api)
            # on both sides of a run of ours: the machine is not always as fast
            same.append(place_with_kube_scheduler(api, count, pod))
            bare = place_with_kube_scheduler(api, count)
            peer, absence = _kai_rate(kube, api, count)
        rates = Rates(ours, alone, same, bare, peer)
        rows = [*placement_rows(count, rates, absence), reclaim_row(count, reclaims)]
        report("kubernetes", [*rows, *job_calls(), *reflector_costs(), *follow_latencies(Path(directory))])


@dataclass(frozen=True, slots=True)
class Rates:
    """Pods bound per second. `ours`, `alone`: our jobs, submitted in batches and one by one. `same`, `bare`:
    kube-scheduler alone with pods like ours and with minimal ones. `kai`: KAI Scheduler, None if it is not there."""

    ours: float
    alone: float
    same: list[float]
    bare: float
    kai: float | None


def placement_rows(count: int, rates: Rates, absence: str) -> list[Row]:
    """Return rows with jobs per second, from the first submission over REST to the last bound pod. `count`: the
    number of jobs. `absence`: why KAI Scheduler was not measured, "" if it was."""
    work = f"{count:,} one-GPU jobs on {NODES} nodes, submit to all bound"
    same, bare = "kube-scheduler, the same pods alone", "kube-scheduler, bare pods alone"
    beside_floor = Row(
        f"{work}, {BATCH} jobs a request", ">= 0.5x kube-scheduler alone", "/s", [rates.ours], mean(rates.same) / 2,
        at_least=True, peer=same, peer_samples=rates.same,
    )  # fmt: skip
    beside_kai = Row(
        "the same beside KAI Scheduler", ">= 3x KAI", "/s", [rates.ours], None if rates.kai is None else 3 * rates.kai,
        at_least=True, peer="KAI, bare pods and pod groups" if rates.kai else f"KAI: {absence}",
        peer_samples=[rates.kai] if rates.kai else [],
    )  # fmt: skip
    beside_bare = Row(
        "the same beside pods of nothing but a GPU",
        "-",
        "/s",
        [rates.ours],
        peer=bare,
        peer_samples=[rates.bare],
    )
    alone = Row("the same, one job a request", "-", "/s", [rates.alone], peer=same, peer_samples=rates.same)
    return [beside_floor, beside_kai, beside_bare, alone]


def reclaim_row(count: int, samples: list[float]) -> Row:
    """Return the row of the time from an owner's submission to its pod bound to a node that a borrower held.
    `count`: the number of running jobs; `samples`: in ms."""
    work = f"one GPU reclaimed with {count:,} running, submit to bound"
    return Row(work, "<= 2 s", "ms", samples, limit=2000)


@contextmanager
def our_plant(kube: KubeCluster, state_dir: Path) -> Iterator[Callable[..., Any]]:
    """Context manager: start a control plane on PostgreSQL with the cluster attached and two projects, a borrower
    and an owner. Yields a function that calls its REST API."""
    with servers.postgres() as url, servers.control_plane(state_dir, {"DATABASE_URL": url}) as running:
        call = _caller(running, state_dir / "control" / "web.log")
        settings = {"default_image": "none"}
        kubeconfig = {"kubeconfig": kube.kubeconfig_text, "context": "trainyard", "settings": settings}
        call("POST", "/clusters", {"name": "fake", "engine": "kubernetes", **kubeconfig})
        wait_until(lambda: _has_nodes(call), timeout=120, what="the nodes of the attached cluster")
        call(
            "POST", "/projects", {"name": "borrower", "cluster": "fake", "gpu_quota": NODES * GPUS - RECLAIMS}
        )
        call("POST", "/projects", {"name": "owner", "cluster": "fake", "gpu_quota": RECLAIMS})
        yield call


def _caller(running: servers.ControlPlane, log: Path) -> Callable[..., Any]:
    """Return a function that calls the REST API over persistent connections. It raises RuntimeError for an error
    status, with the end of the web log."""
    pool = urllib3.PoolManager(maxsize=CONNECTIONS, headers={"Authorization": f"Bearer {running.token}"})

    def call(method: str, path: str, body: Any = None) -> Any:
        answer = pool.request(method, f"{running.url}/api/v1{path}", json=body, timeout=60)
        if answer.status >= 300:
            end = log.read_text(errors="replace")[-LOG_CHARACTERS:]
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data[:300]!r}\n{end}")
        return answer.json()

    return call


def place_with_us(api: Api, call: Callable[..., Any], count: int, batch: int) -> float:
    """Submit `count` jobs over REST from eight threads, `batch` per request, and wait until all their pods are
    bound. `call`: calls the REST API (see `our_plant`). Return jobs per second."""
    body = {"kind": "train", "gpus": 1, "command": ["sleep", "infinity"]}
    jobs = [{**body, "name": f"job-{number:05d}"} for number in range(count)]

    def submit(first: int) -> None:
        if batch == 1:
            call("POST", "/projects/borrower/jobs", jobs[first])
        else:
            call("POST", "/projects/borrower/jobs/batch", {"jobs": jobs[first : first + batch]})

    began = time.perf_counter()
    at_once(submit, range(0, count, batch))
    wait_bound(api, count, OURS)
    return count / (time.perf_counter() - began)


def one_of_ours(api: Api) -> dict[str, Any]:
    """Return one pod, as the API's JSON, that our engine created."""
    found: dict[str, Any] = api("GET", f"/api/v1/pods?labelSelector={OURS}&limit=1")["items"][0]
    return found


def reclaim(api: Api, call: Callable[..., Any], number: int) -> float:
    """Return the seconds from an owner's submission until its pod is bound, on a full cluster. `call`: calls the
    REST API (see `our_plant`); `number`: makes the job's name unique."""
    body = {"name": f"mine-{number}", "kind": "train", "gpus": 1, "command": ["sleep", "infinity"]}
    began = time.perf_counter()
    job = call("POST", "/projects/owner/jobs", body)
    path = f"/api/v1/namespaces/yard-owner/pods/{job['id']}-1-0"
    wait_until(lambda: _is_bound(api, path), timeout=60, what="the owner's pod to be bound")
    return time.perf_counter() - began


def remove_ours(api: Api) -> None:
    """Delete our pods and namespaces without the control plane; removes the pods' finalizers first."""
    pods = api("GET", f"/api/v1/pods?labelSelector={OURS}")["items"]

    def remove(pod: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        api("PATCH", path, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")

    at_once(remove, pods)
    projects = ("borrower", "owner")
    for project in projects:
        api("DELETE", f"/api/v1/namespaces/yard-{project}")
    wait_until(lambda: not any(_has_namespace(api, name) for name in projects), timeout=300, what="our end")


def _kai_rate(kube: KubeCluster, api: Api, count: int) -> tuple[float | None, str]:
    definitions = Path(os.environ.get("TRAINYARD_CRDS", "../shared/kubernetes/crds")) / "kai"
    with kai(kube, api, definitions) as absence:
        return (None, absence) if absence else (place_with_kai(api, count), "")


def _is_bound(api: Api, path: str) -> bool:
    try:
        return bool(api("GET", path)["spec"].get("nodeName"))
    except RuntimeError:
        return False  # not created yet


def _has_nodes(call: Callable[..., Any]) -> bool:
    return any(cluster["nodes_ready"] == NODES for cluster in call("GET", "/clusters")["results"])


def _has_namespace(api: Api, project: str) -> bool:
    names = {namespace["metadata"]["name"] for namespace in api("GET", "/api/v1/namespaces")["items"]}
    return f"yard-{project}" in names


def _has_account(api: Api) -> bool:
    return bool(api("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")["items"])


if __name__ == "__main__":
    main()
