"""What the guide tells an admin of a cluster to type, word by word: an account for us, and its end."""

import os
import re
import secrets
import subprocess
from pathlib import Path

import pytest

from controlplane.engines.kubernetes.checks import OK, check_cluster
from tests.kube import KubeCluster
from tests.kubernetes.chart import KUBE_VERSION
from tests.kubernetes.engine_case import Case
from tests.servers import CHECKOUT
from tests.waiting import wait_until

GUIDE = CHECKOUT / "docs/howto/kubernetes.md"
NOT_ALONE = ("queues.scheduling.run.ai", "clusterroles")  # KAI is not here; the other tests need the roles


def blocks(heading: str) -> list[str]:
    """The commands of a section."""
    section = re.split(r"^#", GUIDE.read_text().partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def bash(script: str, kube: KubeCluster, directory: Path = CHECKOUT) -> None:
    """Run commands as the cluster's admin."""
    programs = Path(kube.programs["kubectl"]).parent
    environment = {
        **os.environ,
        "KUBECONFIG": str(kube.kubeconfig),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    command = ["bash", "-euo", "pipefail", "-c", script]
    subprocess.run(command, check=True, timeout=60, env=environment, cwd=directory)


@pytest.mark.parametrize("has_end", [True, False])
def test_the_guides_account_has_all_rights_that_are_needed(kube: KubeCluster, tmp_path: Path, has_end: bool):
    account, renewal, endless = blocks("### A kubeconfig of its own")
    script = account if has_end else account + endless + renewal.splitlines()[0].replace('"$(', '"$TOKEN" #')
    namespace = f"guide-{secrets.token_hex(3)}"
    script = re.sub(r"(-n|namespace:?) trainyard\b", rf"\1 {namespace}", script)
    script = script.replace("helm template", f"helm template --kube-version {KUBE_VERSION}")
    (tmp_path / "deploy").symlink_to(CHECKOUT / "deploy")
    bash(re.sub(r"^yard .*$", "", script, flags=re.MULTILINE), kube, tmp_path)
    kubeconfig = (tmp_path / "yard.kubeconfig").read_text()
    assert kube.token not in kubeconfig
    found = {check.name: check for check in check_cluster({"credentials": {"kubeconfig": kubeconfig}})}
    assert f"system:serviceaccount:{namespace}:yard-trainyard" in found["identity"].message
    assert found["rights"].outcome == OK
    kube.must("DELETE", f"/api/v1/namespaces/{namespace}")


def test_the_guides_commands_remove_everything(case: Case):
    case.wait_running(case.start())
    found = re.search(r"```sh\n(OURS=.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].replace("=ID", f"={case.settings['installation']}").splitlines()
    bash("\n".join(line for line in lines if not any(word in line for word in NOT_ALONE)), case.kube)
    namespace = f"/api/v1/namespaces/{case.namespace}"
    wait_until(lambda: case.kube.api("GET", namespace)[0] == 404, 30, "the namespace's end")
