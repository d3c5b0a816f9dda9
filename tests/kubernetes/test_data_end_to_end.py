"""The data of a job on a Kubernetes cluster, by `yard` alone: dataset, cache, code and volume, a snapshot at its end,
its restore, and the job again on it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.cli.conftest import START
from tests.kube import KubeCluster
from tests.kubernetes import csi_rig
from tests.kubernetes.chart import engine_kubeconfig
from tests.waiting import patience, wait_until
from tools.kube.parts import IMAGE

pytestmark = pytest.mark.slow
PROGRAM = """
import pathlib, sys
text = pathlib.Path("/data/train/a.txt").read_text()
best = pathlib.Path("/out/best")
print("before:", best.read_text() if best.exists() else "nothing")
best.write_text(f"model of {text}")
pathlib.Path("kept").mkdir()
pathlib.Path("kept/model").write_text(f"model of {text}")
"""
SMALL = ("-g", "0", "--cpus", "0.1", "--memory", "128Mi", "--node-pool", "train")


class Yard:
    """The command line of a user of a control plane."""

    def __init__(self, control: servers.ControlPlane, directory: Path) -> None:
        self._directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
        own = {"TRAINYARD_URL": control.url, "TRAINYARD_TOKEN": control.token, "TRAINYARD_PROJECT": "team"}
        self._environment = {**kept, **own, "TRAINYARD_CONFIG": str(directory / "yard.json")}

    def __call__(self, *arguments: str) -> str:
        """What a command prints that succeeds."""
        ran = subprocess.run(
            [sys.executable, "-I", "-c", START, *arguments],
            env=self._environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(180),
        )
        assert ran.returncode == 0, (arguments, ran.stdout, ran.stderr)
        return ran.stdout

    def read(self, *arguments: str) -> Any:
        """What a command answers as JSON."""
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture
def yard(kube_node: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    if reason := csi_rig.why_no_definitions():
        pytest.skip(reason)
    csi_rig.set_up(kube_node)
    with servers.control_plane(
        tmp_path / "state", {"TRAINYARD_HOST": "0.0.0.0", "TRAINYARD_ALLOW_REMOTE": "yes"}
    ) as control:
        yard = Yard(control, tmp_path)
        (tmp_path / "kubeconfig").write_text(engine_kubeconfig(kube_node))
        prefix = f"t{secrets.token_hex(3)}-"
        port = control.url.rpartition(":")[2]
        stated = {
            "namespace_prefix": prefix,
            "cache_storage_class": csi_rig.CLASS,
            "cache_size": "64Mi",
            "work_storage_class": csi_rig.CLASS,
            "work_size": "16Mi",
            "control_url": f"http://{kube_node.host_address}:{port}",
            "default_image": IMAGE,
            "image_pull_policy": "Never",
            # the other node runs no containers
            "node_selector": json.dumps({"nvidia.com/gpu.memory": "32768"}),
        }
        sets = [word for name, value in stated.items() for word in ("--set", f"{name}={value}")]
        yard("cluster", "add", "prod", "--kubeconfig", str(tmp_path / "kubeconfig"), *sets)
        yard("project", "create", "team", "--cluster", "prod", "--gpu-quota", "4")
        yield yard
        control.stop_jobs()


def test_from_a_directory_to_a_model_that_is_restored_and_trained_on(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "images" / "train").mkdir(parents=True)
    (tmp_path / "images" / "train" / "a.txt").write_text("chest")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(PROGRAM)
    yard("dataset", "init", "xray", "images")
    yard("dataset", "sync", "images")
    data = ("--dataset", "xray@1:/data", "--cached", "--code", "code", *SMALL)
    volume = ("--pvc", f"{csi_rig.CLASS}:16Mi:/out", "--snapshot-on", "success")
    yard("submit", "first", *data, *volume, "--keep", "kept:model", "--wait", "--", "python3", "train.py")
    assert yard("logs", "first") == "before: nothing\n"
    assert [one["state"] for one in yard.read("dataset", "caches")["results"]] == ["ready"]
    snapshots = ("snapshot", "list", "--job", "first")
    wait_until(lambda: states_of(yard.read(*snapshots)) == ["ready"], 60, "the snapshot")
    wait_until(
        lambda: states_of(yard.read("artifact", "list", "--job", "first")) == ["ready"], 60, "the artifact"
    )
    yard("artifact", "download", "first/model", "model")
    assert (tmp_path / "model" / "model").read_text() == "model of chest"
    yard("snapshot", "restore", "first@1", "--to", "again", "--wait")
    yard("submit", "second", *data, "--pvc", "again:/out", "--wait", "--", "python3", "train.py")
    assert yard("logs", "second") == "before: model of chest\n"
    assert yard("volume", "files", "again").splitlines()[1].split()[:2] == ["best", "file"]
    yard("volume", "get", "again", "best", "best")
    assert (tmp_path / "best").read_text() == "model of chest"
    shown = yard("lineage", "second")
    assert "xray" in shown
    assert "again" in shown
    assert "first@1" in shown
    shown = yard("lineage", "first/model")
    assert "xray" in shown


def states_of(listed: Any) -> list[str]:
    return [one["status"]["state"] for one in listed["results"]]
