"""One child: restarted after a death, ended on request, its log kept small."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from controlplane.supervisor import children, supervise
from controlplane.supervisor.children import Child
from controlplane.supervisor.programs import Program
from tests.waiting import wait_until


def child_of(directory: Path, *arguments: str) -> Child:
    return Child(Program("probe", arguments, os.environ), directory)


def test_a_child_that_dies_at_once_waits_longer_each_time(tmp_path: Path) -> None:
    child = child_of(tmp_path, "/bin/sh", "-c", "exit 3")
    pauses = []
    for now in (100.0, 200.0, 300.0):
        child.start(now)
        ending = wait_until(lambda now=now: child.notice_death(now + 1), what="the death")
        assert ending.startswith("probe ended with code 3; starting it again in")
        pauses.append(round(child.start_at - now - 1, 3))
    assert pauses == [0.2, 0.4, 0.8]


def test_the_pause_has_a_bound(tmp_path: Path) -> None:
    child = child_of(tmp_path, "/bin/true")
    for _ in range(9):
        child.start(100.0)
        wait_until(lambda: child.notice_death(100.0), what="the death")
    assert child.start_at == 100.0 + children.LONGEST_PAUSE_SECONDS


def test_a_child_that_lived_long_starts_again_at_once(tmp_path: Path) -> None:
    child = child_of(tmp_path, "/bin/sleep", "60")
    child.start(100.0)
    child.send(signal.SIGKILL)
    ending = wait_until(lambda: child.notice_death(100.0 + children.STEADY_SECONDS), what="the death")
    assert ending == "probe was killed by SIGKILL; starting it again"
    assert child.start_at == 100.0 + children.STEADY_SECONDS


def test_who_ignores_sigterm_is_killed_after_the_grace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    child = child_of(tmp_path, sys.executable, "-c", deaf)
    child.start(100.0)
    wait_until(lambda: child.log_path.read_text() == "deaf\n", what="the child's start")
    process = child.process
    supervise._end([child], 0.1)
    assert process is not None
    assert process.returncode == -signal.SIGKILL
    assert "probe did not end" in capsys.readouterr().out


def test_a_log_beyond_its_size_is_cut_and_one_older_file_kept(tmp_path: Path) -> None:
    child = child_of(tmp_path, "/bin/true")
    child.log_path.write_bytes(b"x" * (children.LARGEST_LOG_BYTES + 1))
    child.cap_log()
    assert child.log_path.stat().st_size == 0
    assert (tmp_path / "probe.log.1").stat().st_size == children.LARGEST_LOG_BYTES + 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is Linux's")
def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from controlplane.supervisor.children import Child
        from controlplane.supervisor.programs import Program
        child = Child(Program("probe", ("/bin/sleep", "600"), os.environ), Path({str(tmp_path)!r}))
        child.start(0.0)
        print(child.process.pid, flush=True)
        signal.pause()
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        orphan = psutil.Process(int(supervisor.stdout.readline()))
        supervisor.kill()
    wait_until(
        lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, what="the child's end"
    )
