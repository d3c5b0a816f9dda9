"""What the shim does not import: it is started once per pod, and every module delays that start."""

import subprocess
import sys

from controlplane.engines.local.shim_start import SHIM

SLOW = (
    "collections",
    "enum",
    "functools",
    "json",
    "re",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "typing",
)
ASK = f"""
import sys
sys.path.insert(0, {str(SHIM.parents[3])!r})
import controlplane.engines.local.shim
print(*(name for name in {SLOW} if name in sys.modules))
"""


def test_the_shim_imports_nothing_slow():
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ASK], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
