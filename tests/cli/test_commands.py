"""What each command asks the server for, and what it makes of the answer."""

import io
import json
import re
import subprocess
import sys

import pytest

from controlplane.cli.commands import jobs
from controlplane.cli.commands.projects import MEMBER_COLUMNS
from controlplane.cli.registry import COMMANDS
from tests.cli.conftest import JOB_ID, cluster, job
from tests.cli.scripted import Reply, events, page, problem


def test_describe_shows_fields_pods_and_events(server, yard):
    happened = {
        "at": "2026-01-02T03:04:05Z",
        "kind": "job.started",
        "reason": "",
        "actor": "system",
        "message": "go",
    }
    server.on("GET", "projects/team-a/jobs", page({"id": JOB_ID}))
    server.on("GET", f"jobs/{JOB_ID}", job(reason={"code": "x", "message": "Because."}))
    server.on("GET", f"jobs/{JOB_ID}/events", page(happened))
    ran = yard("describe", "job", "hyper1")
    assert server.asked[0].query == {"name": "hyper1", "limit": "1"}
    for text in ("Because.", "BATCH_SIZE=33", "python train.py", "loss=0.3", "dgx1-1", "job.started", "97%"):
        assert text in ran.out


def test_a_pod_that_we_stopped_did_not_fail(server, yard):
    [pod] = job()["status"]["pods"]
    stopped = pod | {"rank": 1, "state": "failed", "reason": "stopped", "exit_code": 143}
    server.on("GET", "projects/team-a/jobs", page({"id": JOB_ID}))
    server.on("GET", f"jobs/{JOB_ID}", job(state="succeeded", pods=[pod | {"state": "succeeded"}, stopped]))
    server.on("GET", f"jobs/{JOB_ID}/events", page())
    shown = yard("describe", "job", "hyper1").out
    assert "stopped" in shown
    assert "failed" not in shown


@pytest.mark.parametrize("verb", ["stop", "suspend", "resume"])
def test_verbs_take_several_jobs(server, yard, verb):
    other = "1b9d2a3c-1111-4222-8333-444455556666"
    for identifier in (JOB_ID, other):
        server.on("POST", f"jobs/{identifier}/{verb}", job())
    assert yard(verb, JOB_ID, other).code == 0
    assert len(server.asked) == 2


def test_options_between_names(server, yard):
    server.on("DELETE", f"jobs/{JOB_ID}", Reply(204))
    ran = yard("delete", JOB_ID, "-p", "team-b", JOB_ID)
    assert (ran.code, len(server.asked)) == (0, 2)


def test_explain_says_who_holds_what(server, yard):
    answer = {
        "reason": {"code": "over_fair_share", "message": "All 16 GPUs are in use.", "details": {}},
        "shortage": {"request_gpus": 2, "free_gpus": 0, "limit_gpus": None, "missing_gpus": 2, "pods": 1},
        "queue_position": 3,
        "ahead": [{"name": "b-4-gg", "project": "team-b"}, {"name": None, "project": "team-c"}],
        "holders": [
            {"project": "team-d", "allocated_gpus": 8, "over_quota_gpus": 0},
            {"project": "team-a", "allocated_gpus": 8, "over_quota_gpus": 4},
        ],
        "would_start_if": [{"change": "ask_for_gpus", "message": "it asked for 1 GPU"}],
        "start_estimate": None,
    }
    server.on("GET", f"jobs/{JOB_ID}/explain", answer)
    assert yard("explain", JOB_ID).out.replace(JOB_ID, "b-5-gg") == (
        "b-5-gg: All 16 GPUs are in use.\n"
        "Reason:          over_fair_share\n"
        "GPUs:            request 2, free 0, missing 2\n"
        "Queue position:  3\n"
        "Ahead:           b-4-gg (team-b), a job of team-c\n"
        "Held by:         team-d 8, team-a 8 (4 over quota)\n"
        "It would start if it asked for 1 GPU.\n"
    )
    note = {"start_estimate_note": "How fast its dataset is copied is not known yet."}
    server.on("GET", f"jobs/{JOB_ID}/explain", answer | note)
    assert "Start estimate:  not known. How fast its dataset" in yard("explain", JOB_ID).out
    known = {"earliest": "2026-01-02T03:04:05Z", "latest": "2026-01-02T03:14:05Z"}
    server.on("GET", f"jobs/{JOB_ID}/explain", answer | note | {"start_estimate": known})
    assert ":05Z. How fast its dataset" in yard("explain", JOB_ID).out


def test_every_command_that_deletes_takes_yes(yard):
    deleting = [path for path in COMMANDS if path.split()[-1] in ("delete", "remove", "revoke", "uncache")]
    assert {"delete", "dataset delete", "token revoke", "cluster remove"} <= set(deleting)
    for name in deleting:
        assert "-y, --yes" in yard(*name.split(), "--help").out, name


def test_a_dataset_is_deleted_when_its_name_is_typed_or_yes_is_given(server, yard, monkeypatch):
    xray = {"id": JOB_ID, "name": "xray", "project": "team-a", "latest": 3}
    server.on("GET", "datasets", page(xray))
    server.on("DELETE", f"datasets/{JOB_ID}", xray)
    refused = yard("dataset", "delete", "xray")
    assert (refused.code, "xray has 3 versions" in refused.err) == (2, True)
    for typed, code in (("no\n", 1), ("xray\n", 0)):
        monkeypatch.setattr(sys, "stdin", Typing(typed))
        asked = yard("dataset", "delete", "xray")
        assert (asked.code, "Type its name to delete it" in asked.err) == (code, True)
    monkeypatch.setattr(sys, "stdin", Typing(""))
    assert yard("dataset", "delete", "xray", "-y").code == 0
    assert len(server.requests("DELETE", f"datasets/{JOB_ID}")) == 2


class Typing(io.StringIO):
    """A user at a terminal."""

    def isatty(self) -> bool:
        return True


def test_node_pools_are_created_and_deleted_and_nodes_moved(server, yard):
    pool = {"name": "burst", "cluster": "prod", "is_spot": True, "nodes": []}
    server.on("POST", "node-pools", Reply(201, pool))
    server.on("DELETE", "node-pools/burst", Reply(204, None))
    for name in ("n1", "n2"):
        server.on("PATCH", f"nodes/{name}", {"name": name, "node_pool": "burst"})
    assert "burst created on prod" in yard("node-pool", "create", "burst", "--spot", "--cluster", "prod").out
    assert server.asked[-1].body == {"name": "burst", "is_spot": True, "cluster": "prod"}
    assert yard("node", "move", "n1", "n2", "--pool", "burst").code == 0
    assert [one.body for one in server.asked[-2:]] == [{"node_pool": "burst"}] * 2
    assert "in no pool" in yard("node", "move", "n1", "--no-pool").out
    assert server.asked[-1].body == {"node_pool": None}
    assert yard("node", "move", "n1").code == 2
    assert yard("node-pool", "delete", "burst", "--cluster", "prod").code == 0
    assert server.asked[-1].query == {"cluster": "prod"}


def test_project_create_and_edit_send_what_was_given(server, yard):
    made = {"name": "team-z", "cluster": "prod", "warnings": ["above the cluster"]}
    server.on("POST", "projects", Reply(201, made))
    server.on("PATCH", "projects/team-z", {"name": "team-z"})
    created = yard("project", "create", "team-z", "--gpu-quota", "2.5", "--node-pools", "train=dgx,a100",
                   "--node-pools", "interactive=", "--interactive-max", "4h", "--member", "ana:owner")  # fmt: skip
    assert created.code == 0
    assert "on cluster prod" in created.out + created.err
    assert "warning: above the cluster" in created.err
    assert server.asked[0].body == {
        "name": "team-z",
        "gpu_quota": 2.5,
        "node_pools": {"train": ["dgx", "a100"], "interactive": []},
        "interactive_max_seconds": 14400,
        "members": [{"user": "ana", "role": "owner"}],
    }
    assert yard("project", "edit", "team-z", "--gpu-limit", "none", "--over-quota-weight", "0").code == 0
    assert server.asked[1].body == {"gpu_limit": None, "over_quota_weight": 0}
    assert yard("project", "edit", "team-z").code == 2
    assert yard("project", "create", "x", "--member", "ana:king").code == 2


def test_names_cannot_leave_their_place_in_the_address(server, yard):
    assert yard("describe", "project", "../users").code == 3
    assert server.asked[0].path == "/api/v1/projects/..%2Fusers"


DEVICE = {
    "index": 0,
    "model": "V100",
    "allocated": 0.5,
    "memory_mib": 32768,
    "memory_used_mib": 16384,
    "utilization": 0.9,
}
NODE = {
    "name": "dgx1-1", "cluster": "local", "node_pool": "dgx", "is_ready": True, "is_reachable": True,
    "is_cordoned": False, "gpus": 8, "allocated_gpus": 2.5, "gpu_utilization": 0.5, "seen_at": None,
    "devices": [DEVICE],
}  # fmt: skip


def test_nodes(server, yard):
    server.on(
        "GET",
        "nodes",
        page(
            NODE,
            {**NODE, "name": "dgx1-2", "is_cordoned": True},
            {**NODE, "is_ready": False},
            {**NODE, "is_reachable": False},
        ),
    )
    lines = yard("list", "nodes").out.splitlines()
    assert lines[1].split() == ["dgx1-1", "ready", "dgx", "8", "2.5", "50%", "50%"]
    assert [line.split()[1] for line in lines[2:]] == ["cordoned", "not_ready", "unreachable"]
    assert "10 of 32 GPUs allocated" in yard("top", "nodes").out


def test_describe_node_keeps_other_peoples_pods_nameless(server, yard):
    pods = [
        {
            "name": None,
            "project": "team-b",
            "user": None,
            "state": "running",
            "devices": [{"index": 0, "share": 0.5}],
        }
    ]
    server.on("GET", "nodes/dgx1-1", {**NODE, "pods": pods})
    out = yard("describe", "node", "dgx1-1").out
    assert "-    team-b   -     running  0 (0.5)" in out
    assert re.search(r"^ *0 .* a job of team-b$", out, re.MULTILINE)


def test_describe_node_names_the_pods_that_hold_a_device(server, yard):
    held = {"project": "team-a", "user": "ana", "state": "running", "devices": [{"index": 0, "share": 0.5}]}
    server.on("GET", "nodes/dgx1-1", {**NODE, "pods": [held | {"name": "a-1-0"}, held | {"name": "b-1-0"}]})
    assert re.search(r"^ *0 .* a-1-0, b-1-0$", yard("describe", "node", "dgx1-1").out, re.MULTILINE)


def test_cordon_and_drain(server, yard):
    server.on("POST", "nodes/dgx1-1/cordon", NODE)
    server.on("POST", "nodes/dgx1-1/drain", {"moves": [{"name": "hyper1"}], "stays": [{"name": "notebook"}]})
    assert yard("node", "cordon", "dgx1-1").out == "node dgx1-1 is cordoned\n"
    assert (
        yard("node", "drain", "dgx1-1", "--dry-run").out
        == "node dgx1-1: would move hyper1; stays until it ends: notebook\n"
    )
    assert server.asked[-1].query == {"dry_run": "true"}


def test_a_tokens_secret_alone_on_standard_output(server, yard):
    server.on("POST", "tokens", Reply(201, {"id": 1, "token": "secret"}))
    ran = yard("token", "create", "ci", "--days", "3", "--read-only")
    assert ran.out == "secret\n"
    assert server.asked[0].body == {"name": "ci", "days": 3, "is_read_only": True}


def test_doctor_when_all_is_well(server, yard):
    for path, answer in (
        ("/healthz", {}),
        ("/readyz", {}),
        ("whoami", {"username": "ana"}),
        ("projects/team-a", {}),
        ("clusters", page(cluster("local"))),
    ):
        server.on("GET", path, answer)
    ran = yard("doctor")
    assert ran.code == 0
    assert [line.split("  ")[0] for line in ran.out.splitlines()[1:]] == [
        "config file",
        "server",
        "ready",
        "login",
        "project",
        "clusters",
    ]


def test_doctor_says_what_is_wrong_and_goes_on_where_it_can(server, yard):
    server.on("GET", "/healthz", {})
    server.on(
        "GET", "/readyz", problem(503, "not_ready", "The loop has not run.", headers={"Retry-After": "0"})
    )
    server.on("GET", "whoami", problem(401, "not_authenticated", "No credential."))
    ran = yard("doctor")
    assert ran.code == 6
    assert "The loop has not run." in ran.out
    assert "yard login URL" in ran.out


def test_doctor_sees_a_token_that_others_may_read(server, yard, settings, monkeypatch):
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    settings.parent.mkdir()
    contexts = {"here": {"url": server.url, "token": "secret"}}
    settings.write_text(json.dumps({"current": "here", "contexts": contexts}))
    settings.chmod(0o644)
    ran = yard("doctor")
    assert ran.code == 1
    assert f"chmod 600 {settings}" in ran.out


def test_a_context_by_name_beats_the_environment(server, yard, settings):
    settings.parent.mkdir()
    contexts = {"lab": {"url": f"{server.url}/lab", "token": "lab-token", "project": "p"}}
    settings.write_text(json.dumps({"current": "other", "contexts": contexts}))
    server.on("GET", "/lab/api/v1/projects/p/jobs", page())
    assert yard("list", "jobs", "--context", "lab").code == 0
    assert server.asked[0].headers["Authorization"] == "Bearer lab-token"


def test_a_config_file_that_is_none_is_said_and_kept(yard, settings):
    settings.parent.mkdir()
    settings.write_text("not json")
    ran = yard("config", "contexts")
    assert ran.code == 2
    assert settings.read_text() == "not json"


LISTS = ["clusters", "departments", "jobs", "node-pools", "nodes", "projects", "tokens", "users"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["li"], ["lineage", "list"]),
        (["list", ""], LISTS),
        (["list", "jobs", "--st"], ["--state"]),
        (["stop", "hy"], ["hyper1", "hyper2"]),
        (["logs", "-p", "team"], ["team-a"]),
        (["-p", "team"], ["team-a"]),
        (["-p", "team-a", "node", "dr"], ["drain"]),
        (["node", "cordon", ""], ["dgx1-1"]),
        (["nonsense", ""], []),
    ],
)
def test_completion_candidates(server, yard, typed, words):
    server.on("GET", "projects/team-a/jobs", page({"name": "hyper1"}, {"name": "hyper2"}))
    server.on("GET", "projects", page({"name": "team-a"}))
    server.on("GET", "nodes", page({"name": "dgx1-1"}))
    ran = yard("__complete", *typed)
    assert ran.out.split() == words


def test_completion_is_silent_when_the_server_is_away(yard, monkeypatch):
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:1")
    ran = yard("__complete", "stop", "")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_image_names_complete_after_the_flag(server, yard):
    server.on("GET", "images", page({"name": "quickstart"}, {"name": "python"}))
    assert yard("__complete", "submit", "a", "-i", "qu").out == "quickstart\n"
    assert yard("__complete", "submit", "a", "--image", "").out == "python\nquickstart\n"
    # The route has no query fields, and refuses unknown ones.
    assert [asked.query for asked in server.asked] == [{}, {}]


def test_bash_completes_with_the_script(server, yard, settings, tmp_path):
    """Bash itself reads the script and asks a `yard` on the PATH."""
    stand_in = tmp_path / "yard"
    stand_in.write_text('#!/bin/sh\n[ "$1" = __complete ] && [ "$2" = li ] && echo list\n')
    stand_in.chmod(0o755)
    script = (
        yard("completion", "bash").out
        + '\nCOMP_WORDS=(yard li); COMP_CWORD=1; _yard; echo "${COMPREPLY[@]}"\n'
    )
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert ran.stdout == "list\n"


def test_an_unknown_shell_has_no_completion(yard):
    assert yard("completion", "powershell").code == 2


def test_members(server, yard):
    server.on("GET", "projects/team-a/members", page({"user": "ana", "role": "owner"}))
    server.on("POST", "projects/team-a/members", Reply(201, {}))
    server.on("DELETE", "projects/team-a/members/chi", Reply(204))
    ran = yard("project", "members", "team-a", "--add", "ben:member", "--remove", "chi")
    assert server.asked[0].body == {"user": "ben", "role": "member"}
    assert ran.out.split() == [*(column.heading for column in MEMBER_COLUMNS), "ana", "owner"]


def test_scaling_counts_from_where_the_job_is(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", {**job(), "workers": 3})
    server.on("POST", f"jobs/{JOB_ID}/scale", operation(state="succeeded"))
    assert yard("scale", JOB_ID, "--workers", "5").code == 0
    assert yard("scaleout", JOB_ID, "--count", "2", "--timeout", "10m").code == 0
    assert yard("scalein", JOB_ID).code == 0
    bodies = [asked.body for asked in server.requests("POST", f"jobs/{JOB_ID}/scale")]
    assert bodies == [{"workers": 5}, {"workers": 5, "timeout_seconds": 600}, {"workers": 2}]


def operation(**fields):
    told = {
        "pause_seconds": None,
        "lost_steps": None,
        "repeated_steps": None,
        "generation": None,
        "message": "",
    }
    return {"id": "op-1", "from": 3, "to": 5, "state": "pending", **told, **fields}


def test_a_running_job_is_scaled_from_the_size_it_has_and_waited_for(server, yard):
    running = job()
    running["status"]["workers"] = 4
    server.on("GET", f"jobs/{JOB_ID}", {**running, "workers": 3})
    server.on("POST", f"jobs/{JOB_ID}/scale", operation())
    done = operation(state="succeeded", generation=2, pause_seconds=0.05, lost_steps=0, repeated_steps=0)
    server.on("GET", f"jobs/{JOB_ID}/scale-operations", page(done))
    server.on("GET", "watch", events(("state", {}), ("change", {})))
    ran = yard("scaleout", JOB_ID, "--wait")
    assert (ran.code, "0 steps lost, 0 repeated, pause 0.05 s" in ran.out) == (0, True)
    back = operation(state="rolled_back", message="These workers were not ready to join in time: 3.")
    server.on("GET", f"jobs/{JOB_ID}/scale-operations", page(back))
    ran = yard("scaleout", JOB_ID, "--wait")
    assert (ran.code, "rolled back: These workers were not ready" in ran.out) == (1, True)
    assert server.requests("POST", f"jobs/{JOB_ID}/scale")[0].body == {"workers": 5}


def test_a_dry_run_names_who_would_leave(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", {**job(), "workers": 3})
    plan = operation(id=None, to=2, state="planned", message="worker 2 leaves: a is a spot node")
    server.on("POST", f"jobs/{JOB_ID}/scale", plan)
    ran = yard("scalein", JOB_ID, "--dry-run", "--leaving", "2")
    assert (ran.code, "worker 2 leaves" in ran.out) == (0, True)
    asked = server.requests("POST", f"jobs/{JOB_ID}/scale")[0]
    assert (asked.body, asked.query) == ({"workers": 2, "leaving": [2]}, {"dry_run": "true"})


def test_watching_json_is_one_line_an_answer(server, yard, monkeypatch):
    """Ends with the server's refusal here; a person ends it with Ctrl-C."""
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)
    answers = (
        page(job(state="queued")),
        page(job(state="queued")),
        page(job()),
        problem(403, "forbidden", "No more."),
    )
    server.on("GET", "projects/team-a/jobs", *answers)
    server.on("GET", "watch", events(("state", {}), ("change", {}), ("change", {}), ("change", {})))
    monkeypatch.setattr("controlplane.cli.watch.SILENCE_SECONDS", 0.01)
    ran = yard("list", "jobs", "-o", "json", "--watch")
    assert ran.code == 4
    states = [json.loads(line)["results"][0]["status"]["state"] for line in ran.out.splitlines()]
    assert server.requests("GET", "watch")[0].query["topics"] == "activity"
    assert states == ["queued", "running"]


AWAY = "Its cluster does not answer. The data below was read before."


def test_a_job_whose_cluster_is_away_says_so_and_promises_nothing(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", job(is_reachable=False))
    server.on("GET", f"jobs/{JOB_ID}/events", page())
    server.on("GET", f"jobs/{JOB_ID}/explain", {"reason": {"message": "Started."}, "is_reachable": False})
    shown = yard("describe", "job", JOB_ID).out
    assert shown.count(AWAY) == 1
    assert "40/100" in shown
    assert "eta" not in shown
    assert yard("explain", JOB_ID).out.splitlines()[1] == AWAY


def test_what_is_final_does_not_need_the_cluster(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", job(state="succeeded", is_reachable=False))
    server.on("GET", f"jobs/{JOB_ID}/events", page())
    assert AWAY not in yard("describe", "job", JOB_ID).out


@pytest.mark.parametrize(
    ("next_url", "said"),
    [(None, "and 2 more: -e 3 shows all"), ("/api/v1/x", "and more than 2 more: -e N shows more")],
)
def test_events_that_are_left_out_are_counted(server, yard, monkeypatch, next_url, said):
    monkeypatch.setattr(jobs, "EVENTS_COUNTED", 3)
    happened = {"at": "2026-01-02T03:04:05Z", "kind": "job.started", "reason": "", "actor": "", "message": ""}
    server.on("GET", f"jobs/{JOB_ID}", job())
    server.on("GET", f"jobs/{JOB_ID}/events", page(happened, happened, happened, next_url=next_url))
    ran = yard("describe", "job", JOB_ID, "-e", "1")
    assert ran.out.count("job.started") == 1
    assert said in ran.out
    assert " more" not in yard("describe", "job", JOB_ID, "-e", "3").out


def test_nodes_of_two_clusters_are_told_apart(server, yard):
    server.on("GET", "nodes", page(NODE))
    assert "CLUSTER" not in yard("list", "nodes").out
    server.on("GET", "nodes", page(NODE, {**NODE, "cluster": "prod"}))
    lines = yard("list", "nodes").out.splitlines()
    assert "CLUSTER" in lines[0].split()
    assert "prod" in lines[2].split()


def test_when_a_node_was_seen_is_said_of_one_that_is_not(server, yard):
    seen = {**NODE, "seen_at": "2020-01-02T03:04:05Z"}
    server.on("GET", "nodes", page(seen, seen | {"is_ready": False}, seen | {"is_reachable": False}))
    lines = yard("list", "nodes", "-o", "wide").out.splitlines()
    assert lines[1].split()[-1] == "-"
    assert all(line.split()[-1] != "-" for line in lines[2:])


@pytest.mark.parametrize(
    ("given", "said"), [(1 << 30, "is being resized; it has 1 GiB"), (2 << 30, "has 2 GiB")]
)
def test_a_size_that_the_storage_still_has_to_give_is_told_apart(server, yard, given, said):
    server.on("GET", "volumes", page({"id": "1", "name": "data", "size_bytes": 1 << 30}))
    server.on("POST", "volumes/1/resize", Reply(200, {"size_bytes": given, "is_size_enforced": False}))
    ran = yard("volume", "resize", "data", "--size", "2Gi")
    assert (ran.code, ran.err.strip() or ran.out.strip()) == (0, f"volume data {said}")
