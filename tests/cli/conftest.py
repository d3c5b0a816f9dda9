"""Fixtures for tests of `yard`: a scripted server, and functions that run a command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.__main__ import main
from tests.cli.scripted import ScriptedServer, scripted_server
from tests.waiting import patience

CHECKOUT = Path(__file__).resolve().parents[2]
START = (
    f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); "
    "from controlplane.cli.__main__ import main; sys.exit(main())"
)
JOB_ID = "0b9d2a3c-1111-4222-8333-444455556666"


@dataclass(frozen=True)
class Ran:
    """The exit code and outputs of a command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


@pytest.fixture
def settings(server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fixture: environment variables for the scripted server. Returns the path of the configuration file, which
    does not exist yet."""
    for name in [name for name in os.environ if name.startswith("TRAINYARD_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "config" / "yard.json"
    monkeypatch.setenv("TRAINYARD_CONFIG", str(config))
    monkeypatch.setenv("TRAINYARD_URL", server.url)
    monkeypatch.setenv("TRAINYARD_TOKEN", "the-token")
    monkeypatch.setenv("TRAINYARD_PROJECT", "team-a")
    return config


@pytest.fixture
def yard(
    settings: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Fixture: a function that runs a command line in this process. The warning about a log without output is
    off, since it would come on a slow machine."""
    monkeypatch.setattr("controlplane.cli.silence.QUIET_SECONDS", 3600.0)

    def run(*argv: str) -> Ran:
        capsys.readouterr()
        code = main(list(argv))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def yard_process(settings: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Fixture: a function that runs a command line in a process of its own, isolated as the installed `yard` is."""

    def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", START, *argv]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=patience(60), check=False, **options
        )

    return run


def job(name: str = "hyper1", state: str = "running", **status: Any) -> dict[str, Any]:
    """Return a job in the REST form, in this state, with the fields that the CLI reads. `status`: further fields
    of its status."""
    return {
        "id": JOB_ID,
        "name": name,
        "project": "team-a",
        "user": "ana",
        "kind": "train",
        "image": "quickstart",
        "command": ["python"],
        "args": ["train.py"],
        "env": {"BATCH_SIZE": "33"},
        "gpus": 1,
        "gpu_memory_mib": None,
        "cpus": 1,
        "memory_mib": 1024,
        "workers": 1,
        "preemptible": True,
        "priority": 50,
        "labels": {},
        "created_at": "2026-01-02T03:04:05Z",
        "status": {
            "state": state,
            "reason": {"code": "", "message": "", "details": {}},
            "attempt": 1,
            "allocated_gpus": 1,
            "queue_position": None,
            "started_at": "2026-01-02T03:04:06Z",
            "finished_at": None,
            "runtime_seconds": 72,
            "exit_code": None,
            "gpu_utilization": 0.97,
            "service_urls": [],
            "progress": {
                "epoch": 1,
                "epochs": 5,
                "step": 40,
                "total_steps": 100,
                "eta_seconds": 30,
                "loss": 0.3,
            },
            "pods": [
                {
                    "name": f"{name}-1-0",
                    "rank": 0,
                    "role": "worker",
                    "state": "running",
                    "node": "dgx1-1",
                    "devices": [{"index": 3, "share": 1.0}],
                    "exit_code": None,
                }
            ],
            **status,
        },
    }


def cluster(name: str = "prod", engine: str = "kubernetes", **status: Any) -> dict[str, Any]:
    """Return a cluster in the REST form. `status`: fields of its status."""
    return {
        "name": name,
        "engine": engine,
        "scheduler": "planner",
        "settings": {},
        "status": {
            "state": "attached",
            "is_checking": False,
            "checked_at": "2026-01-02T03:04:05Z",
            "checks": [],
            "is_reachable": True,
            "unreachable_message": "",
            **status,
        },
        "created_at": "2026-01-02T03:04:05Z",
        "nodes": 2,
        "nodes_ready": 2,
        "gpus": 16,
    }
