"""JupyterLab on the pod's port: the image `jupyter`, an interactive job with the pod's GPUs.

Requests that come through the control plane carry the job's service token in a header, so users type none. Other
processes of the machine that connect to the port directly need the token.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_server.auth import IdentityProvider
from jupyterlab.labapp import LabApp
from tornado.web import RequestHandler

TOKEN_VARIABLE = "TRAINYARD_SERVICE_TOKEN"
TOKEN_HEADER = "X-Trainyard-Service-Token"
# Nothing is fetched from a foreign host: no news (CONFIG turns off the question), no check for updates, no catalogue of
# extensions.
CONFIG = Path(__file__).resolve().parent / "config"
OFFLINE = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)


class ServiceIdentity(IdentityProvider):
    """Accepts the service token in the control plane's header, else where Jupyter expects a token."""

    def get_token(self, handler: RequestHandler) -> str | None:
        token: str | None = handler.request.headers.get(TOKEN_HEADER) or super().get_token(handler)
        return token


def main() -> int:
    """Serve the working directory until SIGTERM. Exit code 2 without a declared port or a token."""
    port, token = os.environ.get("PORT"), os.environ.get(TOKEN_VARIABLE)
    if not port or not token:
        print("JupyterLab needs a port to serve: submit the job with --port 8888", file=sys.stderr)
        return 2
    # Not on the command line, which other users of the machine can read.
    os.environ["JUPYTER_TOKEN"] = token
    os.environ["JUPYTER_CONFIG_PATH"] = str(CONFIG)
    LabApp.launch_instance(
        [
            f"--ServerApp.port={port}",
            "--ServerApp.ip=127.0.0.1",
            # Another port would not be the one that the control plane forwards to.
            "--ServerApp.port_retries=0",
            "--ServerApp.open_browser=False",
            "--ServerApp.allow_root=True",
            "--ServerApp.quit_button=False",
            f"--ServerApp.root_dir={os.getcwd()}",
            "--ServerApp.identity_provider_class=workloads.jupyter.serve.ServiceIdentity",
            *OFFLINE,
            *sys.argv[1:],
        ]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
