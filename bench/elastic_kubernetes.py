"""Resizes of a training through the whole control plane, on a real Kubernetes node beside the local engine.

One control plane has both clusters; the same program is resized from 2 to 4 workers and back five times on each.
Pauses and steps are those that REST reports for the operations. Run: python -m bench.elastic_kubernetes
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, Row, report
from tests import servers
from tests.kube import KubeCluster, KubeMissing, node_cluster
from tests.waiting import wait_until
from tools.kube.parts import IMAGE

ROUNDS = 5
FEW, MANY = 2, 4
# Pods of Kubernetes on a busy machine.
LONGEST_SECONDS = 180
# Endless; newcomers on a busy machine get time to connect, on both engines alike.
ENVIRONMENT = {
    "EPOCHS": "1000000",
    "SAMPLES": "256",
    "BATCH_SIZE": "4",
    "WORK_MS": "5",
    "OMP_NUM_THREADS": "1",
    "TRAINYARD_ELASTIC_FORM_SECONDS": "10",
}
LOCAL, KUBERNETES = "local", "kubernetes"


@dataclass
class Measured:
    """Results of the resizes on one engine: pauses in milliseconds, and lost and repeated steps."""

    pauses: list[float] = field(default_factory=list)
    lost: int = 0
    repeated: int = 0


def main() -> None:
    """Measure and report; without a Kubernetes cluster print the reason and remove the old results."""
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with node_cluster() as kube, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
            report("elastic_kubernetes", rows(*measure(kube, Path(directory))))
    except KubeMissing as reason:
        print(f"Not measured, there is no Kubernetes here: {reason}")
        (RESULTS / "elastic_kubernetes.json").unlink(missing_ok=True)


def measure(kube: KubeCluster, directory: Path) -> tuple[Measured, Measured]:
    """Return the results on the local engine and on the Kubernetes node."""
    with servers.control_plane(directory / "state") as running:
        yard = Yard(running)
        attached = {
            "name": KUBERNETES,
            "engine": "kubernetes",
            "kubeconfig": kube.kubeconfig_text,
            "settings": {"default_image": IMAGE, "image_pull_policy": "Never"},
        }
        yard.call("POST", "/clusters", attached)
        wait_until(lambda: yard.nodes_of(KUBERNETES), timeout=LONGEST_SECONDS, what="the attached node")
        here = resized(yard, LOCAL, {"image": "elastic"})
        there = {"command": ["python", "-m", "workloads.elastic.train"], "node_pool": "train"}
        return here, resized(yard, KUBERNETES, there)


class Yard:
    """REST calls to a control plane; raises RuntimeError for an error status."""

    def __init__(self, running: servers.ControlPlane) -> None:
        self._running = running

    def call(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self._running.call(method, f"/api/v1{path}", body, timeout=60)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer}")
        return answer

    def nodes_of(self, cluster: str) -> int:
        found = self.call("GET", "/clusters")["results"]
        return int(next(one["nodes_ready"] for one in found if one["name"] == cluster))

    def operations(self, job: str) -> list[dict[str, Any]]:
        """Return the scale operations of a job, newest first."""
        found: list[dict[str, Any]] = self.call("GET", f"/jobs/{job}/scale-operations")["results"]
        return found


def resized(yard: Yard, cluster: str, program: dict[str, Any]) -> Measured:
    """Resize a training on `cluster` from FEW to MANY workers and back, ROUNDS times. `program`: fields of its
    submission. Return the results."""
    measured = Measured()
    yard.call("POST", "/projects", {"name": f"on-{cluster}", "cluster": cluster, "gpu_quota": MANY})
    with training(yard, cluster, program) as job:
        for workers in (MANY, FEW) * ROUNDS:
            made = yard.call("POST", f"/jobs/{job}/scale", {"workers": workers})
            done = ended(yard, job, made["id"])
            measured.pauses.append(1000 * done["pause_seconds"])
            measured.lost += done["lost_steps"]
            measured.repeated += done["repeated_steps"]
    return measured


@contextmanager
def training(yard: Yard, cluster: str, program: dict[str, Any]) -> Iterator[str]:
    """Context manager with the id of a job on `cluster` that trains with FEW workers; stops the job at the end.
    `program`: fields of its submission. Raises RuntimeError if the job ends before it trains."""
    body = {
        "name": "resized",
        "kind": "elastic",
        "workers": FEW,
        "min_workers": 1,
        "max_workers": MANY,
        "cpus": 0.1,
        "memory_mib": 1024,
        "gpus": 1,
        "env": ENVIRONMENT,
        **program,
    }
    job = yard.call("POST", f"/projects/on-{cluster}/jobs", body)["id"]

    def is_training() -> bool:
        shown = yard.call("GET", f"/jobs/{job}")["status"]
        if shown["state"] in ("failed", "stopped"):
            raise RuntimeError(f"The job on {cluster} ended: {shown}")
        return shown["state"] == "running" and bool(shown["progress"].get("step"))

    wait_until(is_training, timeout=LONGEST_SECONDS, what=f"a training on {cluster}")
    yield job
    yard.call("POST", f"/jobs/{job}/stop")
    stopped = ("stopped", "failed", "succeeded")
    wait_until(
        lambda: yard.call("GET", f"/jobs/{job}")["status"]["state"] in stopped,
        timeout=LONGEST_SECONDS,
        what=f"the end of the training on {cluster}",
    )


def ended(yard: Yard, job: str, operation: str) -> dict[str, Any]:
    """Wait for a scale operation of a job (both by id) and return it. Raises RuntimeError if it did not succeed."""
    found: list[dict[str, Any]] = []

    def is_over() -> bool:
        found[:] = [one for one in yard.operations(job) if one["id"] == operation]
        return found[0]["state"] not in ("pending", "running")

    wait_until(is_over, timeout=LONGEST_SECONDS, what="a resize")
    if found[0]["state"] != "succeeded" or found[0]["pause_seconds"] is None:
        raise RuntimeError(f"A resize ended otherwise: {found[0]}")
    return found[0]


def rows(local: Measured, kubernetes: Measured) -> list[Row]:
    """Return rows for the pauses on Kubernetes, relative to the local engine, and for lost and repeated steps."""
    work = f"{FEW} -> {MANY} -> {FEW} workers, {ROUNDS} times"
    steps = f"local engine: {local.lost} lost, {local.repeated} repeated"
    return [
        Row(f"{work}, one real node of Kubernetes: pause of a resize", "<= 2x of the local engine's", "ms",
            kubernetes.pauses, peer="the local engine", peer_samples=local.pauses, ratio_limit=2),
        Row("the same: steps lost", "0", "steps", [kubernetes.lost], limit=0, note=steps),
        Row("the same: completed steps computed again", "0", "steps", [kubernetes.repeated], limit=0),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
