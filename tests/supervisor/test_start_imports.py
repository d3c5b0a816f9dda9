"""The packages that a process imports at its start: none that only some clusters, storage backends or pages need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers

LATER = (
    "aiohttp",
    "azure",
    "kubernetes",
    "netapp_ontap",
    "numpy",
    "obstore",
    "plotly",
    "pynvml",
    "rich",
    "torch",
)
ASK = """
import importlib, sys
import django
django.setup()
importlib.import_module(sys.argv[1])
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


@pytest.mark.parametrize(
    "module", ["controlplane.supervisor.prepare", "controlplane.asgi", "controlplane.loop.runner"]
)
def test_a_start_imports_no_package_that_it_may_not_need(module: str, tmp_path: Path):
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "TRAINYARD_STATE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK, module, *LATER],
        env=environment, cwd=servers.CHECKOUT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == []
