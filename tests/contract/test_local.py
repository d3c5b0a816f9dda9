"""What only pods that are real processes can show: adoption, exact output, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import EngineRefused, PodSpec
from controlplane.engines.local import processes
from controlplane.engines.local.engine import LocalEngine
from controlplane.engines.local.records import CONTROL, ExitRecord, PodDir, StartRecord
from controlplane.engines.local.shim_start import SHIM, ShimStarter
from tests.contract.harness import SETTINGS, EngineCase, make_case
from tests.waiting import patience, wait_until

ROOT = Path(__file__).resolve().parents[2]
FOREVER = ("sleep", "1000")


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def shell(case: EngineCase, script: str, **fields: object) -> PodSpec:
    return case.start("bash", "-c", script, **fields)


def started(case: EngineCase, spec: PodSpec) -> StartRecord:
    record = PodDir(case.state_dir / "pods" / spec.name).start_record()
    assert record is not None
    return record


def lives(pid: int) -> bool:
    return processes.find(pid) is not None


def printed_pid(case: EngineCase, spec: PodSpec) -> int:
    """The number that the pod's script printed as its first line."""

    def first_line() -> str:
        return case.text(spec).partition("\n")[0].strip()

    return int(wait_until(first_line, what="a pid in the log"))


# Adoption


def start_elsewhere(case: EngineCase, spec: PodSpec) -> None:
    """Start the pod from another process, which is killed with SIGKILL right after."""
    program = textwrap.dedent("""
        import json, os, signal, sys
        from pathlib import Path
        from controlplane.engines.base import DeviceShare, PodSpec
        from controlplane.engines.local.engine import LocalEngine
        state_dir, settings, fields = json.loads(sys.argv[1])
        fields["devices"] = tuple(DeviceShare(**share) for share in fields["devices"])
        fields["command"], fields["args"], fields["ports"] = tuple(fields["command"]), (), ()
        LocalEngine(settings, Path(state_dir)).start(PodSpec(**fields))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    argument = json.dumps([str(case.state_dir), SETTINGS, asdict(spec)])
    result = subprocess.run([sys.executable, "-c", program, argument], cwd=ROOT, check=False)
    assert result.returncode == -signal.SIGKILL


def test_a_pod_outlives_its_starter_and_is_found_again(case: EngineCase):
    script = f"while [ ! -e {case.state_dir}/go ]; do sleep 0.02; done; echo on; echo err >&2; exit 7"
    spec = case.spec("bash", "-c", script)
    start_elsewhere(case, spec)
    report = case.report(spec)
    assert report is not None
    assert report.state == base.RUNNING
    (case.state_dir / "go").touch()
    report = case.wait_end(spec)
    assert (report.state, report.reason, report.exit_code) == (base.FAILED, base.EXIT_CODE, 7)
    assert sorted(case.text(spec).split()) == ["err", "on"]
    assert case.engine.read_logs(spec.name, 0, 10).complete


def test_an_end_while_nobody_looks_is_kept(case: EngineCase):
    spec = case.spec("bash", "-c", "echo done; exit 5")
    start_elsewhere(case, spec)
    report = case.wait_end(spec)
    assert report.exit_code == 5
    assert case.text(spec) == "done\n"


def test_another_engine_object_stops_the_pod(case: EngineCase):
    spec = case.start(*FOREVER)
    LocalEngine(SETTINGS, case.state_dir).stop(spec.name, 5)
    assert case.wait_end(spec).reason == base.STOPPED


def test_starting_again_from_another_engine_starts_nothing(case: EngineCase):
    spec = case.start(*FOREVER)
    first = started(case, spec)
    LocalEngine(SETTINGS, case.state_dir).start(spec)
    assert started(case, spec) == first


def test_no_zombie_is_left_in_the_control_plane(case: EngineCase):
    case.wait_end(case.start("true"))
    try:
        # a look that takes nothing away: a cluster of other tests may be a living child of this process
        zombie = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        zombie = None
    assert zombie is None


# Output


def test_output_is_kept_byte_by_byte(case: EngineCase):
    spec = shell(case, r"printf 'a\0b\r\n\377\376 \xe2\x82\xac\n<script>x</script>\n  spaces \t\nno newline'")
    case.wait_end(spec)
    expected = "a\0b\r\n\ufffd\ufffd \u20ac\n<script>x</script>\n  spaces \t\nno newline"
    assert case.text(spec) == expected
    stored = Path(spec.log_path).read_bytes()
    assert b"a\0b\r\n" in stored
    assert b"\xff\xfe \xe2\x82\xac\n" in stored


def test_a_line_of_ten_megabytes_is_kept_in_numbered_pieces(case: EngineCase):
    size = 10_000_000
    spec = case.start(sys.executable, "-c", f"print('x' * {size}); print('after')")
    case.wait_end(spec)
    lines = case.engine.read_logs(spec.name, 0, 50).lines
    assert [line.n for line in lines] == list(range(1, 51))
    assert max(len(line.text) for line in lines) == 64 * 1024
    assert case.text(spec) == "x" * size + "\nafter\n"


def test_both_streams_are_told_apart(case: EngineCase):
    spec = shell(case, "echo out; echo err >&2")
    case.wait_end(spec)
    lines = case.engine.read_logs(spec.name, 0, 10).lines
    assert {(line.stream, line.text) for line in lines} == {("stdout", "out"), ("stderr", "err")}


def test_a_prompt_without_newline_is_seen_while_the_pod_runs(case: EngineCase):
    spec = shell(case, "printf 'name? '; sleep 1000")
    wait_until(lambda: case.text(spec) == "name? ", what="the prompt")


def test_much_output_is_complete_and_in_order(case: EngineCase):
    spec = shell(case, "seq 1 200000")
    case.wait_end(spec)
    lines, page = [], case.engine.read_logs(spec.name, 0, 50_000)
    while page.lines:
        lines += page.lines
        page = case.engine.read_logs(spec.name, page.next_offset, 50_000)
    assert [int(line.text) for line in lines] == list(range(1, 200_001))
    assert page.complete


def test_endless_output_is_cut_in_the_middle_and_says_so(tmp_path: Path):
    case = make_case("local", tmp_path)
    case.engine = LocalEngine({**SETTINGS, "log_most_bytes": 100_000}, tmp_path)
    spec = shell(case, "seq 1 500000; echo the reason; exit 9")
    assert case.wait_end(spec).exit_code == 9
    page = case.engine.read_logs(spec.name, 0, 1_000_000)
    texts = [line.text for line in page.lines]
    assert texts[:3] == ["1", "2", "3"]
    assert texts[-2:] == ["500000", "the reason"]
    assert [line.n for line in page.lines] == list(range(1, len(texts) + 1))
    (gap,) = page.gaps
    written = "".join(f"{number}\n" for number in range(1, 500_001)) + "the reason\n"
    assert len(case.text(spec)) + int(gap.message.split()[0]) in range(len(written), len(written) + 2)
    assert Path(spec.log_path).stat().st_size < 10_000_000


# Ends


@pytest.mark.parametrize(
    ("command", "reason", "exit_code", "words"),
    [
        (("no-such-program", "x"), base.COMMAND_NOT_FOUND, 127, "no-such-program"),
        (("/etc/passwd",), base.COMMAND_NOT_EXECUTABLE, 126, "/etc/passwd"),
        (("bash", "-c", "kill -SEGV $$"), base.KILLED, 139, "SIGSEGV"),
        (("bash", "-c", "kill -9 $$"), base.KILLED, 137, "SIGKILL"),
        (("bash", "-c", "exit 255"), base.EXIT_CODE, 255, "255"),
    ],
)
def test_a_failure_says_why(case: EngineCase, command: tuple, reason: str, exit_code: int, words: str):
    report = case.wait_end(case.start(*command))
    assert (report.state, report.reason, report.exit_code) == (base.FAILED, reason, exit_code)
    assert words in report.message


def test_a_missing_working_directory_is_named(case: EngineCase):
    report = case.wait_end(case.start("true", working_dir="/no/such/place"))
    assert report.reason == base.WORKING_DIR_MISSING
    assert "/no/such/place" in report.message


def test_stop_lets_the_command_finish_within_its_grace(case: EngineCase):
    spec = shell(case, "trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.02; done")
    wait_until(lambda: "ready" in case.text(spec), what="the trap")
    case.engine.stop(spec.name, 20)
    report = case.wait_end(spec)
    assert (report.state, report.reason, report.exit_code) == (base.SUCCEEDED, base.STOPPED, 0)
    assert "saved" in case.text(spec).split()


def test_a_training_under_a_shell_has_the_grace_too(case: EngineCase):
    train = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('saved'),"
    )
    train += " sys.exit(0))); print('ready'); time.sleep(1000)"
    spec = shell(case, f'python -c "{train}"; true')
    wait_until(lambda: "ready" in case.text(spec), what="the training")
    case.engine.stop(spec.name, 20)
    report = case.wait_end(spec)
    assert (report.reason, report.exit_code) == (base.STOPPED, 143)
    assert "saved" in case.text(spec).split()


def test_a_command_that_ignores_the_stop_is_killed_after_its_grace(case: EngineCase):
    spec = shell(case, "trap '' TERM; echo ready; while true; do sleep 0.02; done")
    wait_until(lambda: "ready" in case.text(spec), what="the trap")
    case.engine.stop(spec.name, 1000)
    assert case.report(spec).state == base.RUNNING
    case.engine.stop(spec.name, 0)
    report = case.wait_end(spec)
    assert (report.reason, report.exit_code) == (base.STOPPED, 137)


def test_children_and_daemons_end_with_the_pod(case: EngineCase):
    spec = shell(case, "setsid bash -c 'echo $$; exec sleep 1000' & sleep 1000 & wait -n")
    daemon = printed_pid(case, spec)
    case.engine.stop(spec.name, 5)
    case.wait_end(spec)
    assert not lives(daemon)


def test_a_daemon_that_holds_the_output_does_not_keep_the_pod(case: EngineCase):
    script = "setsid -f env -i bash -c 'trap \"\" TERM HUP; echo $$; while true; do sleep 1; done'; sleep 0.3"
    begin = time.monotonic()
    spec = shell(case, script)
    daemon = printed_pid(case, spec)
    report = case.wait_end(spec)
    assert (report.state, report.exit_code) == (base.SUCCEEDED, 0)
    assert not lives(daemon)
    assert time.monotonic() - begin < patience(5)


def test_many_children_end_with_the_pod(case: EngineCase):
    spec = shell(case, "for i in $(seq 60); do setsid sleep 1000 & done; echo $$; wait")
    session = printed_pid(case, spec)
    wait_until(lambda: len(processes.descendants(session, processes.table())) == 60, what="sixty children")
    children = processes.descendants(session, processes.table())
    case.engine.stop(spec.name, 5)
    case.wait_end(spec)
    assert not any(map(lives, children))


# Lost shims and forged records


def test_a_killed_shim_takes_the_pod_with_it(case: EngineCase):
    spec = shell(case, "setsid sleep 1000 & echo $!; sleep 1000")
    daemon, record = printed_pid(case, spec), started(case, spec)
    os.kill(record.shim_pid, signal.SIGKILL)
    report = case.wait_end(spec)
    assert (report.state, report.reason, report.exit_code) == (base.FAILED, base.SHIM_LOST, None)
    assert not lives(record.pid)
    assert not lives(daemon)
    page = case.engine.read_logs(spec.name, 0, 10)
    assert page.complete
    assert len(page.gaps) == 1


def test_the_kernel_ends_the_command_of_a_killed_shim_with_nobody_looking(case: EngineCase):
    record = started(case, case.start(*FOREVER))
    os.kill(record.shim_pid, signal.SIGKILL)
    wait_until(lambda: not lives(record.pid), what="the end of the command")


def test_an_end_in_good_order_is_not_taken_for_a_loss(case: EngineCase, monkeypatch):
    """The shim may write its exit record and go between two looks of the engine."""
    spec = case.start("bash", "-c", "exit 4")
    expected = case.wait_end(spec)
    wait_until(lambda: not started(case, spec).is_shim_alive(), what="the shim's end")
    looks, looks_here, original = iter([None]), threading.get_ident(), PodDir.exit_record

    def exit_record(pod: PodDir) -> ExitRecord | None:
        is_ours = threading.get_ident() == looks_here  # the other engine's threads look too
        return next(looks, original(pod)) if is_ours else original(pod)

    monkeypatch.setattr(PodDir, "exit_record", exit_record)
    assert LocalEngine(SETTINGS, case.state_dir).pods() == (expected,)


def test_a_pod_is_not_proven_gone_while_a_process_of_it_is_left(case: EngineCase, monkeypatch):
    spec = shell(case, "setsid sleep 1000 & echo $!; sleep 1000")
    daemon = printed_pid(case, spec)
    monkeypatch.setattr(processes, "kill", lambda pids: None)
    os.kill(started(case, spec).shim_pid, signal.SIGKILL)
    report = wait_until(lambda: (r := case.report(spec)) and r.state == base.FAILED and r, what="the loss")
    assert lives(daemon)
    assert not report.is_proven_gone
    with pytest.raises(EngineRefused):
        case.engine.forget(spec.name)
    monkeypatch.undo()
    assert case.wait_end(spec).is_proven_gone
    assert not lives(daemon)


def test_a_shim_that_hangs_is_killed_once_the_grace_is_over(case: EngineCase):
    spec = case.start(*FOREVER)
    record = started(case, spec)
    os.kill(record.shim_pid, signal.SIGSTOP)
    case.engine.stop(spec.name, 0)
    stop = case.state_dir / "pods" / spec.name / "stop"
    os.utime(stop, (0, 0))
    case.engine.stop(spec.name, 0)
    assert case.wait_end(spec).reason == base.SHIM_LOST
    assert not lives(record.pid)


def test_a_stranger_with_the_pid_of_a_pod_is_never_touched(case: EngineCase):
    spec = case.start("true")
    case.wait_end(spec)
    pod = PodDir(case.state_dir / "pods" / spec.name)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        forged = asdict(started(case, spec)) | {"shim_pid": stranger.pid, "pid": stranger.pid}
        (pod.path / "start").write_text(json.dumps(forged))
        (pod.path / "exit").unlink()
        engine = LocalEngine(SETTINGS, case.state_dir)
        engine.stop(spec.name, 0)
        os.utime(pod.path / "stop", (0, 0))
        engine.stop(spec.name, 0)
        (report,) = engine.pods()
        assert (report.state, report.reason, report.is_proven_gone) == (base.FAILED, base.SHIM_LOST, True)
        assert stranger.poll() is None
        stranger.kill()


def test_a_pod_from_before_a_restart_of_the_machine_is_lost(case: EngineCase):
    spec = case.start("true")
    case.wait_end(spec)
    # It holds the pod's lock until it has ended.
    wait_until(lambda: not started(case, spec).is_shim_alive(), what="the shim's end")
    pod = PodDir(case.state_dir / "pods" / spec.name)
    (pod.path / "start").write_text(json.dumps(asdict(started(case, spec)) | {"boot_id": "another"}))
    (pod.path / "exit").unlink()
    (report,) = LocalEngine(SETTINGS, case.state_dir).pods()
    assert (report.state, report.reason, report.is_proven_gone) == (base.FAILED, base.NODE_LOST, True)


def test_a_start_that_was_cut_off_is_finished_by_the_next(case: EngineCase, monkeypatch):
    spec = case.spec("true")
    with monkeypatch.context() as patch:
        patch.setattr(ShimStarter, "start", lambda self, pod: None)
        case.engine.start(spec)
    assert case.report(spec).state == base.STARTING
    case.engine.start(spec)
    assert case.wait_end(spec).state == base.SUCCEEDED


def test_a_stop_between_two_tries_to_start_wins(case: EngineCase, monkeypatch):
    spec = case.spec("echo", "ran")
    with monkeypatch.context() as patch:
        patch.setattr(ShimStarter, "start", lambda self, pod: None)
        case.engine.start(spec)
    case.engine.stop(spec.name, 5)
    case.engine.start(spec)
    assert case.wait_end(spec).reason == base.STOPPED
    assert case.text(spec) == ""


def test_the_shim_itself_never_runs_a_pod_twice(case: EngineCase):
    spec = case.start("echo", "ran")
    case.wait_end(spec)
    pod_dir = case.state_dir / "pods" / spec.name
    for _ in range(2):
        subprocess.run([sys.executable, "-I", "-S", SHIM, pod_dir], check=True)
    wait_until(lambda: not shims_of(pod_dir), what="the end of the shims")
    assert case.text(spec) == "ran\n"


def shims_of(pod_dir: Path) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"shim.py {pod_dir}"], capture_output=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def test_broken_pipes_end_programs_as_usual(case: EngineCase):
    spec = shell(case, "yes | head -n 1")
    case.wait_end(spec)
    assert case.text(spec) == "y\n"


def test_a_shim_that_ends_in_the_moment_of_its_stop_fails_no_stop(tmp_path, monkeypatch):
    pod = PodDir(tmp_path / "pod")
    pod.path.mkdir()
    os.mkfifo(pod.path / CONTROL)
    shim = os.open(pod.path / CONTROL, os.O_RDONLY | os.O_NONBLOCK)
    really_open = os.open

    def open_and_end(path, *arguments, **more):
        found = really_open(path, *arguments, **more)
        if path == pod.path / CONTROL:  # other threads open files too
            os.close(shim)
        return found

    monkeypatch.setattr(os, "open", open_and_end)
    pod.request_stop(10)
    assert pod.stop_grace_seconds() == 10
