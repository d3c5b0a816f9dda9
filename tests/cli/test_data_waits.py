"""Commands on volumes, caches and artifacts that wait for the server."""

import pytest

from tests.cli.conftest import JOB_ID, job
from tests.cli.scripted import Reply, page, problem


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("volume", "create", "data", "--size", "1Gi", "--wait"), "volumes"),
        (("dataset", "cache", "xray@1", "--wait"), "caches"),
    ],
)
def test_a_wait_outlives_a_restart_of_the_server(server, yard, monkeypatch, words, path):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)
    row = {"id": "1", "name": "data", "dataset_id": "2", "dataset": "xray", "version": 1, "subset": ""}
    row |= {"location": "local", "reason": {"code": "", "message": ""}, "is_pinned": False}
    counts = {
        "files": 0,
        "total_files": 1,
        "bytes": 0,
        "total_bytes": 1,
        "bytes_per_second": 0,
        "eta_seconds": None,
    }
    made, ready = (
        row | {"state": state, "progress": counts, "status": {"state": state, "message": ""}}
        for state in ("queued", "ready")
    )
    server.on("GET", "datasets", page({"id": "2", "name": "xray", "project": "team-a"}))
    server.on("GET", "datasets/2/versions/1", Reply(200, {"id": "3", "number": 1}))
    server.on("POST", "volumes", Reply(201, made))
    server.on("POST", "caches", Reply(201, made))
    cut = Reply(200, made, is_cut=True)
    server.on("GET", f"{path}/1", Reply(200, made), cut, cut, cut, cut, Reply(200, ready))
    ran = yard(*words)
    assert ran.code == 0, ran.err


def test_a_wait_for_a_volume_or_snapshot_says_what_blocks_it_once(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)
    messages = {"": "pending", "The disk is full.": "pending", "Copying.": "pending", "Done.": "ready"}
    states = [
        {"id": "1", "name": "data@1", "status": {"state": state, "message": message}}
        for message, state in messages.items()
        for _ in range(2)
    ]
    server.on("GET", "volumes", page({"id": "2", "name": "data", "project": "team-a"}))
    server.on("POST", "snapshots", Reply(201, states[0]))
    server.on("GET", "snapshots/1", *(Reply(200, one) for one in states))
    ran = yard("snapshot", "create", "data", "--wait")
    assert (ran.code, "data@1 is ready" in ran.out) == (0, True), ran.err
    assert ran.err.count("Waiting; it continues by itself.") == 2
    assert ran.err.count("data@1 is pending: The disk is full. Waiting; it continues by itself.\n") == 1
    assert "Done." not in ran.err


def test_an_artifact_of_a_job_that_has_ended_is_waited_for(server, yard, monkeypatch):
    waited = []
    monkeypatch.setattr(
        "controlplane.cli.session.Session.pause", lambda session, seconds: waited.append(seconds)
    )
    artifact = {"id": "2", "name": "model", "job": "train", "job_id": JOB_ID}
    waiting, keeping, ready = (
        artifact | {"status": {"state": state, "message": ""}} for state in ("waiting", "keeping", "ready")
    )
    server.on("GET", "artifacts", page(waiting))
    server.on("GET", "artifacts/2", Reply(200, keeping), Reply(200, ready))
    server.on("GET", "artifacts/2/files", page())
    server.on("GET", f"jobs/{JOB_ID}", job(state="succeeded"))
    ran = yard("artifact", "files", "train/model")
    assert (ran.code, waited) == (0, [1.0, 1.0]), ran.err
    assert ran.err.count("train/model is being kept") == 1
    server.on("GET", f"jobs/{JOB_ID}", job(state="running"))
    yard("artifact", "files", "train/model")
    assert len(waited) == 2


def test_the_files_of_an_artifact_have_sizes_as_in_the_list_of_artifacts(server, yard):
    ready = {"id": "2", "name": "model", "job": "train", "job_id": JOB_ID, "manifest": "ab", "files": 1}
    ready |= {"status": {"state": "ready", "message": ""}, "size_bytes": 3 << 30, "created_at": None}
    entry = {"name": "weights", "kind": "file", "files": 1, "size_bytes": 3 << 30, "sha256": None}
    server.on("GET", "artifacts", page(ready))
    server.on("GET", "artifacts/2/files", page(entry))
    for words in (("list",), ("files", "train/model")):
        ran = yard("artifact", *words)
        assert " 3 GiB" in ran.out, ran.err


def test_the_lineage_of_an_artifact_waits_until_it_is_stored_or_says_why_it_is_not(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)
    artifact = {"id": "2", "name": "model", "job": "train", "job_id": JOB_ID, "manifest": None}
    waiting = artifact | {"status": {"state": "waiting", "message": ""}}
    ready = artifact | {"manifest": "ab", "status": {"state": "ready", "message": ""}}
    failed = artifact | {"status": {"state": "failed", "message": "The job left no directory out."}}
    node = {"key": "a", "kind": "artifact", "name": "model", "identity": "sha256:ab", "detail": ""}
    server.on("GET", "artifacts", page(waiting))
    server.on("GET", f"jobs/{JOB_ID}", job(state="succeeded"))
    server.on("GET", "artifacts/2", Reply(200, ready))
    server.on("GET", "artifacts/2/lineage", Reply(200, {"nodes": [node], "edges": [], "is_cut": False}))
    assert yard("lineage", "train/model").out == "artifact model sha256:ab\n"
    server.on("GET", "artifacts/2", Reply(200, failed))
    ran = yard("lineage", "train/model")
    assert (ran.code, ran.out) == (5, "")
    assert "train/model is failed. The job left no directory out." in ran.err


def test_a_download_waits_while_a_pod_reads_the_file_and_says_so_once(server, yard, tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(
        "controlplane.cli.session.Session.pause", lambda session, seconds: waited.append(seconds)
    )
    monkeypatch.setattr("controlplane.cli.commands.volumes.BUSY_SECONDS", 5.0)
    server.on("GET", "volumes", page({"id": "1", "name": "data"}))
    waits = problem(409, "being_read", "A pod reads it.", headers={"Retry-After": "1"})
    content = Reply(body=b"best", headers={"Content-Length": "4"})
    server.on("GET", "volumes/1/content", waits, waits, waits, content)
    target = tmp_path / "model"
    ran = yard("volume", "get", "data", "model", str(target))
    assert (ran.code, target.read_bytes(), waited) == (0, b"best", [1.0] * 3)
    assert ran.err.splitlines()[:-1] == ["A pod reads it. Waiting; it continues by itself."]
    server.on("GET", "volumes/1/content", waits)
    assert yard("volume", "get", "data", "model", str(target)).code != 0
    assert sum(waited[3:]) == 5.0


def test_a_list_of_snapshots_says_why_some_failed(server, yard):
    row = {"job": None, "cause": "schedule", "progress": {}, "consistency": None, "size_bytes": None}
    row |= {"new_bytes": None, "created_at": "2026-11-29T09:00:00Z"}
    failed = {"state": "failed", "reason": "not_permitted", "message": "Grant it that verb. Take another."}
    ready = {"state": "ready", "reason": "", "message": "a pipe is not in it: p"}
    names = [f"data@{number}" for number in range(9, 4, -1)]
    rows = [row | {"id": name, "name": name, "status": failed} for name in names]
    server.on("GET", "snapshots", page(row | {"id": "1", "name": "data@10", "status": ready}, *rows))
    ran = yard("snapshot", "list")
    assert ran.code == 0, ran.err
    assert ran.err.splitlines() == [
        "data@9 failed: Grant it that verb. Take another.",
        "data@8 failed: Grant it that verb. Take another.",
        "data@7 failed: Grant it that verb. Take another.",
        "2 more have a problem: -o wide shows every message",
    ]
    assert yard("snapshot", "list", "-o", "wide").err == ""


@pytest.mark.parametrize(
    ("words", "path", "line"),
    [
        (("volume", "list"), "volumes", "data failed: The pool is full."),
        (("dataset", "caches"), "caches", "xray@1 at zone-b failed: The pool is full."),
    ],
)
def test_lists_of_volumes_and_caches_say_why_some_failed(server, yard, words, path, line):
    row = {"id": "1", "name": "data", "project": "team-a", "dataset": "xray", "version": 1, "subset": ""}
    row |= {"location": "zone-b", "charged_bytes": 0, "sharing": "", "hits": 0, "is_pinned": False}
    row |= {"used_bytes": None, "size_bytes": 1, "is_measured_in_part": False, "access_mode": "ReadWriteOnce"}
    row |= {"storage_class": "fast", "service_tier": "", "jobs": [], "progress": {"total_bytes": 1}}
    row |= {"created_at": "2026-11-29T09:00:00Z", "used_at": "2026-11-29T09:00:00Z"}
    why = {"code": "no_room", "message": "The pool is full."}
    status = {"state": "failed", "reason": why["code"], "message": why["message"]}
    server.on("GET", path, page(row | {"state": "failed", "reason": why, "status": status}))
    ran = yard(*words)
    assert (ran.code, ran.err.splitlines()) == (0, [line])
    assert why["message"] in yard(*words, "-o", "wide").out


def test_the_snapshot_at_the_end_of_a_job_is_waited_for(server, yard, monkeypatch):
    waited = []
    monkeypatch.setattr(
        "controlplane.cli.session.Session.pause", lambda session, seconds: waited.append(seconds)
    )
    due, done = ({"id": "1", "name": "data", "snapshots_due_for": job} for job in ("train", None))
    row = {
        "id": "2",
        "name": "data@1",
        "job": "train",
        "cause": "success",
        "progress": {},
        "consistency": None,
    }
    row |= {"size_bytes": 5, "new_bytes": 5, "created_at": "2026-11-29T09:00:00Z"}
    pending, ready = (row | {"status": {"state": state, "message": ""}} for state in ("pending", "ready"))
    made = {"id": "3", "name": "back", "status": {"state": "ready", "message": ""}}
    server.on("GET", "volumes", page(due), page(due), page(done))
    server.on("GET", "snapshots", page(), page(pending))
    server.on("GET", "snapshots/2", Reply(200, pending), Reply(200, ready))
    server.on("POST", "snapshots/2/restore", Reply(201, made))
    server.on("GET", "volumes/3", Reply(200, made))
    ran = yard("snapshot", "restore", "data@1", "--to", "back", "--wait")
    assert (ran.code, len(waited)) == (0, 3), ran.err
    assert ran.err.count("The snapshots for job train are being written.") == 1
    assert ran.err.count("data@1 is being taken.") == 1
    looks = len(server.requests("GET", "volumes"))
    server.on("GET", "volumes", page(due), page(due), page(done))
    server.on("GET", "snapshots", page(ready))
    assert yard("snapshot", "list", "--volume", "data").err.count("are being written") == 1
    assert len(server.requests("GET", "volumes")) == looks + 3
    server.on("GET", "volumes", page(due))
    server.on("GET", "snapshots", page())
    ran = yard("snapshot", "restore", "data@2", "--to", "back")
    assert (ran.code, "no snapshot 'data@2'" in ran.err) == (3, True)


def test_the_snapshots_of_a_job_that_has_just_ended_are_waited_for_on_its_volumes(server, yard, monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)
    mounts = [{"volume": "data", "mount_path": "/data"}, {"host_path": "/mnt", "mount_path": "/mnt"}]
    mounts.append({"volume": "models", "mount_path": "/models"})
    data, models, done = ({"id": "1", "snapshots_due_for": due} for due in (None, "train", None))
    server.on("GET", "projects/team-a/jobs", page({"volumes": mounts}))
    server.on("GET", "volumes", page(data, models), page(data, models), page(data, done))
    server.on("GET", "snapshots", page())
    server.on("GET", "projects/team-a", {"name": "team-a"})
    ran = yard("snapshot", "list", "--job", "train")
    assert (ran.code, ran.err.count("The snapshots for job train are being written.")) == (0, 1), ran.err
    looks = server.requests("GET", "volumes")
    assert [look.query["name"] for look in looks] == ["data,models"] * 3


@pytest.mark.parametrize("mounts", [None, [], [{"host_path": "/mnt", "mount_path": "/mnt"}]])
def test_a_deleted_job_and_one_without_volumes_are_not_waited_for(server, yard, mounts):
    server.on("GET", "projects/team-a/jobs", page(*([] if mounts is None else [{"volumes": mounts}])))
    server.on("GET", "snapshots", page())
    server.on("GET", "projects/team-a", {"name": "team-a"})
    assert yard("snapshot", "list", "--job", "train").code == 0
    assert server.requests("GET", "volumes") == []
