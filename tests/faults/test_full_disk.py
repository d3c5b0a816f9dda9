"""A disk that is full for a while costs output, shown as a gap, and nothing else.

RLIMIT_FSIZE of one process plays the full disk: writes stop in the middle of a record, as they do there.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.local.output import Output
from controlplane.engines.local.records import PodDir
from controlplane.logstore.reader import read_page
from controlplane.logstore.writer import STDOUT
from controlplane.supervisor.children import LARGEST_LOG_BYTES, Child
from controlplane.supervisor.programs import Program
from tests.contract.harness import EngineCase, make_case
from tests.waiting import wait_until


@contextmanager
def full_at(size: int, pid: int = 0) -> Iterator[None]:
    """No file of the process may grow beyond `size` bytes."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def test_a_record_cut_by_a_full_disk_is_taken_back_and_the_loss_is_told(tmp_path: Path):
    path = tmp_path / "log"
    output = Output(str(path), 1 << 20)
    output.store(STDOUT, b"first\nhalf a ")
    with full_at(path.stat().st_size + 40):
        output.store(STDOUT, b"line\nlost\n" + b"x" * 100 + b"\n")
        output.store(STDOUT, b"lost too\n")
    output.store(STDOUT, b"last\n")
    output.end("completed 0")
    page = read_page(str(path), 0, 100)
    assert [(line.n, line.text) for line in page.lines] == [(1, "first"), (2, "half a "), (3, "last")]
    assert [(gap.after_n, gap.message) for gap in page.gaps] == [(2, "120 bytes of output were not kept")]
    assert page.complete


def test_a_pod_that_ends_on_a_full_disk_keeps_its_exit_code(case: EngineCase, tmp_path: Path):
    go = tmp_path / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.02; done; echo lost; exit 5"
    spec = case.start("sh", "-c", script)
    log = Path(spec.log_path)
    wait_until(lambda: log.exists() and b"before" in log.read_bytes(), what="the first line")
    pod = PodDir(tmp_path / "pods" / spec.name)
    started = pod.start_record()
    assert started is not None
    with full_at(0, started.shim_pid):
        go.touch()
        wait_until(lambda: not Path(f"/proc/{started.pid}").exists(), what="the command's end")
        report = case.report(spec)
        assert report is not None
        assert (report.state, report.is_proven_gone) == (base.RUNNING, False)
    report = case.wait_end(spec)
    assert (report.reason, report.exit_code) == (base.EXIT_CODE, 5)
    page = read_page(spec.log_path, 0, 100)
    assert [line.text for line in page.lines] == ["before"]
    assert [gap.message for gap in page.gaps] == ["5 bytes of output were not kept"]
    assert page.complete


def test_a_start_that_finds_no_room_leaves_nothing_behind(case: EngineCase, tmp_path: Path):
    spec = case.spec("true", ports=(8888,))
    with full_at(100), pytest.raises(OSError, match="File too large"):
        case.engine.start(spec)
    assert [*(tmp_path / "pods").iterdir(), *(tmp_path / "ports").iterdir()] == []
    case.engine.start(spec)
    assert case.wait_end(spec).exit_code == 0


def test_a_stop_that_finds_no_room_leaves_nothing_behind(case: EngineCase, tmp_path: Path):
    spec = case.start("sleep", "1000")
    before = sorted(path.name for path in (tmp_path / "pods" / spec.name).iterdir())
    with full_at(0), pytest.raises(OSError, match="File too large"):
        case.engine.stop(spec.name, 1)
    assert sorted(path.name for path in (tmp_path / "pods" / spec.name).iterdir()) == before


def test_the_supervisor_keeps_going_when_an_old_log_finds_no_room(tmp_path: Path):
    child = Child(Program("web", ("true",), {}), tmp_path)
    child.log_path.write_bytes(b"line\n" * (LARGEST_LOG_BYTES // 5 + 1))
    with full_at(1 << 20):
        child.cap_log()
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("web.log", 0)]
