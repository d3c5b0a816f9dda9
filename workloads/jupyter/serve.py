"""JupyterLab on the pod's port: the image `jupyter`, for an interactive job with the pod's GPUs.

Requests that come through the control plane carry the job's service token in a header, so users need not
enter one. Other processes of the machine that connect to the port directly need the token.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOKEN_VARIABLE = "TRAINYARD_SERVICE_TOKEN"
# Nothing is fetched from other hosts: no news (CONFIG disables the question), no update check, no extension
# catalogue.
CONFIG = Path(__file__).resolve().parent / "config"
OFFLINE = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)


def main() -> int:
    """Serve the working directory until SIGTERM. Return 2 at once if the environment has no port or token."""
    port, token = os.environ.get("PORT"), os.environ.get(TOKEN_VARIABLE)
    if not port or not token:
        print("JupyterLab needs a port to serve: submit the job with --port 8888", file=sys.stderr)
        return 2
    # Not before the check: it takes more than a second of CPU.
    from jupyterlab.labapp import LabApp

    # Set here and not on the command line, which other users of the machine can read.
    os.environ["JUPYTER_TOKEN"] = token
    os.environ["JUPYTER_CONFIG_PATH"] = str(CONFIG)
    LabApp.launch_instance(
        [
            f"--ServerApp.port={port}",
            "--ServerApp.ip=127.0.0.1",
            # The control plane forwards to this port only, so do not try others.
            "--ServerApp.port_retries=0",
            "--ServerApp.open_browser=False",
            "--ServerApp.allow_root=True",
            "--ServerApp.quit_button=False",
            f"--ServerApp.root_dir={os.getcwd()}",
            "--ServerApp.identity_provider_class=workloads.jupyter.identity.ServiceIdentity",
            *OFFLINE,
            *sys.argv[1:],
        ]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
