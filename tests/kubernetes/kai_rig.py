"""KAI Scheduler on a cluster of tests/kube.py: its programs, the objects that they need, and what a GPU node
does.

TRAINYARD_KAI_BIN: the directory of its scheduler and binder. Its CRDs are in ../shared/kubernetes/crds/kai, or
below TRAINYARD_CRDS. Its controllers do not run: they write only statuses that no test reads, and one needs port
8080. Webhooks are off, as in KAI's own tests."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.config import KAI, PLACEMENTS
from tests.kube import MERGE, KubeCluster
from tests.servers import CHECKOUT
from tests.waiting import patience, wait_until

PROGRAMS = {
    "scheduler": (
        "--schedule-period=200ms", "--listen-address=127.0.0.1:0", "--plugin-server-port=0", "--qps=500",
        "--burst=2000",
    ),
    "binder": ("--metrics-bind-address=0", "--health-probe-bind-address=0", "--qps=500", "--burst=2000"),
}  # fmt: skip
NAMESPACES = ("kai-scheduler", PLACEMENTS[KAI].reservations, "kai-scale-adjust")
DEVICE_OF_RESERVATION = "run.ai/reserve_for_gpu_index"


def crds() -> Path:
    """Return the directory of the CRDs of other systems."""
    return Path(os.environ.get("TRAINYARD_CRDS") or CHECKOUT.parent / "shared" / "kubernetes" / "crds")


def why_no_definitions() -> str:
    """Return why KAI's objects cannot be created here, in one sentence; "" if they can."""
    found = crds() / "kai"
    return "" if found.is_dir() else f"KAI's definitions are not at {found}: set TRAINYARD_CRDS."


def why_no_programs() -> str:
    """Return why KAI cannot run here, in one sentence; "" if it can."""
    named = os.environ.get("TRAINYARD_KAI_BIN", "")
    missing = [name for name in PROGRAMS if not (Path(named) / name).is_file()] if named else list(PROGRAMS)
    if not named:
        return "TRAINYARD_KAI_BIN does not name KAI Scheduler's programs."
    return f"TRAINYARD_KAI_BIN has no {', '.join(missing)}." if missing else ""


@contextmanager
def kai_running(kube: KubeCluster, logs: Path) -> Iterator[None]:
    """Context manager in which KAI schedules on this cluster. `logs`: a directory."""
    install(kube)
    folder = Path(os.environ["TRAINYARD_KAI_BIN"])
    environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
    stop = threading.Event()
    device_plugin = threading.Thread(target=_number_reservations, args=(kube, stop), daemon=True)
    processes = [
        _start([str(folder / name), *flags], logs / f"{name}.log", environment)
        for name, flags in PROGRAMS.items()
    ]
    device_plugin.start()
    try:
        yield
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, f"ended early: {ended}; see {logs}"
    finally:
        stop.set()
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(patience(20))
        device_plugin.join(patience(10))


def install(kube: KubeCluster) -> None:
    """Create KAI's CRDs and its namespaces."""
    kube.apply(crds() / "kai")
    for name in NAMESPACES:
        kube.api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = {"metadata": {"name": PLACEMENTS[KAI].reservations}}
    kube.api("POST", f"/api/v1/namespaces/{PLACEMENTS[KAI].reservations}/serviceaccounts", account)
    wait_until(
        lambda: kube.api("GET", names.list_path("Queue"))[0] == 200, 20, "KAI's definitions to be served"
    )


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=log.parent, start_new_session=True
        )


def _number_reservations(kube: KubeCluster, stop: threading.Event) -> None:
    """Annotate KAI's reservation pods with a GPU, until `stop` is set. On a real node the pod itself does so,
    with the GPU that the device plugin gave it."""
    path = f"/api/v1/namespaces/{PLACEMENTS[KAI].reservations}/pods"
    while not stop.wait(0.1):
        try:
            _, found = kube.api("GET", path)
            pods = found["items"]
        except OSError:
            continue
        taken = {_place(pod) for pod in pods if _place(pod)[1]}
        for pod in pods:
            node, number = _place(pod)
            if node and not number:
                number = next(str(index) for index in range(64) if (node, str(index)) not in taken)
                taken.add((node, number))
                note = {"metadata": {"annotations": {DEVICE_OF_RESERVATION: number}}}
                kube.api("PATCH", f"{path}/{pod['metadata']['name']}", note, kind=MERGE)


def _place(pod: dict[str, Any]) -> tuple[str, str]:
    noted = pod["metadata"].get("annotations") or {}
    return pod["spec"].get("nodeName", ""), noted.get(DEVICE_OF_RESERVATION, "")
