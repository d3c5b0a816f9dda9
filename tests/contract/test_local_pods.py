"""What a pod of the local engine finds around it, what its gauges say, and the shell into it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, EngineRefused, Mount, PodSpec
from controlplane.engines.local import gauges, processes
from controlplane.engines.local.records import PodDir
from controlplane.engines.local.shell import kill_session
from controlplane.logstore.progress import latest_progress
from tests.contract.harness import EngineCase, make_case
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOREVER = ("sleep", "1000")


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


@pytest.fixture
def private_umask() -> Iterator[None]:
    """The umask of the control plane, whose worker starts the pods."""
    former = os.umask(0o077)
    yield
    os.umask(former)


def shell(case: EngineCase, script: str, **fields: object) -> PodSpec:
    return case.start("bash", "-c", script, **fields)


# What a pod finds


def environment(case: EngineCase, **fields: object) -> dict[str, str]:
    spec = case.start("env", "-0", **fields)
    case.wait_end(spec)
    return dict(item.split("=", 1) for item in case.text(spec).split("\0") if "=" in item)


def test_a_pod_knows_who_it_is_and_what_it_holds(case: EngineCase):
    shares = (DeviceShare(2, 250, 8192), DeviceShare(5, 250, 8192))
    env = environment(case, devices=shares, attempt=3, rank=1, world_size=4, env={"BATCH_SIZE": "33"})
    assert env["BATCH_SIZE"] == "33"
    assert env["TRAINYARD_JOB"] == "hyper1"
    assert env["TRAINYARD_PROJECT"] == "team-a"
    assert (env["TRAINYARD_ATTEMPT"], env["TRAINYARD_RANK"], env["TRAINYARD_WORLD_SIZE"]) == ("3", "1", "4")
    assert env["TRAINYARD_GPU_DEVICES"] == "2,5"
    assert env["TRAINYARD_GPU_SHARE"] == "0.25"
    assert env["TRAINYARD_GPU_MEMORY_MIB"] == "8192"
    assert env["CUDA_VISIBLE_DEVICES"] in {"2,5", ""}


def test_a_pod_cannot_claim_other_devices_by_its_environment(case: EngineCase):
    env = environment(case, env={"CUDA_VISIBLE_DEVICES": "7", "TRAINYARD_GPU_DEVICES": "7"})
    assert env["CUDA_VISIBLE_DEVICES"] in {"0", ""}
    assert env["TRAINYARD_GPU_DEVICES"] == "0"


def test_nothing_of_the_control_plane_is_in_the_environment(case: EngineCase, monkeypatch):
    monkeypatch.setenv("TRAINYARD_BOOTSTRAP_TOKEN", "canary-token")
    monkeypatch.setenv("DATABASE_URL", "canary-url")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    env = environment(case)
    assert not [value for value in env.values() if "canary" in value]
    assert str(ROOT) not in env["PYTHONPATH"].split(":")


def test_the_control_plane_cannot_be_imported_in_a_pod_but_the_workloads_can(case: EngineCase):
    script = (
        "import workloads, importlib.util as u; print(u.find_spec('controlplane'), u.find_spec('manage'))"
    )
    spec = case.start("python", "-c", script)
    assert case.wait_end(spec, 30).state == base.SUCCEEDED
    assert case.text(spec) == "None None\n"


def test_a_pod_has_the_usual_umask_in_a_private_directory(case: EngineCase, private_umask: None):
    spec = shell(case, "umask; touch made; stat -c %a made; stat -c %a .")
    case.wait_end(spec)
    assert case.text(spec).split() == ["0022", "644", "700"]


def test_a_shell_has_the_usual_umask(case: EngineCase, private_umask: None):
    spec = case.start(*FOREVER)
    case.wait_running(spec)
    terminal = case.engine.open_shell(spec.name, 80, 24)
    try:
        terminal.write(b"umask; exit\n")
        output = b""
        while data := terminal.read():
            output += data
        assert b"0022" in output
    finally:
        terminal.close()


def test_a_pod_has_a_directory_of_its_own_that_its_next_attempt_finds_again(case: EngineCase):
    first = shell(case, "pwd; echo step-7 > checkpoint")
    case.wait_end(first)
    directory = Path(case.text(first).strip())
    assert directory.is_relative_to(case.state_dir / "work" / first.job_id)
    second = shell(case, "cat checkpoint", job_id=first.job_id, attempt=2)
    case.wait_end(second)
    assert case.text(second) == "step-7\n"
    other = shell(case, "ls -A")
    case.wait_end(other)
    assert case.text(other) == ""
    case.engine.forget_job(first.job_id)
    assert not directory.exists()


def test_a_given_working_directory_is_used(case: EngineCase, tmp_path: Path):
    spec = shell(case, "pwd", working_dir=str(tmp_path))
    case.wait_end(spec)
    assert case.text(spec) == f"{tmp_path}\n"


def test_arguments_take_values_from_the_environment_like_kubernetes(case: EngineCase):
    spec = case.start("echo", "$(WHO)", "$(UNKNOWN)", "$$(WHO)", env={"WHO": "ana"})
    case.wait_end(spec)
    assert case.text(spec) == "ana $(UNKNOWN) $(WHO)\n"


def test_declared_ports_are_reached_at_addresses_of_their_own(case: EngineCase):
    server = ("python", "-m", "http.server", "--bind", "127.0.0.1", "$(PORT_8888)")
    specs = [case.start(*server, ports=(8888, 6006), rank=rank) for rank in range(3)]
    reports = [case.report(spec) for spec in specs]
    addresses = [address for report in reports for address in report.ports.values()]
    assert len(set(addresses)) == 6

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(reports[0].ports[8888]) == 0

    wait_until(answers, 20, "the pod's port")


def test_ports_are_given_back(case: EngineCase):
    spec = case.start("true", ports=(8888,))
    case.wait_end(spec)
    assert len(list((case.state_dir / "ports").iterdir())) == 1
    case.engine.forget(spec.name)
    assert not list((case.state_dir / "ports").iterdir())


@pytest.mark.parametrize(
    "fields", [{"env": {"A": "x\0y"}}, {"args": ("a\0",)}, {"env": {"A=B": "c"}}, {"env": {"": "c"}}]
)
def test_what_no_process_can_be_given_is_refused(case: EngineCase, fields: dict):
    with pytest.raises(EngineRefused) as refusal:
        case.start("true", **fields)
    assert refusal.value.code == base.INVALID_POD


def test_an_argument_too_long_for_the_system_fails_in_words(case: EngineCase):
    report = case.wait_end(case.start("true", args=("x" * 3_000_000,)))
    assert report.reason == base.COMMAND_NOT_EXECUTABLE
    assert "Argument list too long" in report.message


# Gauges


def test_a_simulated_device_does_what_its_pods_say(case: EngineCase):
    line = json.dumps({"trainyard": 1, "epoch": 1, "gpu_utilization": 0.8, "gpu_memory_mib": 3000})
    script = f"echo '{line}'; sleep 1000"
    half, quarter = DeviceShare(4, 500, 2000), DeviceShare(4, 250, 8192)
    specs = [shell(case, script, devices=(share,)) for share in (half, quarter)]
    for spec in specs:
        wait_until(lambda spec=spec: latest_progress(spec.log_path), what="the progress line")
    usage = next(r for r in case.engine.usage() if (r.node, r.device_index) == ("node-a", 4))
    assert usage.utilization == pytest.approx(0.8 * 0.5 + 0.8 * 0.25)
    assert usage.memory_used_mib == 2000 + 3000
    assert [pod.utilization for pod in usage.pods] == [0.8, 0.8]
    for spec in specs:
        case.engine.stop(spec.name, 0)
        case.wait_end(spec)
    assert {report.utilization for report in case.engine.usage()} == {0.0}


def test_what_a_pod_said_long_ago_counts_no_more(case: EngineCase, monkeypatch):
    line = json.dumps({"trainyard": 1, "gpu_utilization": 0.8})
    spec = shell(case, f"echo '{line}'; sleep 1000")
    wait_until(lambda: latest_progress(spec.log_path), what="the progress line")
    assert case.engine.usage()[0].utilization == 0.8
    monkeypatch.setattr(gauges, "STALE_AFTER_SECONDS", 0)
    assert case.engine.usage()[0].utilization == 0


# Shell


def test_a_shell_ends_with_its_pod(case: EngineCase):
    spec = case.start(*FOREVER)
    terminal = case.engine.open_shell(spec.name, 100, 30)
    terminal.write(b"stty size; sleep 1000\n")
    output = b""
    while b"30 100" not in output:
        output += terminal.read()
    case.engine.stop(spec.name, 5)
    case.wait_end(spec)
    while terminal.read():
        pass
    terminal.close()


def test_what_a_shell_starts_while_its_pod_is_killed_ends_too(case: EngineCase):
    spec = case.start(*FOREVER)
    token = PodDir(case.state_dir / "pods" / spec.name).prepared().token
    terminal = case.engine.open_shell(spec.name, 80, 24)
    try:
        terminal.write(b"for i in $(seq 400); do sleep 1000 & done\n")
        wait_until(
            lambda: len(processes.with_token(token, 0, processes.table())) > 10,
            what="some of the shell's programs",
        )
        case.engine.stop(spec.name, 0)
        case.wait_end(spec)
        assert processes.with_token(token, 0, processes.table()) == []
    finally:
        terminal.close()


def test_a_closed_shell_leaves_nothing(case: EngineCase):
    spec = case.start(*FOREVER)
    pod = PodDir(case.state_dir / "pods" / spec.name)

    def members() -> list[int]:
        return processes.with_token(pod.prepared().token, 0, processes.table())

    terminal = case.engine.open_shell(spec.name, 80, 24)
    try:
        terminal.write(b"trap '' HUP; (trap '' HUP; sleep 1000; true)\n")
        wait_until(lambda: len(members()) == 4, what="the pod's command, the shell, its subshell and a sleep")
    finally:
        terminal.close()
    assert terminal.close() is None
    wait_until(lambda: members() == [pod.start_record().pid], what="the end of all but the pod's command")


def test_a_process_that_is_forked_while_its_session_is_killed_ends_too(monkeypatch):
    pipe, forks = subprocess.PIPE, ["sh", "-c", "read _; sleep 54321 & echo $!; wait"]
    look, forked = processes.table, []

    def look_before_the_fork() -> list[processes.Process]:
        found = look()
        if not forked:
            leader.stdin.write(b"\n")
            forked.append(int(leader.stdout.readline()))
        return found

    monkeypatch.setattr(processes, "table", look_before_the_fork)
    with subprocess.Popen(forks, bufsize=0, stdin=pipe, stdout=pipe, start_new_session=True) as leader:
        kill_session(leader, processes.find(leader.pid).start_ticks)
    wait_until(lambda: processes.find(forked[0]) is None, what="the end of the forked process")


def test_a_directory_of_the_machine_is_seen_at_its_mount_path_in_the_pod_alone(
    case: EngineCase, tmp_path: Path
):
    host, place = tmp_path / "data", tmp_path / "mnt"
    host.mkdir()
    place.mkdir()
    (host / "here").write_text("from the host")
    words = f"cat {place}/here > {place}/copy; sleep 1000"
    spec = case.start("sh", "-c", words, mounts=(Mount(str(host), str(place)), Mount(str(host), str(host))))
    case.wait_running(spec)
    if os.geteuid() != 0:
        pytest.skip("mounting at another place needs root")
    wait_until(
        lambda: (host / "copy").exists() and (host / "copy").read_text() == "from the host", what="the copy"
    )
    assert list(place.iterdir()) == []
    process = case.engine.run_command(spec.name, ["cat", f"{place}/copy"])
    select.select([process.fileno()], [], [], 30)
    assert process.read() == (base.STDOUT, b"from the host")
    process.close()


def test_a_mount_of_a_directory_that_is_not_there_is_said(case: EngineCase, tmp_path: Path):
    spec = case.start("true", mounts=(Mount(str(tmp_path / "missing"), str(tmp_path / "place")),))
    ended = case.wait_end(spec)
    assert ended.reason == base.CONTAINER_NOT_CREATED
    assert "mounts could not be made: No such file or directory. " in ended.message
    assert f"Nothing is there to mount at {tmp_path}/place: is its disk mounted?" in ended.message
    assert "missing" not in ended.message, "the path on the node is the operators' own"


def test_a_pod_whose_volume_or_dataset_is_not_there_ends_without_fault_of_its_job(
    case: EngineCase, tmp_path: Path
):
    stored = Mount(str(tmp_path / "missing"), str(tmp_path / "place"), is_stored=True)
    ended = case.wait_end(case.start("true", mounts=(stored,)))
    assert ended.reason == base.NOT_MOUNTED
    assert ended.reason in base.DISRUPTIONS
    assert f"Nothing is there to mount at {tmp_path}/place: is its disk mounted?" in ended.message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
def test_a_missing_mount_point_is_made_in_the_pods_view_alone(case: EngineCase, tmp_path: Path):
    """At the root directory, and below a directory whose other files stay what they are."""
    host, around, top = tmp_path / "data", tmp_path / "around", Path(f"/mount-{tmp_path.name}")
    host.mkdir()
    around.mkdir()
    (around / "beside").write_text("beside")
    (around / "link").symlink_to("beside")
    nested = around / "deep" / "er"
    words = (
        f"cat {around}/link > {top}/one; echo two > {nested}/two; touch {around}/beside; ls -A / > {top}/root"
    )
    spec = case.start("sh", "-c", words, mounts=(Mount(str(host), str(top)), Mount(str(host), str(nested))))
    ended = case.wait_end(spec)
    assert (ended.exit_code, ended.message) == (0, "The command ended with exit code 0.")
    assert ((host / "one").read_text(), (host / "two").read_text()) == ("beside", "two\n")
    assert {*os.listdir("/"), top.name} == set((host / "root").read_text().split("\n")) - {""}
    assert not top.exists()
    assert sorted(path.name for path in around.iterdir()) == ["beside", "link"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
def test_a_read_only_mount_cannot_be_written(case: EngineCase, tmp_path: Path):
    host = tmp_path / "data"
    host.mkdir()
    (host / "here").write_text("kept")
    mounts = (Mount(str(host), str(host), is_read_only=True), Mount(str(tmp_path), "/mnt"))
    words = f"cat {host}/here > /mnt/copy; ! echo changed > {host}/here"
    ended = case.wait_end(case.start("sh", "-c", words, mounts=mounts))
    assert ended.exit_code == 0
    assert ((host / "here").read_text(), (tmp_path / "copy").read_text()) == ("kept", "kept")


def test_a_pod_that_has_ended_has_no_shell(case: EngineCase):
    spec = case.start("true")
    case.wait_end(spec)
    with pytest.raises(EngineRefused) as refusal:
        case.engine.open_shell(spec.name, 80, 24)
    assert refusal.value.code == base.POD_NOT_RUNNING


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (
            {"work_dir": "/no/such/place"},
            base.WORKING_DIR_MISSING,
            "/no/such/place is not usable: No such file",
        ),
        ({"work_dir": "/etc/passwd"}, base.WORKING_DIR_MISSING, "/etc/passwd is not usable: Not a directory"),
        ({"env": {"PATH": "/no/such/place"}}, base.COMMAND_NOT_FOUND, "The pod"),
        ({"env": {"PATH": os.defpath, "A": "x" * 200_000}}, base.COMMAND_NOT_EXECUTABLE, "exceed the system"),
    ],
)
def test_what_cannot_be_started_is_refused_in_words(case: EngineCase, monkeypatch, change, code, words):
    spec = case.start(*FOREVER)
    case.wait_running(spec)
    prepared, pid = case.engine._running(spec.name)
    monkeypatch.setattr(case.engine, "_running", lambda _name: (replace(prepared, **change), pid))
    opened = len(os.listdir("/proc/self/fd"))
    for start in (
        lambda: case.engine.run_command(spec.name, ["true"]),
        lambda: case.engine.open_shell(spec.name, 80, 24),
    ):
        with pytest.raises(EngineRefused, match=words) as refusal:
            start()
        assert refusal.value.code == code
    assert len(os.listdir("/proc/self/fd")) == opened
