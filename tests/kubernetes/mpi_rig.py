"""The MPI operator on a cluster of tests/kube.py. TRAINYARD_MPI_OPERATOR_BIN: its program. Its CRD is in
../shared/kubernetes/crds/mpi-operator, or below TRAINYARD_CRDS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kube import KubeCluster
from tests.kubernetes.kai_rig import crds
from tests.waiting import patience, wait_until

MPI_JOBS = "/apis/kubeflow.org/v2beta1/mpijobs"
NAMESPACE = "mpi-operator"


def why_no_definition() -> str:
    """Return why MPIJobs cannot be created here, in one sentence; "" if they can."""
    found = crds() / "mpi-operator"
    return "" if found.is_dir() else f"The MPI operator's definition is not at {found}: set TRAINYARD_CRDS."


def why_no_program() -> str:
    """Return why the operator cannot run here, in one sentence; "" if it can."""
    named = os.environ.get("TRAINYARD_MPI_OPERATOR_BIN", "")
    if not named:
        return "TRAINYARD_MPI_OPERATOR_BIN does not name the MPI operator's program."
    return "" if Path(named).is_file() else f"TRAINYARD_MPI_OPERATOR_BIN: there is no {named}."


@contextmanager
def defined(kube: KubeCluster) -> Iterator[None]:
    """Context manager in which the cluster has the CRD of MPIJobs."""
    kube.apply(crds() / "mpi-operator" / "kubeflow.org_mpijobs.yaml")
    wait_until(lambda: kube.api("GET", MPI_JOBS)[0] == 200, 20, "the MPI operator's definition to be served")
    try:
        yield
    finally:
        kube.kubectl("delete", "crd", "mpijobs.kubeflow.org")


@contextmanager
def operator_running(kube: KubeCluster, log: Path) -> Iterator[None]:
    """Context manager in which the operator runs on this cluster. It needs port 8080, so only one can run on a
    machine."""
    kube.api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    command = [os.environ["TRAINYARD_MPI_OPERATOR_BIN"], "-kubeConfig", str(kube.kubeconfig)]
    environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
    with defined(kube), log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            wait_until(
                lambda: process.poll() is not None or _is_leading(kube), 30, "the MPI operator to lead"
            )
            assert process.poll() is None, log.read_text()[-1000:]
            yield
            assert process.poll() is None, f"The MPI operator has ended; see {log}."
        finally:
            process.terminate()
            process.wait(patience(20))


def _is_leading(kube: KubeCluster) -> bool:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/mpi-operator"
    status, answer = kube.api("GET", lease)
    return status == 200 and bool(answer["spec"].get("holderIdentity"))
