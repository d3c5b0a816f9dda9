"""A control plane that does not stop says in the test's failure what it was doing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers, stuck
from tests.waiting import wait_until

DEAF = """
import signal, subprocess, sys, time

def wait_for_ever():
    time.sleep(3600)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("child", child.pid, flush=True)
wait_for_ever()
"""


def test_a_control_plane_that_does_not_stop_is_ended_and_explained(tmp_path: Path):
    console = tmp_path / "console.log"
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "web.log").write_text("the last line of the web server\n")
    with console.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DEAF], stdout=log, stderr=log, env=os.environ | stuck.STACKS
        )
    wait_until(lambda: b"child" in console.read_bytes(), what="its start")
    below = servers.descendants(process.pid)
    running = servers.ControlPlane("", "", tmp_path, process, {})
    with pytest.raises(AssertionError) as failure:
        running.stop(seconds=0.01, number=15)
    said = str(failure.value)
    assert "after SIGTERM" in said
    assert "in wait_for_ever" in said, "Python's stack"
    assert f"thread {process.pid} in " in said, "the kernel's"
    assert "SigIgn" in said
    assert "the last line of the web server" in said
    assert process.poll() is not None
    assert not any(child.is_running() and child.status() != "zombie" for child in below)
