"""From a command line to the spec that REST takes."""

import json

import pytest

from controlplane.cli.code import repository
from tests.cli.conftest import JOB_ID, job
from tests.cli.scripted import Reply, events

ALL_FLAGS = [
    (["-i", "registry/quickstart:1"], {"image": "registry/quickstart:1"}),
    (["-g", "0.5"], {"gpus": 0.5}),
    (["-g", "2"], {"gpus": 2}),
    (["-g", "0.3333333"], {"gpus": 0.3333333}),
    (["-g", "-1"], {"gpus": -1}),
    (["--gpu-memory", "8Gi"], {"gpu_memory_mib": 8192}),
    (["--gpu-memory", "512"], {"gpu_memory_mib": 512}),
    (["--cpus", "0.5"], {"cpus": 0.5}),
    (["--memory", "1.5G"], {"memory_mib": 1536}),
    (["--interactive"], {"kind": "interactive"}),
    (["--workers", "3"], {"workers": 3}),
    (
        ["--command", "python", "--args", "train.py", "--args", "--lr=1"],
        {"command": ["python"], "args": ["train.py", "--lr=1"]},
    ),
    (["--command", "python -u train.py"], {"command": ["python", "-u", "train.py"]}),
    (
        ["--", "python", "train.py", "--name", "x", "-p", "y"],
        {"command": ["python", "train.py", "--name", "x", "-p", "y"]},
    ),
    (["-e", "A=1", "-e", "B=x=y", "--env", "C="], {"env": {"A": "1", "B": "x=y", "C": ""}}),
    (["--pvc", "data:/mnt"], {"volumes": [{"volume": "data", "mount_path": "/mnt"}]}),
    (
        ["--pvc", "fast:100Gi:/mnt"],
        {"volumes": [{"new": {"storage_class": "fast", "size": "100Gi"}, "mount_path": "/mnt"}]},
    ),
    (["-v", "/data:/mnt"], {"volumes": [{"host_path": "/data", "mount_path": "/mnt"}]}),
    (
        ["--dataset", "chest-xray:/data", "--cached"],
        {"datasets": [{"dataset": "chest-xray", "version": "latest", "cached": True, "mount_path": "/data"}]},
    ),
    (
        ["--dataset", "chest-xray@v3:/data"],
        {"datasets": [{"dataset": "chest-xray", "version": "v3", "cached": False, "mount_path": "/data"}]},
    ),
    (["--port", "8888", "--service-type", "ingress"], {"ports": [{"port": 8888, "service_type": "ingress"}]}),
    (["--large-shm"], {"large_shm": True}),
    (["--secret-env", "KEY=wandb:token"], {"secret_env": {"KEY": {"secret": "wandb", "key": "token"}}}),
    (["--image-pull-secret", "registry"], {"image_pull_secrets": ["registry"]}),
    (["--resource", "vpc.amazonaws.com/efa=4"], {"extra_resources": {"vpc.amazonaws.com/efa": "4"}}),
    (["--template", "small"], {"compute_template": "small"}),
    (["--working-dir", "/w"], {"working_dir": "/w"}),
    (["--priority", "70"], {"priority": 70}),
    (["--no-preemptible"], {"preemptible": False}),
    (["--preemptible"], {"preemptible": True}),
    (["--node-pool", "dgx"], {"node_pool": "dgx"}),
    (["--max-runtime", "1h30m"], {"max_runtime_seconds": 5400}),
    (["--expected-runtime", "90"], {"expected_runtime_seconds": 90}),
    (["--retries", "2"], {"retries": 2}),
    (["--ttl", "2d"], {"ttl_seconds_after_finished": 172800}),
    (["-l", "team=vision"], {"labels": {"team": "vision"}}),
    (["--snapshot-on", "success"], {"snapshot_on": ["success"]}),
]


@pytest.mark.parametrize(("flags", "fields"), ALL_FLAGS)
def test_each_flag_is_its_field_and_nothing_else_is_sent(server, yard, flags, fields):
    server.on("POST", "projects/team-a/jobs", Reply(201, job()))
    assert yard("submit", "hyper1", *flags).code == 0
    assert server.asked[0].body == {"name": "hyper1", "kind": "train", **fields}


def test_options_stand_where_people_put_them(server, yard):
    server.on("POST", "projects/team-b/jobs", Reply(201, job()))
    for argv in (
        ["-p", "team-b", "submit", "hyper1", "-g", "1"],
        ["submit", "-p", "team-b", "-g", "1", "hyper1"],
        ["submit", "hyper1", "--project=team-b", "--gpus=1"],
    ):
        assert yard(*argv).code == 0
    assert [asked.body for asked in server.asked] == [{"name": "hyper1", "kind": "train", "gpus": 1}] * 3


def test_the_other_kinds(server, yard):
    server.on("POST", "projects/team-a/jobs", Reply(201, job()))
    assert yard("submit-mpi", "d", "--processes", "3").code == 0
    assert yard("submit-elastic", "e", "--workers", "3", "--min-workers", "1", "--max-workers", "9").code == 0
    assert [asked.body for asked in server.asked] == [
        {"name": "d", "kind": "mpi", "workers": 3},
        {"name": "e", "kind": "elastic", "workers": 3, "min_workers": 1, "max_workers": 9},
    ]


@pytest.mark.parametrize(
    "flags",
    [
        ["--pvc", "data"],
        ["--pvc", ":/x"],
        ["--pvc", "fast:1Gi:/x:ro"],
        ["--dataset", "x"],
        ["--dataset", ":/x"],
    ],
)
def test_mounts_that_are_none(server, yard, flags):
    assert yard("submit", "x", *flags).code == 2
    assert server.asked == []


def test_dry_run_creates_nothing_and_says_what_would_happen(server, yard):
    server.on("POST", "projects/team-a/jobs", job())
    plan = {
        "starts_now": False,
        "placement": [{"rank": 0, "node": "dgx-2", "devices": []}],
        "preempts": [{"project": "team-b", "job": None, "name": None}],
        "start_estimate": {"earliest": "2026-08-14T09:31:02Z", "latest": "2026-08-14T10:31:02Z"},
        "gpu_hours": 8.0,
    }
    server.on("POST", "projects/team-a/jobs/plan", plan)
    ran = yard("submit", "hyper1", "--dry-run")
    assert server.asked[0].query == {"dry_run": "true"}
    assert server.asked[1].body == server.asked[0].body
    for shown in (
        "nothing was created",
        "2026-08-14 09:31:02Z to 2026-08-14 10:31:02Z",
        "dgx-2",
        "a job of team-b",
        "8.0",
    ):
        assert shown in ran.out
    assert "next:" not in ran.err


def test_a_key_of_ones_own(server, yard):
    server.on("POST", "projects/team-a/jobs", Reply(201, job()))
    yard("submit", "hyper1", "--idempotency-key", "nightly-7")
    assert server.asked[0].headers["Idempotency-Key"] == "nightly-7"


def test_what_to_do_next_is_talk_and_not_data(server, yard):
    server.on("POST", "projects/team-a/jobs", Reply(201, job()))
    ran = yard("submit", "hyper1")
    assert "yard logs hyper1 -p team-a -f" in ran.err
    assert "yard" not in ran.out


def test_logs_follow_and_exit_as_the_job_does(server, yard):
    line = {"n": 1, "time": "t", "stream": "stdout", "text": "epoch 1", "offset": 8}
    server.on("POST", "projects/team-a/jobs", Reply(201, job(state="queued")))
    server.on(
        "GET", f"jobs/{JOB_ID}/logs", events(("line", line), ("end", {"state": "failed", "exit_code": 5}))
    )
    reason = {"code": "exit_code", "message": "It ended with exit code 5.", "details": {}}
    server.on("GET", f"jobs/{JOB_ID}", job(state="failed", exit_code=5, reason=reason))
    ran = yard("submit", "hyper1", "--logs")
    assert ran.code == 5
    assert ran.out == "epoch 1\n"
    assert ran.err.endswith("job hyper1 failed: It ended with exit code 5.\n")


def test_wait_with_json_prints_the_object_alone(server, yard):
    server.on("POST", "projects/team-a/jobs", Reply(201, job(state="queued")))
    server.on("GET", f"jobs/{JOB_ID}", job(state="succeeded", exit_code=0))
    ran = yard("submit", "hyper1", "--wait", "-o", "json")
    assert json.loads(ran.out) == job(state="queued")


def test_what_is_odd_about_a_job_is_told(server, yard):
    server.on(
        "POST", "projects/team-a/jobs", Reply(201, job() | {"warnings": ["mine:1 is not in the catalogue."]})
    )
    ran = yard("submit", "hyper1", "-i", "mine:1", "--", "true")
    assert (ran.code, "warning: mine:1 is not in the catalogue." in ran.err) == (0, True)


FETCH = {"id": "f1", "state": "pending", "reason": None, "tree": None, "commit": ""}
READY = FETCH | {"state": "ready", "tree": "sha256:" + "a" * 64, "commit": "c" * 40}


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("https://git.example.org/team/train@feature/x", ("https://git.example.org/team/train", "feature/x")),
        ("https://git.example.org/team/train", ("https://git.example.org/team/train", "HEAD")),
        ("ssh://git@git.example.org/train@v1", ("ssh://git@git.example.org/train", "v1")),
    ],
)
def test_code_from_a_repository_is_fetched_by_the_server(yard, server, monkeypatch, text, asked):
    monkeypatch.setattr(repository, "POLL_SECONDS", 0)
    server.on("POST", "projects/team-a/code-imports", Reply(202, FETCH))
    server.on("GET", "projects/team-a/code-imports/f1", FETCH, READY)
    server.on("POST", "projects/team-a/jobs", Reply(201, job()))
    run = yard("submit", "hyper1", "-i", "python", "--git", text)
    assert run.code == 0, run.err
    [request] = server.requests("POST", "projects/team-a/code-imports")
    assert (request.body["url"], request.body["ref"]) == asked
    [submitted] = server.requests("POST", "projects/team-a/jobs")
    assert submitted.body["code"] == {"tree": READY["tree"], "commit": READY["commit"]}


def test_a_repository_that_cannot_be_fetched_submits_nothing(yard, server):
    reason = {"code": "git_failed", "message": "couldn't find remote ref nope"}
    server.on(
        "POST", "projects/team-a/code-imports", Reply(202, FETCH | {"state": "failed", "reason": reason})
    )
    run = yard("submit", "hyper1", "-i", "python", "--git", "https://git.example.org/train@nope")
    assert (run.code, server.requests("POST", "projects/team-a/jobs")) == (1, [])
    assert "couldn't find remote ref nope (git_failed)" in run.err


def test_what_is_no_repository_is_not_asked_for(yard, server):
    run = yard("submit", "hyper1", "-i", "python", "--git", "../train")
    assert run.code == 2
    assert "https://HOST/PATH@BRANCH" in run.err
