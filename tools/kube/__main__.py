"""`make kube` and `make kube-down`: start and stop a cluster for manual tests."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from pathlib import Path

from tests import kube
from tests.kubernetes import csi_rig
from tests.waiting import wait_until
from tools.kube import build, sweep
from tools.kube.parts import IMAGE, JUPYTER_IMAGE, QUICKSTART_IMAGE

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MIB = 32768


def main() -> int:
    """Start or stop the cluster. Return 0, or 1 after printing what is missing."""
    options = _options()
    state_dir = Path(os.environ.get("TRAINYARD_STATE_DIR") or ROOT / ".state").resolve() / "kube"
    try:
        if options.verb == "build":
            print(f"All programs are there: {build.ready()['kube-apiserver'].parent}")
        elif options.verb == "up":
            _up(state_dir, options.nodes, options.gpus)
        else:
            _down(state_dir)
    except (kube.KubeMissing, build.CannotBuild) as reason:
        print(reason)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "build"])
    parser.add_argument("--nodes", type=int, default=0, help="fake nodes beside the real one")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    return parser.parse_args()


def _up(state_dir: Path, nodes: int, gpus: int) -> None:
    if sweep.is_dead(state_dir):
        sweep.remove(state_dir)
    if state_dir.exists():
        print(f"A cluster is running already. KUBECONFIG={state_dir}/kubeconfig")
        return
    reason = kube.why_not(node=True)
    if reason and not kube.why_not():
        print(f"{reason} Without it all nodes are fake and run no containers.")
    labels = kube.gpu_labels(MEMORY_MIB, "default")
    real = "" if reason else "node-0"
    undefined = csi_rig.why_no_definitions()
    has_csi = bool(real) and not undefined
    cluster = kube.start(node=real, node_labels=labels, has_csi=has_csi, state_dir=state_dir, is_ours=False)
    if real:
        cluster.set_gpus(real, gpus)
        cluster.apply(kube.STORAGE_CLASS)
    if has_csi:
        csi_rig.set_up(cluster, real)
    for number in range(1, nodes + 1):
        cluster.add_node(f"node-{number}", gpus=gpus, labels=labels)
    print(f"A Kubernetes {build.KUBERNETES} is running; `make kube-down` ends it.\n")
    print(cluster.kubectl("get", "nodes"))
    print(f"KUBECONFIG={cluster.kubeconfig}")
    print(f"kubectl: {cluster.programs['kubectl']}")
    if real:
        print(
            f"{real} runs containers of {IMAGE} (this machine's userland, Python, torch), {QUICKSTART_IMAGE} and"
            f" {JUPYTER_IMAGE}."
        )
        print(f"Its pods reach this machine at {cluster.host_address}.")
    if has_csi:
        print(f"The storage class {csi_rig.CLASS} makes volumes with snapshots: directories of this machine.")
    elif real:
        print(f"There is no storage class {csi_rig.CLASS}, which has snapshots and caches. {undefined}")


def _down(state_dir: Path) -> None:
    if not state_dir.exists():
        print("No cluster is running.")
        return
    if not sweep.is_dead(state_dir):
        supervisor = int((state_dir / "lock").read_text())
        end = os.pidfd_open(supervisor)
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: select.select([end], [], [], 0)[0], 30, "the cluster's end")
        os.close(end)
    if state_dir.exists():
        sweep.remove(state_dir)
    print("The cluster and all that it had are gone.")


if __name__ == "__main__":
    sys.exit(main())
