"""What the guide says about removing what a control plane has left in a cluster, word by word."""

import os
import re
import subprocess
from pathlib import Path

from tests.kubernetes.engine_case import Case
from tests.servers import CHECKOUT
from tests.waiting import wait_until

GUIDE = CHECKOUT / "docs/howto/kubernetes.md"
NOT_ALONE = ("queues.scheduling.run.ai", "clusterroles")  # KAI is not here; the other tests need the roles


def test_the_guides_commands_remove_everything(case: Case):
    case.wait_running(case.start())
    found = re.search(r"```sh\n(OURS=.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].replace("=ID", f"={case.settings['installation']}").splitlines()
    script = "\n".join(line for line in lines if not any(word in line for word in NOT_ALONE))
    programs = Path(case.kube.programs["kubectl"]).parent
    environment = {
        **os.environ,
        "KUBECONFIG": str(case.kube.kubeconfig),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, timeout=60, env=environment)
    namespace = f"/api/v1/namespaces/{case.namespace}"
    wait_until(lambda: case.kube.api("GET", namespace)[0] == 404, 30, "the namespace's end")
