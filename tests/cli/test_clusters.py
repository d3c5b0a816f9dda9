"""`yard cluster`, `yard department` and `yard node confirm-dead`: what leaves this machine, and what is told."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import cluster
from tests.cli.scripted import Reply, page, problem

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: prod
clusters:
- {name: prod, cluster: {server: "https://10.0.0.1:6443", certificate-authority: pki/ca.crt}}
- {name: lab, cluster: {server: "https://10.0.0.2:6443"}}
users:
- {name: yard, user: {client-certificate: pki/yard.crt, client-key: pki/yard.key}}
- {name: ana, user: {token: the-secret-of-ana}}
- {name: mounted, user: {tokenFile: pki/token}}
contexts:
- {name: prod, context: {cluster: prod, user: yard}}
- {name: lab, context: {cluster: lab, user: mounted}}
- {name: broken, context: {cluster: nowhere, user: yard}}
"""
OK = {"name": "GPUs", "outcome": "ok", "message": "16 of nvidia.com/gpu.", "without_it": "No GPU jobs."}
WARNING = {"name": "storage", "outcome": "warning", "message": "None.", "without_it": "Checkpoints are lost."}
FAILED = {"name": "API server", "outcome": "failed", "message": "No answer.", "without_it": "Nothing works."}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    (tmp_path / "pki").mkdir()
    for name, text in (
        ("ca.crt", "CA"),
        ("yard.crt", "CERT"),
        ("yard.key", "KEY"),
        ("token", "mounted-token\n"),
    ):
        (tmp_path / "pki" / name).write_text(text)
    path = tmp_path / "config.yaml"
    path.write_text(KUBECONFIG)
    return path


def sent_config(server: Any) -> dict[str, Any]:
    return json.loads(server.asked[0].body["kubeconfig"])


def test_add_sends_one_context_complete_in_itself_and_waits(server, yard, kubeconfig):
    looked_at = cluster(state="checking", is_checking=True)
    server.on("POST", "clusters", Reply(201, looked_at))
    server.on("GET", "clusters/prod", looked_at, cluster(checks=[OK, WARNING]))
    ran = yard(
        "cluster", "add", "prod", "--kubeconfig", str(kubeconfig), "--scheduler", "kai",
        "--set", "work_size=5Gi", "--set", "shm_mib=1024", "--set", 'spot_pools=["*"]',
    )  # fmt: skip
    assert ran.code == 0
    body = server.asked[0].body
    assert ("engine" in body, body["scheduler"]) == (False, "kai")
    assert body["settings"] == {"work_size": "5Gi", "shm_mib": 1024, "spot_pools": ["*"]}
    assert sent_config(server) == {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "yard"}}],
        "clusters": [
            {
                "name": "prod",
                "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority-data": "Q0E="},
            }
        ],
        "users": [
            {"name": "yard", "user": {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}}
        ],
    }
    assert "the-secret-of-ana" not in server.asked[0].body["kubeconfig"]
    for text in ("attached", "16 of nvidia.com/gpu.", "warning", "Checkpoints are lost."):
        assert text in ran.out
    assert "No GPU jobs." not in ran.out


def test_add_sends_a_kind_its_credentials_and_its_scheduler_as_given(server, yard, tmp_path):
    server.on("POST", "clusters", Reply(201, cluster()))
    (tmp_path / "token").write_text("abc")
    ran = yard(
        "cluster", "add", "hpc", "--engine", "slurm", "--scheduler", "slurmctld", "--no-wait",
        "--credential", f"token=@{tmp_path / 'token'}", "--credential", "user=ana",
    )  # fmt: skip
    assert ran.code == 0
    given = {"engine": "slurm", "scheduler": "slurmctld", "token": "abc", "user": "ana"}
    assert server.asked[0].body == {"name": "hpc", "settings": {}, **given}


def test_add_waits_until_the_nodes_are_counted(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda self, seconds: None)
    server.on("POST", "clusters", Reply(201, cluster(state="checking", is_checking=True)))
    uncounted = cluster(checks=[OK]) | {"nodes": 0, "nodes_ready": 0, "gpus": 0}
    server.on("GET", "clusters/prod", uncounted, uncounted, cluster(checks=[OK]))
    ran = yard("cluster", "add", "prod", "--in-cluster")
    assert (ran.code, " 16 " in f"{ran.out} ", ran.err) == (0, True, "")
    monkeypatch.setattr("controlplane.cli.commands.clusters.COUNT_SECONDS", 0)
    server.on("GET", "clusters/prod", uncounted)
    ran = yard("cluster", "add", "prod", "--in-cluster")
    assert (ran.code, ran.err) == (0, "yard: no node of prod has been seen yet\n")


def test_what_the_first_count_finds_is_told(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda self, seconds: None)
    left_out = FAILED | {"name": "nodes", "message": "2 of 2 nodes are left out."}
    server.on("POST", "clusters", Reply(201, cluster(state="checking", is_checking=True)))
    server.on(
        "GET",
        "clusters/prod",
        cluster(checks=[OK]) | {"nodes": 0},
        cluster(checks=[OK, left_out]) | {"nodes": 0},
    )
    ran = yard("cluster", "add", "prod", "--in-cluster")
    assert (ran.code, "2 of 2 nodes are left out." in ran.out) == (1, True)


def test_another_context_and_a_token_file(server, yard, kubeconfig):
    server.on("POST", "clusters", Reply(201, cluster()))
    assert (
        yard("cluster", "add", "lab", "--kubeconfig", str(kubeconfig), "--context", "lab", "--no-wait").code
        == 0
    )
    assert sent_config(server)["users"] == [{"name": "mounted", "user": {"token": "mounted-token"}}]
    assert server.asked[0].body["context"] == "lab"


def test_a_refused_cluster_is_exit_code_1_and_says_what_failed(server, yard):
    server.on("POST", "clusters", Reply(201, cluster(state="refused", checks=[OK, FAILED])))
    ran = yard("cluster", "add", "prod", "--in-cluster")
    assert (ran.code, server.asked[0].body["in_cluster"]) == (1, True)
    assert "No answer." in ran.out
    assert "was refused" in ran.err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ((), "it is not known how to reach the cluster"),
        (("--kubeconfig", "/nowhere/config"), "cannot be read"),
        (("--credential", "token=@/nowhere/token"), "cannot be read"),
        (("--kubeconfig", "FILE", "--context", "moon"), "prod, lab, broken"),
        (("--kubeconfig", "FILE", "--context", "broken"), "no cluster named 'nowhere'"),
    ],
)
def test_what_cannot_be_read_here_is_not_sent(server, yard, kubeconfig, argv, told):
    ran = yard("cluster", "add", "prod", *(str(kubeconfig) if word == "FILE" else word for word in argv))
    assert (ran.code, server.asked) == (2, [])
    assert told in ran.err


@pytest.mark.parametrize("text", ["a: [", "{", "- 1", "contexts: 3"])
def test_a_file_that_is_no_kubeconfig(server, yard, tmp_path, text):
    (tmp_path / "bad").write_text(text)
    assert yard("cluster", "add", "prod", "--kubeconfig", str(tmp_path / "bad")).code == 2
    assert server.asked == []


def test_a_missing_certificate_file_is_named(server, yard, kubeconfig):
    (kubeconfig.parent / "pki" / "yard.key").unlink()
    ran = yard("cluster", "add", "prod", "--kubeconfig", str(kubeconfig))
    assert ran.code == 2
    assert "yard.key" in ran.err


def test_edit_keeps_other_settings_and_what_was_attached(server, yard):
    server.on("GET", "clusters/prod", {**cluster(), "settings": {"work_size": "5Gi", "pool_label": "pool"}})
    server.on("PATCH", "clusters/prod", cluster(checks=[FAILED]))
    ran = yard("cluster", "edit", "prod", "--set", "work_size=9Gi", "--unset", "pool_label")
    assert server.asked[-1].body == {"settings": {"work_size": "9Gi"}}
    assert ran.code == 1
    assert "stays attached as it was" in ran.err
    assert yard("cluster", "edit", "prod").code == 2


def test_the_half_life_of_past_use_is_hours_or_the_servers(server, yard):
    server.on("PATCH", "clusters/prod", cluster(checks=[OK]))
    for given, sent in (("24", 24), ("0", 0), ("default", None)):
        assert yard("cluster", "edit", "prod", "--usage-half-life", given).code == 0
        assert server.asked[-1].body == {"usage_half_life_hours": sent}
    assert yard("cluster", "edit", "prod", "--usage-half-life", "1d").code == 2


def test_check_list_and_describe(server, yard):
    server.on("POST", "clusters/prod/check", cluster(checks=[OK]))
    server.on(
        "GET",
        "clusters",
        page(cluster(), cluster("lab", is_reachable=False), cluster("old", state="refused")),
    )
    server.on("GET", "clusters/lab", cluster("lab", is_reachable=False, unreachable_message="No route."))
    assert yard("cluster", "check", "prod").code == 0
    listed = yard("cluster", "list").out.splitlines()
    assert [line.split()[3] for line in listed[1:]] == ["attached", "unreachable", "refused"]
    assert "Not reachable: No route." in yard("cluster", "describe", "lab").out


def test_waiting_ends(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda self, seconds: None)
    server.on("POST", "clusters/prod/check", cluster(is_checking=True))
    server.on("GET", "clusters/prod", cluster(is_checking=True))
    assert yard("cluster", "check", "prod", "--timeout", "1").code == 7


def test_remove_says_what_goes(server, yard):
    server.on("GET", "clusters/prod", cluster())
    server.on("DELETE", "clusters/prod", Reply(204))
    assert "would be detached" in yard("cluster", "remove", "prod", "--dry-run").out
    assert server.asked[-1].query == {"dry_run": "true"}
    assert "2 nodes leave the lists" in yard("cluster", "remove", "prod").out
    server.on("DELETE", "clusters/prod", problem(409, "cluster_in_use", "prod has projects."))
    assert yard("cluster", "remove", "prod").code == yard("cluster", "remove", "prod", "--dry-run").code == 5


def test_doctor_tells_of_clusters_that_lack_something(server, yard):
    for path, answer in (
        ("/healthz", {}),
        ("/readyz", {}),
        ("whoami", {"username": "ana"}),
        ("projects/team-a", {}),
    ):
        server.on("GET", path, answer)
    refused, away = (
        cluster("old", state="refused"),
        cluster("lab", is_reachable=False, unreachable_message="Gone."),
    )
    server.on("GET", "clusters", page(cluster(checks=[OK, WARNING]), refused, away))
    ran = yard("doctor")
    assert ran.code == 0
    for text in ("prod lacks storage", "old is refused", "lab does not answer: Gone."):
        assert text in ran.out


def test_departments(server, yard):
    research = {
        "name": "research",
        "gpu_quota": 12,
        "over_quota_weight": None,
        "gpu_limit": None,
        "priority": 0,
    }
    server.on("POST", "departments", Reply(201, {**research, "projects": []}))
    server.on("PATCH", "departments/research", research)
    server.on("GET", "departments", page({**research, "projects": ["team-a", "team-b"]}))
    server.on("DELETE", "departments/research", Reply(204))
    assert yard("department", "create", "research", "--gpu-quota", "12").code == 0
    assert yard("department", "edit", "research", "--gpu-limit", "none").code == 0
    assert [asked.body for asked in server.asked] == [
        {"name": "research", "gpu_quota": 12},
        {"gpu_limit": None},
    ]
    assert yard("department", "edit", "research").code == 2
    assert "team-a, team-b" in yard("department", "list").out
    assert yard("department", "delete", "research").code == 0


def test_a_node_is_confirmed_dead(server, yard):
    server.on(
        "POST", "nodes/dgx1-1/confirm-dead", {"node": "dgx1-1", "moves": [{"name": "hyper1"}], "stays": []}
    )
    assert "would be released; it held hyper1" in yard("node", "confirm-dead", "dgx1-1", "--dry-run").out
    assert "released and cordoned" in yard("node", "confirm-dead", "dgx1-1").out


TAKEN = {"project": "team-a", "cluster": "prod", "is_reachable": True, "namespace": "yard-team-a"}


def test_moving_a_project_says_what_its_cluster_loses(server, yard):
    taken = {**TAKEN, "working_directories": 0}
    server.on("DELETE", "projects/team-a", taken | {"unfinished_jobs": 0, "finished_jobs": 0, "members": 2})
    server.on("PATCH", "projects/team-a", {"name": "team-a", "cluster": "lab"})
    move = ("project", "edit", "team-a", "--cluster")
    lost = "the namespace yard-team-a on prod, if it is Trainyard's, with everything in it"
    assert f"would change; the move removes {lost}" in yard(*move, "lab", "--dry-run").out
    assert f"changed; the move removes {lost}" in yard(*move, "lab", "--yes").out
    assert lost not in yard(*move, "prod").out
    queries = [asked.query for asked in server.requests("PATCH", "projects/team-a")]
    assert queries == [{"dry_run": "true"}, {}, {}]
    assert all(asked.query == {"dry_run": "true"} for asked in server.requests("DELETE", "projects/team-a"))


def test_moving_a_project_asks_on_a_terminal(server, yard, monkeypatch):
    taken = {**TAKEN, "working_directories": 0}
    server.on("DELETE", "projects/team-a", taken | {"unfinished_jobs": 0, "finished_jobs": 0, "members": 2})
    server.on("PATCH", "projects/team-a", {"name": "team-a", "cluster": "lab"})
    for typed, code in (("no\n", 1), ("team-a\n", 0)):
        monkeypatch.setattr(sys, "stdin", Typing(typed))
        ran = yard("project", "edit", "team-a", "--cluster", "lab")
        assert (ran.code, "yard-team-a on prod" in ran.err) == (code, True)
    assert len(server.requests("PATCH", "projects/team-a")) == 1
    monkeypatch.setattr(sys, "stdin", Typing("team-a\n"))
    assert yard("project", "edit", "team-a", "--gpu-quota", "2").err == ""


class Typing(io.StringIO):
    """Somebody at a terminal."""

    def isatty(self) -> bool:
        return True


def test_deleting_a_project_says_what_goes(server, yard):
    taken = {**TAKEN, "working_directories": 3}
    server.on("DELETE", "projects/team-a", taken | {"unfinished_jobs": 1, "finished_jobs": 4, "members": 2})
    ran = yard("project", "delete", "team-a", "--dry-run")
    for text in ("cannot be deleted yet", "1 unfinished", "4 finished", "3 working", "yard-team-a on prod"):
        assert text in ran.out
    assert ran.code == 5  # as the deletion itself
    server.on("DELETE", "projects/team-a", taken | {"unfinished_jobs": 0, "finished_jobs": 4, "members": 2})
    ran = yard("project", "delete", "team-a", "--dry-run")
    assert (ran.code, "would be deleted with 4 finished jobs" in ran.out) == (0, True)
    assert "stays" not in ran.out


def test_a_namespace_on_a_cluster_that_is_away_stays_until_it_answers(server, yard):
    counts = {"working_directories": 0, "unfinished_jobs": 0, "finished_jobs": 0, "members": 2}
    server.on("DELETE", "projects/team-a", {**TAKEN, "is_reachable": False, **counts})
    for dry_run in ("--dry-run",), ():
        ran = yard("project", "delete", "team-a", *dry_run)
        assert "with everything in it (it stays until prod answers)" in ran.out
