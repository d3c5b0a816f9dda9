"""Pods of images with `preload` are forked from a process that has imported its modules, and are pods like others."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from controlplane.engines import base
from controlplane.engines.base import PodSpec
from controlplane.engines.local import preloading, processes
from controlplane.engines.local.engine import LocalEngine
from controlplane.engines.local.records import PodDir, StartRecord
from tests.contract.harness import SETTINGS, EngineCase, make_case
from tests.servers import words_of
from tests.waiting import wait_until

# Small, and not imported by Python itself.
MODULE = "colorsys"
TELL = f"""
import json, os, random, sys
print(json.dumps({{
    "has": "{MODULE}" in sys.modules, "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "name": __name__,
    "file": os.path.basename(__file__), "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "ours": [name for name in sys.modules if name.startswith("controlplane")], "drawn": random.random(),
    "environ": dict(os.environ), "words": open("/proc/self/cmdline").read().split(chr(0)),
    "raw": open("/proc/self/environ").read(), "stdin": sys.stdin.read(), "mask": os.umask(0o22),
}}))
"""


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineCase]:
    # On a busy machine a server takes seconds to start.
    monkeypatch.setattr(preloading, "WAIT_SECONDS", 100.0)
    case = make_case("local", tmp_path)
    image(case, "")
    yield case
    case.close()


def image(case: EngineCase, more: str, module: str = MODULE) -> None:
    (case.state_dir / "images.toml").write_text(f'[images.ready]\npreload = ["{module}"]\n{more}\n')


def program(case: EngineCase, text: str, *arguments: str, name: str = "program.py", **fields: Any) -> PodSpec:
    """A started pod of this program."""
    (case.state_dir / name).write_text(text)
    return case.start("python", str(case.state_dir / name), *arguments, image="ready", **fields)


def told(case: EngineCase, spec: PodSpec) -> dict[str, Any]:
    """What TELL printed."""
    report = case.wait_end(spec)
    assert report.exit_code == 0, case.text(spec)
    found: dict[str, Any] = json.loads(case.text(spec))
    return found


def started(case: EngineCase, spec: PodSpec) -> StartRecord:
    record = PodDir(case.state_dir / "pods" / spec.name).start_record()
    assert record is not None
    return record


def servers() -> list[psutil.Process]:
    """The fork servers of this process's engines."""
    return [one for one in psutil.Process().children() if str(preloading.SERVER) in words_of(one)]


def server(case: EngineCase) -> psutil.Process:
    """The engine's fork server."""
    (found,) = servers()
    return found


@pytest.mark.parametrize("of_image", ["", 'env = {PYTHONSAFEPATH = "1"}'])
def test_a_program_finds_its_modules_imported_and_all_else_as_by_exec(case: EngineCase, of_image: str):
    image(case, of_image)
    (case.state_dir / "program.py").write_text(TELL)

    def run(**variables: str) -> dict[str, Any]:
        words = "python", "program.py", "one", "two words"
        env, work = {"MY": "own", **variables}, str(case.state_dir)
        return told(case, case.start(*words, image="ready", env=env, working_dir=work))

    # PYTHON... variables of a user are read at the start of an interpreter, so such a pod needs one of its own.
    forked, by_exec = run(), run(PYTHONHASHSEED="1")
    assert (forked.pop("has"), by_exec.pop("has")) == (True, False)
    assert forked.pop("drawn") != by_exec.pop("drawn")
    tokens = []
    for one in (forked, by_exec):
        environ = one.pop("environ")
        tokens.append(environ.pop(processes.TOKEN_VARIABLE))
        assert f"{processes.TOKEN_VARIABLE}={tokens[-1]}\0" in one.pop("raw")
        assert [word for word in one.pop("words") if word][-2:] == ["one", "two words"]
        assert environ["MY"] == "own"
        one["variables"] = sorted(name for name in environ if name != "PYTHONHASHSEED")
        one["cwd"] = Path(one["cwd"]).parts[-1]
    assert tokens[0] != tokens[1]
    assert forked == by_exec
    assert (forked["ours"], forked["fds"]) == ([], [0, 1, 2])


def test_a_module_runs_by_its_name_and_forks_draw_numbers_of_their_own(case: EngineCase):
    library = case.state_dir / "library"
    library.mkdir()
    (library / "tells.py").write_text(TELL)
    image(case, f'env = {{PYTHONPATH = "{library}"}}')
    specs = [case.start("python", "-m", "tells", "x", image="ready") for _ in range(2)]
    first, second = (told(case, spec) for spec in specs)
    assert (first["has"], first["name"], first["file"]) == (True, "__main__", "tells.py")
    assert first["argv"][1:] == ["x"]
    assert first["path"][:2] == [first["cwd"], str(library)]
    assert first["drawn"] != second["drawn"]


@pytest.mark.parametrize(
    ("text", "exit_code", "printed"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("import os; os.kill(os.getpid(), 11)", 139, ""),
        ("import atexit; atexit.register(print, 'bye'); print('done')", 0, "done\nbye\n"),
        (
            "import threading as t, time; t.Thread(target=lambda: (time.sleep(0.2), print('later'))).start()",
            0,
            "later\n",
        ),
        (
            (
                "import os, tempfile, threading\nkept = tempfile.TemporaryDirectory()\n"
                "threading.Timer(0.2, os.listdir, [kept.name]).start()"
            ),
            0,
            "",
        ),
    ],
)
def test_a_program_ends_as_it_does_by_exec(case: EngineCase, text: str, exit_code: int, printed: str):
    spec = program(case, text)
    assert case.wait_end(spec).exit_code == exit_code
    assert case.text(spec) == printed


def test_a_file_that_was_not_closed_is_written(case: EngineCase):
    spec = program(case, f"out = open('{case.state_dir}/out', 'w'); out.write('kept')")
    assert case.wait_end(spec).exit_code == 0
    assert (case.state_dir / "out").read_text() == "kept"


def test_an_error_shows_the_frames_of_the_program_alone(case: EngineCase):
    spec = program(case, "def inner():\n    raise ValueError('bad value')\ninner()\n")
    assert case.wait_end(spec).exit_code == 1
    lines = case.text(spec).splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "ValueError: bad value")
    assert [line.split('"')[1] for line in lines if 'File "' in line] == [
        str(case.state_dir / "program.py")
    ] * 2


def test_a_program_that_is_missing_is_told_by_python_itself(case: EngineCase):
    spec = case.start("python", "no-such.py", image="ready")
    assert case.wait_end(spec).exit_code == 2
    assert "can't open file" in case.text(spec)
    spec = case.start("python", "-m", "no_such", image="ready")
    assert case.wait_end(spec).exit_code == 1
    assert case.text(spec) == f"{sys.executable}: No module named no_such\n"


def test_its_shim_ends_it_after_the_grace_and_with_all_of_its_children(case: EngineCase):
    text = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('asked'))\n"
        "if os.fork() == 0:\n    os.setsid()\nelse:\n    print('ready')\nwhile True:\n    time.sleep(0.05)\n"
    )
    spec = program(case, text)
    wait_until(lambda: "ready" in case.text(spec), what="the program")
    below = processes.descendants(started(case, spec).shim_pid, processes.table())
    assert len(below) == 2
    case.engine.stop(spec.name, 1000)
    wait_until(lambda: "asked" in case.text(spec), what="the signal")
    case.engine.stop(spec.name, 0)
    assert (case.wait_end(spec).reason, [pid for pid in below if processes.find(pid)]) == (base.STOPPED, [])


def test_a_killed_shim_takes_it_and_what_left_its_session_along(case: EngineCase):
    text = "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid()\nelse:\n    print(pid)\ntime.sleep(1000)\n"
    spec = program(case, text)
    child = int(wait_until(lambda: case.text(spec).strip(), what="the child"))
    record = started(case, spec)
    os.kill(record.shim_pid, signal.SIGKILL)
    assert case.wait_end(spec).reason == base.SHIM_LOST
    assert not processes.find(record.pid)
    assert not processes.find(child)


def test_pods_outlive_the_engine_and_its_server_does_not(case: EngineCase):
    spec = program(case, "import time; print('up'); time.sleep(1000)")
    serving = server(case)
    case.engine.close()
    assert not serving.is_running()
    report = LocalEngine(SETTINGS, case.state_dir).pods()[0]
    assert (report.name, report.state) == (spec.name, base.RUNNING)


def test_a_server_whose_engine_was_killed_ends(case: EngineCase):
    case.wait_end(program(case, "print('up')"))
    serving = server(case)
    # As the kernel does with the files of a killed process.
    case.engine._fork_servers._control.close()
    wait_until(lambda: serving.status() == psutil.STATUS_ZOMBIE, what="the server's end")


def test_a_server_that_was_killed_is_replaced(case: EngineCase):
    case.wait_end(program(case, "print('up')"))
    serving = server(case)
    serving.kill()
    wait_until(lambda: serving.status() == psutil.STATUS_ZOMBIE, what="the server's end")
    assert told(case, program(case, TELL))["has"]


def test_modules_that_cannot_be_imported_leave_the_error_to_the_program(case: EngineCase):
    image(case, "", "no_such_module")
    for _ in range(2):
        assert not told(case, program(case, TELL))["has"]
    assert (case.state_dir / "pods" / ".fork-server.err").read_text().count("ModuleNotFoundError") == 1


def test_forks_share_no_key_of_multiprocessing(case: EngineCase):
    image(case, "", "multiprocessing")
    text = "import multiprocessing as m; print(m.current_process().authkey.hex())"
    specs = [program(case, text) for _ in range(2)]
    assert {case.wait_end(spec).exit_code for spec in specs} == {0}
    assert len({case.text(spec) for spec in specs}) == 2


def test_what_a_user_sets_runs_in_the_users_pods_alone(case: EngineCase):
    library = case.state_dir / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(f"open('{case.state_dir}/ran', 'a').write('x')\n")
    assert not told(case, program(case, TELL, env={"PYTHONPATH": str(library)}))["has"]
    assert servers() == []
    assert (case.state_dir / "ran").read_text() == "x"


def test_a_relative_path_means_the_pods_directory(case: EngineCase):
    (case.state_dir / "lib").mkdir()
    (case.state_dir / "lib" / "beside.py").write_text("print('found')")
    image(case, 'env = {PYTHONPATH = "lib"}')
    spec = program(case, "import beside", working_dir=str(case.state_dir))
    assert (case.wait_end(spec).exit_code, case.text(spec)) == (0, "found\n")


def test_an_import_that_never_ends_holds_no_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preloading, "WAIT_SECONDS", 0.01)
    (tmp_path / "endless.py").write_text("while True:\n    import time\n    time.sleep(1)\n")
    recipe = preloading.Recipe(("endless",), (("PYTHONPATH", str(tmp_path)),))
    fork_servers = preloading.ForkServers(tmp_path / "errors")
    try:
        # More than a socket holds.
        assert not any(fork_servers.start(recipe, tmp_path) for _ in range(2000))
    finally:
        fork_servers.close()


def test_a_pod_that_was_stopped_before_its_start_is_not_started(case: EngineCase):
    case.wait_end(program(case, "print('up')"))
    spec = case.spec("python", str(case.state_dir / "program.py"), image="ready")
    case.engine.stop(spec.name, 0)
    case.engine.start(spec)
    assert case.wait_end(spec).reason == base.STOPPED
