"""What the guide tells an admin of a cluster to type, word by word: an account for us, and its end."""

import json
import os
import re
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.engines.kubernetes.preflight import FAILED, OK, Check, check_cluster
from tests.kube import KubeCluster
from tests.kubernetes.engine_case import Case
from tests.servers import CHECKOUT
from tests.waiting import patience, wait_until

GUIDE = CHECKOUT / "docs/howto/kubernetes.md"
NOT_ALONE = ("queues.scheduling.run.ai", "clusterroles")  # KAI is not here; the other tests need the roles


def blocks(heading: str) -> list[str]:
    """The commands of a section."""
    section = re.split(r"^#", GUIDE.read_text().partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def as_pasted(
    script: str, kube: KubeCluster, directory: Path = CHECKOUT, *, first: Path | None = None
) -> int:
    """Run commands as the cluster's admin does who pastes them: nothing ends at a failure unless they say so. Returns
    the exit code. Programs in `first` come before all others; `yard` only notes what it is asked."""
    named = [str(first)] if first else []
    environment = {
        **os.environ,
        "KUBECONFIG": str(kube.kubeconfig),
        "PATH": ":".join([*named, str(Path(kube.programs["kubectl"]).parent), os.environ["PATH"]]),
    }
    command = ["bash", "-c", f'yard() {{ echo yard "$@" >> yard.asked; }}\n{script}']
    return subprocess.run(
        command, check=False, timeout=patience(60), env=environment, cwd=directory
    ).returncode


@dataclass(frozen=True)
class Guided:
    """Somebody who follows the section, with a namespace of their own in place of the guide's."""

    kube: KubeCluster
    directory: Path
    namespace: str

    def follow(self, script: str, *, first: Path | None = None) -> int:
        script = re.sub(r"(-n|namespace:?) trainyard\b", rf"\1 {self.namespace}", script)
        script = script.replace("trainyard-yard-trainyard", f"{self.namespace}-yard-trainyard")
        return as_pasted(script, self.kube, self.directory, first=first)

    @property
    def asked(self) -> list[str]:
        """The calls of `yard`."""
        path = self.directory / "yard.asked"
        return path.read_text().splitlines() if path.exists() else []

    def kubeconfig(self) -> str:
        """The one that they have now."""
        kubeconfig = (self.directory / "yard.kubeconfig").read_text()
        assert self.kube.token not in kubeconfig
        return kubeconfig


@pytest.fixture
def guided(kube: KubeCluster, tmp_path: Path) -> Guided:
    (tmp_path / "deploy").symlink_to(CHECKOUT / "deploy")
    return Guided(kube, tmp_path, f"guide-{secrets.token_hex(3)}")


def found_with(kubeconfig: str) -> dict[str, Check]:
    """What the look at the cluster finds."""
    return {check.name: check for check in check_cluster({"credentials": {"kubeconfig": kubeconfig}})}


def test_the_guides_account_has_all_rights_that_are_needed_and_goes_with_all_its_tokens(guided: Guided):
    account, renewal, endless = blocks("### A kubeconfig of its own")
    _, goes, _ = blocks("## Remove")
    kubeconfigs = {}
    for way, script, verb in (
        ("new", account, "add"),
        ("renewed", renewal, "edit"),
        ("endless", endless, "edit"),
    ):
        assert guided.follow(script) == 0, way
        kubeconfigs[way] = guided.kubeconfig()
        assert guided.asked[len(kubeconfigs) - 1 :] == [
            f"yard cluster {verb} prod --kubeconfig yard.kubeconfig"
        ]
        found = found_with(kubeconfigs[way])
        assert f"system:serviceaccount:{guided.namespace}:yard-trainyard" in found["identity"].message, way
        assert found["rights"].outcome == OK, way
    assert len(set(kubeconfigs.values())) == 3
    assert guided.follow(goes) == 0
    for way, kubeconfig in kubeconfigs.items():
        wait_until(
            lambda kubeconfig=kubeconfig: found_with(kubeconfig)["identity"].outcome == FAILED,
            30,
            f"the end of the {way} token",
        )
    listed = "/apis/rbac.authorization.k8s.io/v1"
    left = [guided.kube.must("GET", f"{listed}/{kind}") for kind in ("clusterroles", "clusterrolebindings")]
    assert guided.namespace not in json.dumps(left)


def test_the_guides_account_is_not_used_where_helm_fails(guided: Guided, tmp_path: Path):
    account, _, _ = blocks("### A kubeconfig of its own")
    failing = tmp_path / "failing"
    failing.mkdir()
    (failing / "helm").write_text("#!/bin/sh\nexit 1\n")
    (failing / "helm").chmod(0o755)
    assert guided.follow(account, first=failing) != 0
    assert guided.asked == []
    assert not (tmp_path / "yard.kubeconfig").exists()
    guided.kube.must("DELETE", f"/api/v1/namespaces/{guided.namespace}")


def test_the_guides_commands_remove_everything(case: Case):
    case.wait_running(case.start())
    found = re.search(r"```sh\n(OURS=.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].replace("=ID", f"={case.settings['installation']}").splitlines()
    wanted = (line for line in lines if not any(word in line for word in NOT_ALONE))
    assert as_pasted("\n".join(["set -euo pipefail", *wanted]), case.kube) == 0
    namespace = f"/api/v1/namespaces/{case.namespace}"
    wait_until(lambda: case.kube.api("GET", namespace)[0] == 404, 30, "the namespace's end")
