"""`yard` against a real control plane: real server, real processes, the installed command line's own start."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import servers
from tests.cli.conftest import START
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.slow
Yard = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ControlPlane]:
    with servers.control_plane(tmp_path_factory.mktemp("state")) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def environment(running: servers.ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
    return {
        **kept,
        "TRAINYARD_URL": running.url,
        "TRAINYARD_TOKEN": running.token,
        "TRAINYARD_CONFIG": str(tmp_path_factory.mktemp("config") / "yard.json"),
    }


@pytest.fixture(scope="module")
def yard(environment: dict[str, str]) -> Yard:
    def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", START, *argv]
        given = {"env": environment, "timeout": patience(120), **options}
        return subprocess.run(command, capture_output=True, text=True, check=False, **given)

    made = run("project", "create", "cli", "--gpu-quota", "8")
    assert made.returncode == 0, made.stderr
    environment["TRAINYARD_PROJECT"] = "cli"
    return run


def waited() -> str:
    """The limit of `yard wait`, as busy as this machine is now."""
    return f"{patience(30):.0f}"


def test_doctor_finds_nothing_wrong(yard):
    ran = yard("doctor")
    assert ran.returncode == 0, ran.stdout
    assert "failed" not in ran.stdout


def test_submit_prints_the_object_that_rest_has(yard, running):
    submitted = json.loads(
        yard("submit", "same", "-i", "python", "-g", "1", "-o", "json", "--", "sleep", "60").stdout
    )
    assert yard("wait", "same", "--for", "running", "--timeout", waited()).returncode == 0
    _, there = running.call("GET", f"/api/v1/jobs/{submitted['id']}")
    described = json.loads(yard("describe", "job", "same", "-o", "json").stdout)
    for moving in (submitted, there, described):
        moving.pop("status")
    assert submitted == there == described
    assert yard("delete", "same").returncode == 0


def test_many_jobs_of_a_file_are_queued_in_its_order(yard, running):
    lines = "".join(f'{{"name": "sweep-{number}"}}\n' for number in range(120))
    shared = ("-i", "python", "--node-pool", "nowhere", "--", "true")
    ran = yard("submit", "--file", "-", "-o", "json", *shared, input=lines)
    assert (ran.returncode, ran.stderr) == (0, "120 of 120 jobs were submitted to cli\n")
    ids = [job["id"] for job in json.loads(ran.stdout)["results"]]
    _, listed = running.call("GET", "/api/v1/projects/cli/jobs?state=queued&limit=500&ordering=created_at")
    assert [job["id"] for job in listed["results"]] == ids
    again = yard("submit", "--file", "-", *shared, input=lines)
    assert (again.returncode, again.stderr.splitlines()[0]) == (5, "0 of 120 jobs were submitted to cli")
    assert "sweep-99.name: sweep-99 is an unfinished job of cli" in again.stderr
    assert yard("delete", *ids).returncode == 0


def test_wait_exits_with_the_jobs_own_code(yard):
    ran = yard("submit", "three", "-i", "python", "-g", "0.5", "--wait", "--", "sh", "-c", "exit 3")
    assert ran.returncode == 3, ran.stderr


def test_logs_are_every_byte_that_a_job_printed(yard):
    program = "import sys; print('x' * 200_000); print('é\\x1b[1mbold'); sys.stdout.flush(); sys.exit(4)"
    ran = yard("submit", "loud", "-i", "python", "-g", "0", "--logs", "--", "python", "-c", program)
    printed = "x" * 200_000 + "\né\x1b[1mbold\n"
    assert (ran.returncode, ran.stdout) == (4, printed)
    assert yard("logs", "loud").stdout == printed
    assert yard("logs", "loud", "-t", "1").stdout == "é\x1b[1mbold\n"


def test_following_survives_the_web_servers_death(yard, running, environment):
    """kill -9 of the web process in the middle: every line once, and the job's own end."""
    program = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.1; done"
    assert yard("submit", "steady", "-i", "ubuntu", "-g", "0", "--", "sh", "-c", program).returncode == 0
    command = [sys.executable, "-I", "-c", START, "logs", "steady", "-f"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        lines = [follower.stdout.readline()]
        running.children()["web"].kill()
        lines += follower.stdout.readlines()
        assert follower.wait(patience(60)) == 0
    assert lines == [f"line {number}\n" for number in range(1, 61)]
    wait_until(running.is_ready, timeout=30, what="the web server's return")


def test_a_shell_in_a_running_pod(yard):
    assert yard("submit", "box", "-i", "ubuntu", "-g", "1").returncode == 0
    assert yard("wait", "box", "--for", "running", "--timeout", waited()).returncode == 0
    ran = yard("bash", "box", input="echo $((40 + 2)); exit 7\n")
    assert ran.returncode == 7
    assert ran.stdout == "42\n"
    assert yard("stop", "box").returncode == 0
    assert yard("wait", "box", "--for", "stopped", "--timeout", waited()).returncode == 0
    assert yard("bash", "box", input="").returncode == 5


# Ends on SIGTERM as workloads/common does: it saves a checkpoint and reports it.
SAVER = """
import json, signal, sys
def save(number, frame):
    print(json.dumps({"trainyard": 1, "checkpoint_step": 1200, "checkpoint_at": 1767225600}), flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_steering(yard):
    assert yard("submit", "steer", "-i", "ubuntu", "-g", "1").returncode == 0
    for verb, state in (("suspend", "suspended"), ("resume", "running"), ("stop", "stopped")):
        assert yard(verb, "steer").returncode == 0
        assert yard("wait", "steer", "--for", state, "--timeout", waited()).returncode == 0, state
    assert yard("stop", "steer").stdout == "job steer is stopped\n"  # again: it is already
    assert yard("submit", "saver", "-i", "ubuntu", "-g", "1", "--", "python3", "-c", SAVER).returncode == 0
    wait_until(lambda: yard("logs", "saver").stdout == "ready\n", what="its trap")
    suspended = yard("suspend", "saver", "--grace", "30s", "--wait").stdout
    assert suspended.endswith("resume it to queue it again. Checkpoint at step 1,200.\n")
    assert "step 1200, " in yard("describe", "job", "saver").stdout
    assert yard("resume", "steer").returncode == 5
    cloned = json.loads(yard("clone", "steer", "--name", "copy", "-o", "json").stdout)
    assert (cloned["name"], cloned["image"]) == ("copy", "ubuntu")
    assert yard("scale", "copy", "--workers", "2").returncode == 5
    assert yard("delete", "copy", "steer", "saver").returncode == 0
    wait_until(lambda: yard("describe", "job", "copy").returncode == 3, what="the copy's end")


def test_an_elastic_job_starts_as_large_as_fits_and_is_scaled_while_it_holds_nothing(yard):
    line = 'echo "$TRAINYARD_RANK of $workers ($minWorkers to $maxWorkers)"; sleep 60'
    etjob = ("--name=el", "--gpus=1", "--image=ubuntu", "--min-workers=2", "--workers=20", "--max-workers=24")
    assert yard("submit", "etjob", *etjob, line).returncode == 0
    assert yard("wait", "el", "--for", "running", "--timeout", waited()).returncode == 0
    shown = json.loads(yard("get", "el", "-o", "json").stdout)
    size = shown["status"]["workers"]
    assert 2 <= size < 20  # the cluster has 16 GPUs
    assert re.search(
        rf"^Workers: +{size} of 20 \(2-24\)$", yard("describe", "job", "el").stdout, re.MULTILINE
    )
    told = f"{size - 1} of {size} (2 to 24)\n"
    wait_until(lambda: yard("logs", "el", "--rank", str(size - 1)).stdout == told, what="what it prints")
    refused = yard("scaleout", "etjob", "--name=el", "--count=1", "--timeout=10m")
    assert (refused.returncode, "Suspend it, scale it and resume it" in refused.stderr) == (5, True)
    assert yard("suspend", "el").returncode == 0
    assert yard("wait", "el", "--for", "suspended", "--timeout", waited()).returncode == 0
    assert yard("scalein", "el", "--count", "17").stdout == "job el asks for 3 workers now, for 20 before\n"
    assert yard("resume", "el").returncode == 0
    assert yard("wait", "el", "--for", "running", "--timeout", waited()).returncode == 0
    assert json.loads(yard("get", "el", "-o", "json").stdout)["status"]["workers"] == 3
    assert yard("delete", "el").returncode == 0


def test_a_waiting_job_is_explained(yard):
    assert (
        yard("submit", "idle", "-i", "ubuntu", "-g", "9", "--interactive").returncode == 2
    )  # no node is that large
    assert yard("submit", "notebook", "-i", "ubuntu", "-g", "8", "--interactive").returncode == 0
    assert yard("submit", "second", "-i", "ubuntu", "-g", "1", "--interactive").returncode == 0

    def reason() -> str:
        return yard("explain", "second", "-o", "jsonpath={.reason.code}").stdout.strip()

    wait_until(lambda: reason() == "interactive_over_quota", what="the reason")
    assert "It would start if" in yard("explain", "second").stdout
    assert yard("delete", "second", "notebook").returncode == 0


def test_refusals_leave_nothing_behind(yard):
    def ids() -> set[str]:
        return set(yard("list", "jobs", "-o", "jsonpath={.results[*].id}").stdout.split())

    before = ids()
    for argv in (
        ["-g", "0.3333333"],
        ["-g", "-1"],
        ["-g", "9"],
        ["--dataset", "x:/data"],
        ["--pvc", "v:/mnt"],
    ):
        ran = yard("submit", "refused", "-i", "python", *argv)
        assert ran.returncode == 2, (argv, ran)
    assert yard("submit", "Not_A_Label", "-i", "python").returncode == 2
    assert yard("submit", "x", "-p", "nowhere", "-i", "python").returncode == 3
    assert yard("submit", "x", "-i", "python", "--dry-run").returncode == 0
    assert ids() <= before  # jobs that earlier tests deleted may go meanwhile; none may come


def test_one_key_makes_one_job(yard):
    line = ("submit", "once", "-i", "ubuntu", "--idempotency-key", "a-key-of-ours", "-o", "jsonpath={.id}")
    first, second = yard(*line), yard(*line)
    assert first.returncode == second.returncode == 0
    assert first.stdout == second.stdout
    yard("delete", "once")


def test_people_log_in_with_their_password_and_see_their_projects_alone(yard, environment, tmp_path):
    password = "correct horse battery"
    assert yard("user", "create", "ana", "--password-stdin", input=f"{password}\n").returncode == 0
    assert yard("project", "members", "cli", "--add", "ana:viewer").returncode == 0
    mine = {
        name: value for name, value in environment.items() if name not in ("TRAINYARD_URL", "TRAINYARD_TOKEN")
    }
    mine["TRAINYARD_CONFIG"] = str(tmp_path / "ana.json")
    login = ("login", environment["TRAINYARD_URL"], "--username", "ana", "--password-stdin")
    assert yard(*login, input="wrong\n", env=mine).returncode == 4
    assert yard(*login, input=f"{password}\n", env=mine).returncode == 0
    assert json.loads(yard("whoami", "-o", "json", env=mine).stdout)["roles"] == {"cli": "viewer"}
    assert yard("submit", "x", "-i", "python", env=mine).returncode == 4
    assert yard("list", "users", env=mine).returncode == 4
    assert yard("list", "jobs", env=mine).returncode == 0


def test_nodes(yard):
    assert yard("node", "cordon", "dgx1-2").returncode == 0
    states = dict(line.split()[:2] for line in yard("list", "nodes").stdout.splitlines()[1:])
    assert states == {"dgx1-1": "ready", "dgx1-2": "cordoned"}
    assert yard("node", "drain", "dgx1-1", "--dry-run").returncode == 0
    assert yard("node", "uncordon", "dgx1-2").returncode == 0
    assert "of 16 GPUs allocated" in yard("top", "nodes").stdout
    assert "GPU" in yard("describe", "node", "dgx1-1").stdout


@pytest.mark.parametrize(
    "argv",
    [
        ["list", "jobs", "-A", "-o", "wide"],
        ["list", "projects", "-o", "yaml"],
        ["describe", "project", "cli"],
        ["top", "jobs"],
        ["list", "tokens"],
        ["list", "users"],
        ["project", "members", "cli"],
        ["project", "edit", "cli", "--gpu-limit", "none", "--interactive-max", "4h"],
    ],
)
def test_the_rest_answers(yard, argv):
    ran = yard(*argv)
    assert ran.returncode == 0, ran.stderr


def test_the_four_team_demo_ends_as_published(yard, tmp_path_factory):
    with servers.control_plane(tmp_path_factory.mktemp("demo")) as own:
        settings = {**os.environ, "TRAINYARD_URL": own.url, "TRAINYARD_TOKEN": own.token}
        assert yard("project", "create", "team-a", "--gpu-quota", "4", env=settings).returncode == 0
        ran = yard("demo", "four-teams", "--pause", "0", env=settings)
        assert ran.returncode == 0, ran.stdout
        assert "20 of 20 steps ended as expected" in ran.stdout
        preempted = ("logs", "b-4-gg", "-p", "demo-team-b", "--attempt", "2")
        wait_until(
            lambda: "\nresumed at line " in yard(*preempted, env=settings).stdout, what="the work kept"
        )
        assert yard("demo", "four-teams", "--clear", env=settings).returncode == 0
        assert yard("demo", "four-teams", "--clear", env=settings).stdout == "there was nothing to delete\n"
        assert yard("describe", "project", "team-a", env=settings).returncode == 0


SERVE = (
    "import http.server as web, os; web.test(web.SimpleHTTPRequestHandler, port=int(os.environ['PORT_8888']))"
)


@pytest.fixture(scope="module")
def serving(yard) -> Iterator[str]:
    """A running job with a web server on its declared port; jobs outlive the control plane, so it is ended here."""
    words = ("submit", "serving", "-i", "python", "--interactive", "-g", "0.5", "--port", "8888")
    assert yard(*words, "--", "python", "-c", SERVE).returncode == 0
    assert yard("wait", "serving", "--for", "running", "--timeout", waited()).returncode == 0
    yield "serving"
    assert yard("stop", "serving").returncode == 0
    assert yard("wait", "serving", "--for", "stopped", "--timeout", "60").returncode == 0


def test_exec_runs_in_the_pod(yard, serving):
    ran = yard("exec", serving, "--", "sh", "-c", "echo $TRAINYARD_JOB; echo bad >&2; exit 3")
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "serving\n", "bad\n")
    assert yard("exec", serving, "--", "no-such-program").returncode == 127
    assert yard("exec", serving, "-i", "--", "wc", "-c", input="x" * 300_000).stdout.strip() == "300000"


def test_a_piped_shell_prints_what_its_commands_print_and_nothing_else(yard, serving):
    ran = yard("bash", serving, input="echo $((6*7))\nexit 5\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (5, "42\n", "")


def test_a_forwarded_port_leads_to_the_job_until_ctrl_c(yard, serving, environment):
    command = [sys.executable, "-I", "-c", START, "port-forward", serving, "0:8888"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as forwarding:
        address = re.match(
            r"(127\.0\.0\.1:\d+) is forwarded to port 8888 of serving", forwarding.stderr.readline()
        )
        try:
            wait_until(lambda: status_of(address[1]) == 200, 30, "the job's web server")
            assert status_of(address[1], "/nothing") == 404
        finally:
            forwarding.send_signal(signal.SIGINT)
        try:
            assert forwarding.wait(patience(10)) == 0
        finally:
            forwarding.kill()  # the end of the block waits without a limit


def status_of(address: str, path: str = "/") -> int:
    connection = http.client.HTTPConnection(address, timeout=patience(10))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def test_a_job_runs_the_code_of_a_directory_and_another_the_same(yard, running, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "util.py").write_text("WORD = 'first'\n")
    (tmp_path / "train.py").write_text("import lib.util\nprint(lib.util.WORD)\n")
    submit = (
        "submit",
        "code1",
        "-i",
        "python",
        "--code",
        str(tmp_path),
        "--logs",
        "--",
        "python",
        "train.py",
    )
    first = yard(*submit)
    assert (first.returncode, first.stdout) == (0, "first\n")
    assert "2 files" in first.stderr
    (tmp_path / "lib" / "util.py").write_text("WORD = 'second'\n")
    second = yard("submit", "code2", *submit[2:])
    assert second.stdout == "second\n"
    assert "sent 1" in second.stderr
    again = yard("submit", "code3", "--like", "code1", "--logs")
    assert (again.returncode, again.stdout) == (0, "first\n"), again.stderr
    shown = [json.loads(yard("describe", "job", f"code{number}", "-o", "json").stdout) for number in (1, 3)]
    assert shown[0]["code"] == shown[1]["code"]
    by_hash = yard("submit", "code4", "--code", shown[0]["code"]["tree"], *submit[2:4], *submit[6:])
    assert (by_hash.returncode, by_hash.stdout) == (0, "first\n"), by_hash.stderr
    assert "Code:" in yard("describe", "job", "code1").stdout


def test_a_small_sync_links_too(yard, environment, tmp_path):
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(300_000))
    large.chmod(0o644)
    os.utime(large, (1_700_000_000, 1_700_000_000))
    assert yard("dataset", "init", "few", str(tmp_path)).returncode == 0
    ran = yard("dataset", "sync", str(tmp_path), "--link")
    assert "few@1: 1 file, 300 kB" in ran.stdout, ran.stderr
    assert (large.stat().st_nlink, large.stat().st_mode & 0o777) == (2, 0o444)
    assert "1 file is intact" in yard("dataset", "verify", "few").stdout


def test_a_sync_on_the_servers_machine_shares_large_files_with_the_lake(yard, environment, tmp_path):
    for number in range(201):
        (tmp_path / f"{number}.txt").write_text(f"file {number}")
    large = tmp_path / "large.bin"
    large.write_bytes(os.urandom(300_000))
    large.chmod(0o644)
    assert yard("dataset", "init", "near", str(tmp_path)).returncode == 0
    ran = yard("dataset", "sync", str(tmp_path), "--link")
    assert "near@1: 202 files" in ran.stdout, ran.stderr
    # Linked, or reflinked where the disk can.
    assert (large.stat().st_nlink, large.stat().st_mode & 0o777) in ((2, 0o444), (1, 0o644))
    assert "nothing changed" in yard("dataset", "sync", str(tmp_path)).stdout
    assert "202 files are intact" in yard("dataset", "verify", "near").stdout


def test_a_full_sync_is_believed_by_the_next_one(yard, environment, tmp_path):
    """A file whose content changed without its size or times, as some programs leave it."""

    def write(content: str) -> None:
        (tmp_path / "a.txt").write_text(content)
        os.utime(tmp_path / "a.txt", (1_700_000_000, 1_700_000_000))

    write("one")
    (tmp_path / "b.txt").write_text("b")
    os.utime(tmp_path / "b.txt", (1_700_000_000, 1_700_000_000))
    assert yard("dataset", "init", "full", str(tmp_path)).returncode == 0
    assert "full@1: 2 files" in yard("dataset", "sync", str(tmp_path)).stdout
    write("two")
    assert "nothing changed" in yard("dataset", "sync", str(tmp_path)).stdout
    assert "0 added, 1 changed, 0 removed" in yard("dataset", "sync", str(tmp_path), "--full").stdout
    assert "nothing changed" in yard("dataset", "sync", str(tmp_path)).stdout
    assert "nothing changed" in yard("dataset", "sync", str(tmp_path), "--full").stdout
    (tmp_path / "c.txt").write_text("c")
    assert "1 added, 0 changed, 0 removed" in yard("dataset", "sync", str(tmp_path)).stdout
