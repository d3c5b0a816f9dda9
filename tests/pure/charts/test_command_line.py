"""The line that the pages show is one that `yard` reads back as the same submission."""

import shlex
from typing import Any

import pytest

from controlplane.cli.commands.submit import spec_of, submit_arguments, submit_mpi_arguments
from controlplane.cli.parsing import Parser
from dashboards.command_line import yard_submit
from jobs.kinds.spec import parse_spec

SPECS: list[dict[str, Any]] = [
    {"name": "a", "kind": "train", "image": "quickstart", "gpus": 1},
    {"name": "a", "kind": "train", "gpus": 0.5, "command": ["python", "train.py", "--lr", "0.1", "a b"]},
    {
        "name": "a",
        "kind": "interactive",
        "image": "jupyter",
        "gpus": 1,
        "ports": [{"port": 8888, "service_type": "ingress"}],
    },
    {"name": "a", "kind": "train", "image": "x", "gpu_memory_mib": 8000, "memory_mib": 4096, "cpus": 0.5},
    {"name": "a", "kind": "train", "image": "x", "gpus": 8, "workers": 4, "retries": 2, "priority": 70},
    {"name": "a", "kind": "train", "image": "x", "env": {"A": "1 2", "B": "$HOME"}, "labels": {"k": "v"}},
    {
        "name": "a",
        "kind": "train",
        "image": "x",
        "max_runtime_seconds": 5400,
        "ttl_seconds_after_finished": 60,
    },
    {"name": "a", "kind": "train", "image": "x", "large_shm": True, "preemptible": False, "node_pool": "dgx"},
    {"name": "a", "kind": "train", "image": "x", "working_dir": "/w", "expected_runtime_seconds": 90},
    {
        "name": "a",
        "kind": "train",
        "secret_env": {"KEY": {"secret": "wandb", "key": "token"}},
        "image_pull_secrets": ["one", "two"],
        "extra_resources": {"vpc.amazonaws.com/efa": "4"},
    },
    {"name": "a", "kind": "mpi", "image": "x", "gpus": 1, "workers": 3, "command": ["mpirun", "train"]},
    {"name": "a", "kind": "mpi", "image": "x", "workers": 1, "preemptible": False},
    {
        "name": "a",
        "kind": "train",
        "artifacts": [{"path": "out", "when": "success"}, {"path": "b", "name": "c", "when": "always"}],
        "volumes": [{"host_path": "/data", "mount_path": "/host"}, {"volume": "v", "mount_path": "/v"}],
        "datasets": [{"dataset": "x", "version": "3", "cached": True, "mount_path": "/x"}],
    },
    {
        "name": "a",
        "kind": "train",
        "image": "x",
        "code": {"tree": "sha256:" + "1a" * 32, "commit": "9c1f2ab"},
    },
    {"name": "a", "kind": "train", "image": "x", "code": {"tree": "sha256:" + "1a" * 32}},
]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_round_trip(spec: dict[str, Any]):
    words = shlex.split(yard_submit("team-a", spec))
    assert words[0] == "yard"
    assert words[3:5] == ["-p", "team-a"]
    assert parse_spec(read_back(words[1], [words[2], *words[5:]])) == parse_spec(spec)


def test_what_is_missing_is_named():
    assert yard_submit("", {}) == "yard submit NAME -p PROJECT"


def read_back(verb: str, words: list[str]) -> dict[str, Any]:
    end = words.index("--") if "--" in words else len(words)
    parser = Parser(f"yard {verb}", "submit a job")
    {"submit": submit_arguments, "submit-mpi": submit_mpi_arguments}[verb](parser)
    args = parser.parse_args(words[:end])
    args.trailing = words[end + 1 :]
    if verb == "submit-mpi":
        return spec_of(args) | {"kind": "mpi"}
    return spec_of(args) | {"kind": "interactive" if args.interactive else "train"}
