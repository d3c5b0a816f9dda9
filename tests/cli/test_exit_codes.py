"""What a script learns from the exit code, and what a person reads on standard error."""

import socket

import pytest

from tests.cli.conftest import JOB_ID, job
from tests.cli.scripted import Reply, events, page, problem


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (413, 2), (415, 2), (422, 2), (401, 4), (403, 4), (404, 3), (409, 5), (412, 5), (500, 1)],
)
def test_each_refusal_has_its_exit_code_and_shows_the_servers_words(server, yard, status, code):
    server.on("GET", "whoami", problem(status, "some_code", "Do this instead."))
    ran = yard("whoami")
    assert ran.code == code
    assert "yard: Do this instead. (some_code)" in ran.err
    assert ran.out == ""


def test_every_refused_field_is_named(server, yard):
    errors = [
        {"pointer": "/gpus", "code": "too_large", "detail": "At most 8 fit on a node."},
        {"pointer": "/ports/3/port", "code": "out_of_range", "detail": "Use 1 to 65535."},
    ]
    server.on("POST", "projects/team-a/jobs", problem(400, "invalid", "The job is refused.", errors=errors))
    ran = yard("submit", "x", "-g", "9")
    assert ran.code == 2
    assert "  gpus: At most 8 fit on a node." in ran.err
    assert "  ports.3.port: Use 1 to 65535." in ran.err


def test_a_field_is_not_said_twice(server, yard):
    errors = [{"pointer": "/gpus", "code": "too_large", "detail": "At most 8."}]
    server.on("POST", "projects/team-a/jobs", problem(400, "too_large", "At most 8.", errors=errors))
    assert yard("submit", "x", "-g", "9").err == "yard: refused (too_large)\n  gpus: At most 8.\n"


def test_not_logged_in_says_how_to_log_in(server, yard):
    server.on("GET", "whoami", problem(401, "not_authenticated", "No credential."))
    assert "yard login URL" in yard("whoami").err


def test_an_unreachable_server_is_6_and_points_to_doctor(yard, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TRAINYARD_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        ran = yard("whoami")
    assert ran.code == 6
    assert "yard doctor" in ran.err


def test_busy_for_good_is_6_after_the_retries(server, yard):
    server.on("GET", "whoami", problem(503, "not_ready", "Starting.", headers={"Retry-After": "0"}))
    assert yard("whoami").code == 6
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["flow", "list"], "unknown command 'flow'"),
        (["lst", "jobs"], "did you mean: yard list jobs"),
        (["list", "jbos"], "did you mean: yard list jobs"),
        (["submit"], "required: NAME"),
        (["submit", "x", "--gpuss", "1"], "did you mean --gpus?"),
        (["submit", "x", "-g", "nan"], "not a number"),
        (["submit", "x", "-g", "1e999"], "not a number"),
        (["submit", "x", "-e", "NOVALUE"], "is not NAME=VALUE"),
        (["submit", "x", "--max-runtime", "soon"], "not a duration"),
        (["submit", "x", "-g", "nan"], "'nan' is not a number"),
        (["list", "jobs", "-o", "xml"], "no such format"),
        (["list", "jobs", "--", "ls"], "takes no command"),
        (["stop", "x", "--watch"], "nothing to --watch"),
        (["wait", "x", "--for", "happy"], "no such state"),
        (["config", "use", "nowhere"], "no context 'nowhere'"),
        (["project"], "yard: project needs a command"),
        (["-p", "team-a", "dataset"], "yard: dataset needs a command"),
        (["describe", "-p", "team-a"], "yard: describe needs a command"),
        (["dataset", "sycn"], "unknown command 'dataset sycn'\n  did you mean: yard dataset sync"),
        (["dataset", "frobnicate"], "unknown command 'dataset frobnicate'\n  see: yard help dataset"),
        (["data"], "unknown command 'data'\n  did you mean: yard dataset"),
        (["dataste", "sync"], "unknown command 'dataste'\n  did you mean: yard dataset sync"),
        (["-p", "team-a"], "no command"),
        (["list", "jobs", "--context", "nowhere"], "no context 'nowhere'"),
        (["dataset", "delete", "xray@1", "--yes"], "'xray@1' names a version; this is for whole datasets"),
        (["dataset", "versions", "xray@1"], "names a version"),
        (["dataset", "diff", "xray@1", "1", "2"], "names a version"),
        (["dataset", "register", "xray@1", "/data"], "names a version"),
        (["dataset", "caches", "xray@1"], "names a version"),
        (["dataset", "sync", ".", "--name", "xray@1"], "names a version"),
        (["dataset", "tag", "xray@1/part", "golden"], "'xray@1/part' names a subset"),
        (["dataset", "sync", ""], "'' is not the path of a directory"),
        (["dataset", "init", "x", ""], "'' is not the path of a directory"),
        (["dataset", "clone", "xray@1", ""], "'' is not the path of a directory"),
        (["artifact", "download", "train1/model", ""], "'' is not the path of a directory"),
        (["dataset", "files", "xray", "--limit", "-5"], "'-5' is not a whole number above 0"),
        (["dataset", "diff", "xray", "1", "2", "--limit", "0"], "'0' is not a whole number above 0"),
        (["describe", "job", ""], "an empty name names no job"),
        (["lineage", ""], "an empty name names no job"),
        (["submit", "x", "--like", ""], "an empty name names no job"),
        (["volume", "describe", ""], "an empty name names no volume"),
        (["submit", "x", "--code", ""], "'' is not the path of a directory"),
        (["submit", "x", "--code", "sha256:12"], "'sha256:12' is not a tree's hash, which has 64 digits"),
        (["volume", "schedule", "x", "--every", "0"], "from 5m on"),
        (["volume", "keep", "x", "--last", "0"], "'0' is not a whole number above 0"),
        (["list", "jobs", "--limit", "0"], "'0' is not a whole number above 0"),
    ],
)
def test_a_wrong_command_line_is_2_and_asks_the_server_nothing(server, yard, argv, said):
    ran = yard(*argv)
    assert ran.code == 2
    assert said in ran.err
    assert server.asked == []


def test_no_project_is_2_and_says_how_to_choose_one(yard, monkeypatch):
    monkeypatch.delenv("TRAINYARD_PROJECT")
    ran = yard("list", "jobs")
    assert ran.code == 2
    assert "yard config project NAME" in ran.err


def test_without_a_login_the_project_is_not_what_is_missing(server, yard, monkeypatch):
    for name in ("TRAINYARD_PROJECT", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    ran = yard("list", "jobs")
    assert ran.code == 4
    assert ran.err == "yard: not logged in\n  log in with: yard login URL\n"
    assert server.asked == []


@pytest.mark.parametrize(
    "argv", [["volume", "list"], ["snapshot", "list"], ["artifact", "list"], ["dataset", "caches"]]
)
def test_an_empty_list_of_a_project_that_is_not_there_is_3(server, yard, argv):
    for path in ("volumes", "snapshots", "artifacts", "caches"):
        server.on("GET", path, {"results": [], "next": None})
    assert yard(*argv).code == 3
    server.on("GET", "projects/team-a", {"name": "team-a"})
    assert yard(*argv).code == 0


def test_snapshots_of_a_volume_that_is_not_there_are_3(server, yard):
    for path in ("volumes", "snapshots"):
        server.on("GET", path, {"results": [], "next": None})
    server.on("GET", "projects/team-a", {"name": "team-a"})
    ran = yard("snapshot", "list", "--volume", "nope")
    assert (ran.code, "no volume 'nope'" in ran.err) == (3, True)


def test_a_file_of_a_volume_goes_nowhere_that_cannot_be_written(server, yard, tmp_path):
    server.on("GET", "volumes", {"results": [{"id": "v1", "name": "data"}]})
    server.on("GET", "volumes/v1/content", Reply(body=b"x", headers={"Content-Length": "1"}))
    target = tmp_path / "nowhere" / "x"
    ran = yard("volume", "get", "data", "x", str(target))
    assert (ran.code, ran.err) == (1, f"yard: {target}.part cannot be written: No such file or directory\n")
    assert list(tmp_path.glob("**/*.part")) == []


def test_the_rule_that_keeps_snapshots_is_said(server, yard):
    server.on("GET", "volumes", {"results": [{"id": "v1", "name": "data"}]})
    server.on(
        "PATCH", "volumes/v1", {"keep_last": 5, "keep_days": None}, {"keep_last": None, "keep_days": None}
    )
    assert "volume data keeps the newest 5" in yard("volume", "keep", "data", "--last", "5").out
    assert "volume data keeps all snapshots" in yard("volume", "keep", "data").out


def test_one_unknown_name_does_not_keep_the_others(server, yard):
    server.on("GET", "projects/team-a/jobs", page(), page({"id": JOB_ID}), page({"id": JOB_ID}))
    stopped = job(state="stopping")
    server.on("POST", f"jobs/{JOB_ID}/stop", stopped, problem(403, "forbidden", "Not yours."), stopped)
    ran = yard("stop", "nope", "nb", "bjob", JOB_ID)
    assert ran.code == 4
    assert ran.out == f"job nb is stopping\njob {JOB_ID} is stopping\n"
    assert "yard: project team-a has no job 'nope'" in ran.err
    assert "yard: Not yours. (forbidden)" in ran.err


def test_a_server_that_is_away_ends_a_list_of_names(server, yard):
    server.on("POST", f"jobs/{JOB_ID}/stop", Reply(is_cut=True))
    assert yard("stop", JOB_ID, JOB_ID).code == 6
    assert len(server.asked) == 2  # one exchange and its repetition; nothing for the second name


def test_deleting_the_newest_says_that_others_of_its_name_remain(server, yard):
    server.on("GET", "projects/team-a/jobs", page({"id": JOB_ID}, {"id": "1"}), page({"id": JOB_ID}))
    server.on("DELETE", f"jobs/{JOB_ID}", Reply(204))
    first, second = yard("delete", "hyper1"), yard("delete", "hyper1")
    assert first.out == second.out == "job hyper1 is deleted\n"
    assert first.err == "1 earlier hyper1 remains; ids: yard list jobs -p team-a -o wide\n"
    assert second.err == ""


def test_a_name_that_no_job_has_is_3(server, yard):
    server.on("GET", "projects/team-a/jobs", page())
    ran = yard("stop", "ghost")
    assert ran.code == 3
    assert "team-a has no job 'ghost'" in ran.err


@pytest.mark.parametrize(
    ("state", "exit_code", "code"),
    [
        ("succeeded", 0, 0),
        ("succeeded", None, 0),
        ("failed", 3, 3),
        ("failed", -15, 143),
        ("failed", 1000, 255),
        ("stopped", None, 1),
        ("stopped", 0, 1),
        ("timed_out", None, 7),
    ],
)
def test_submit_and_wait_exits_as_the_job_does(server, yard, state, exit_code, code):
    server.on("POST", "projects/team-a/jobs", Reply(201, job(state="queued")))
    server.on("GET", f"jobs/{JOB_ID}", job(state=state, exit_code=exit_code))
    assert yard("submit", "hyper1", "--wait").code == code


@pytest.mark.parametrize(
    ("wanted", "state", "code"),
    [
        ("running", "running", 0),
        ("running", "succeeded", 0),
        ("running", "failed", 1),
        ("starting", "running", 0),
        ("queued", "succeeded", 1),
        ("finished", "failed", 0),
        ("succeeded", "failed", 1),
        ("stopped,failed", "failed", 0),
    ],
)
def test_wait_for_a_state(server, yard, wanted, state, code):
    server.on("GET", f"jobs/{JOB_ID}", job(state=state))
    assert yard("wait", JOB_ID, "--for", wanted).code == code


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("failed", 1), ("stopped", 1), ("timed_out", 1)]
)
def test_wait_without_a_state_is_for_success(server, yard, state, code):
    server.on("GET", f"jobs/{JOB_ID}", job(state=state, reason={"code": "x", "message": "So it went."}))
    ran = yard("wait", JOB_ID)
    assert ran.code == code
    assert f"is {state}" in ran.out
    assert ("So it went." in ran.out) == (code == 1)


def test_wait_times_out_with_7(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", job(state="queued"))
    server.on("GET", "watch", problem(404, "not_found", "no feed"))
    ran = yard("wait", JOB_ID, "--timeout", "0")
    assert ran.code == 7
    assert "still queued" in ran.err


def test_wait_sees_the_change_that_the_feed_rings_for(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", job(state="queued"), job(state="running"))
    server.on("GET", "watch", Reply(body=b"event: change\ndata: {}\n\n"))
    assert yard("wait", JOB_ID, "--for", "running", "--timeout", "30").code == 0
    assert server.requests("GET", "watch")[0].query == {"topics": f"job:{JOB_ID}"}


def test_a_wait_outlives_a_server_that_starts_anew(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)
    server.on(
        "GET",
        f"jobs/{JOB_ID}",
        job(state="running"),
        *[Reply(is_cut=True)] * 5,
        job(state="succeeded", exit_code=0),
    )
    server.on("GET", "watch", events(("change", {})))
    assert yard("wait", JOB_ID).code == 0


def test_a_wait_does_not_outlive_its_job(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", job(state="running"), problem(404, "not_found", "Gone."))
    server.on("GET", "watch", events(("change", {})))
    assert yard("wait", JOB_ID).code == 3
