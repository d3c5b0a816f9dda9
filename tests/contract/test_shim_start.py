"""The shim that the local engine starts in advance: it serves one pod, and nothing depends on it."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from controlplane.engines import base
from controlplane.engines.local.records import PodDir
from controlplane.engines.local.shim_start import SHIM
from tests.contract.harness import EngineCase, make_case
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    case.wait_end(case.start("true"))
    yield case
    case.engine.close()
    case.close()


def spares(parent: int) -> list[psutil.Process]:
    """The spare shims that are children of this process and have not ended."""
    children = psutil.Process(parent).children()
    return [
        child
        for child in children
        if child.status() != psutil.STATUS_ZOMBIE and child.cmdline()[3:5] == [str(SHIM), "--spare"]
    ]


def test_a_pod_is_given_to_the_spare_and_the_process_list_names_it(case: EngineCase):
    (spare,) = spares(os.getpid())
    spec = case.start("sh", "-c", "sleep 1000")
    (next_spare,) = spares(os.getpid())
    assert next_spare.pid != spare.pid
    pod_dir = PodDir(case.state_dir / "pods" / spec.name)
    started = pod_dir.start_record()
    assert started is not None
    assert psutil.Process(started.shim_pid).cmdline()[3:6] == [str(SHIM), "--spare", str(pod_dir.path)]
    case.engine.stop(spec.name, 0)
    case.wait_end(spec)


def test_many_pods_at_once_need_more_than_the_spare(case: EngineCase):
    specs = [case.start("echo", f"ran {number}") for number in range(4)]
    for number, spec in enumerate(specs):
        assert case.wait_end(spec).state == base.SUCCEEDED
        assert case.text(spec) == f"ran {number}\n"


def test_a_killed_spare_costs_nothing_but_its_time(case: EngineCase):
    (spare,) = spares(os.getpid())
    spare.send_signal(signal.SIGKILL)
    spec = case.start("echo", "ran")
    assert case.wait_end(spec).state == base.SUCCEEDED
    assert case.text(spec) == "ran\n"


def test_close_ends_the_spare_and_a_late_start_leaves_none(case: EngineCase):
    case.engine.close()
    assert spares(os.getpid()) == []
    case.wait_end(case.start("true"))
    assert spares(os.getpid()) == []


def test_the_spare_ends_with_a_killed_control_plane(tmp_path: Path):
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from controlplane.engines.local.shim_start import ShimStarter
        starter = ShimStarter()
        starter._keep_spare()
        print(starter._spare.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert result.returncode == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(int(result.stdout)), what="the spare's end")
