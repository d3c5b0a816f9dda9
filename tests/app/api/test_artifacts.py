"""What jobs keep of their output: asked for at submission, kept at the end, listed, downloaded, deleted, collected."""

import io
import os
import re
import tarfile
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from controlplane.commands.dispatch import carry_out_due
from controlplane.models import AuditEntry, Command, Event
from datasets.actions.artifacts import KEEP, StoredArtifact, artifact_ready, keep_artifacts
from datasets.actions.lake_collection import collect_lake
from datasets.command_handlers.artifacts import KeepArtifact
from datasets.ingest.engine import Synced
from datasets.ingest.worker import WorkerFailed
from datasets.models import Artifact
from datasets.queries.lake import lake_of, manifest_named
from datasets.storage.base import Blocked, ContentDamaged
from jobs.models import Job
from tests.artifacts import keep_output, make_artifact, write_output
from tests.builders import make_job
from tests.datasets import make_dataset, make_version
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes")]
OUT = {"path": "out", "name": "model", "when": "success"}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setattr("django.conf.settings.STATE_DIR", tmp_path)


def ended(
    cast, *wanted: dict[str, Any], state: str = "succeeded", files: dict[str, str] | None = None
) -> Job:
    """A job that has ended and left these files."""
    job = make_job(cast.project, "train1", cast.ben, artifacts=list(wanted or [OUT]))
    write_output(job, {"out/weights.pt": "weights", "out/log/a.txt": "a"} if files is None else files)
    Job.objects.filter(pk=job.pk).update(state=state, attempt=2)
    return job


def kept(job: Job) -> Artifact:
    keep_output()
    return Artifact.objects.get(job=job)


def test_output_is_kept_at_success_listed_and_downloaded(api, cast):
    job, vera = ended(cast), api("vera")
    [waiting] = vera.get(f"jobs/{job.pk}/artifacts").body["results"]
    assert waiting["status"]["state"] == "waiting"
    assert vera.get(f"artifacts/{waiting['id']}/files").code == "artifact_not_ready"
    keep_output()
    [shown] = vera.get("artifacts?job=train1&name=model").body["results"]
    assert (shown["status"]["state"], shown["files"], shown["size_bytes"]) == ("ready", 2, 8)
    assert (shown["attempt"], shown["path"], len(shown["manifest"])) == (2, "out", 64)
    names = [row["name"] for row in vera.get(f"artifacts/{shown['id']}/files").body["results"]]
    assert names == ["log", "weights.pt"]
    answer = vera.client.get(f"/api/v1/artifacts/{shown['id']}/archive")
    with tarfile.open(fileobj=io.BytesIO(b"".join(answer.streaming_content))) as archive:
        read = {one.name: archive.extractfile(one).read() for one in archive.getmembers()}
    assert read == {"log/a.txt": b"a", "weights.pt": b"weights"}
    kinds = Event.objects.filter(kind__startswith="artifact.").order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["artifact.keeping", "artifact.ready"]


def test_output_waits_for_the_disk_of_the_lake(cast, settings, monkeypatch):
    make_version(make_dataset(cast.project), {"a": "alpha"})
    job, mounted = ended(cast), settings.LAKE_DIR
    monkeypatch.setattr(KeepArtifact, "backoff_seconds", (0,))
    away = mounted.rename(mounted.with_name("disk"))
    mounted.mkdir()
    keep_artifacts()
    wait_until(carry_out_due)
    [artifact] = Artifact.objects.all()
    assert (artifact.state, "of TRAINYARD_LAKE_DIR is not there" in artifact.message) == ("keeping", True)
    assert not list(mounted.iterdir())
    mounted.rmdir()
    away.rename(mounted)
    assert kept(job).state == "ready"


def test_a_job_that_fails_keeps_only_what_is_kept_always(api, cast):
    always = {"path": "$TRAINYARD_CHECKPOINT_DIR/best", "name": "best", "when": "always"}
    job = ended(cast, OUT, always, state="timed_out", files={"../checkpoints/best/step-1": "1"})
    keep_output()
    rows = api("ben").get(f"jobs/{job.pk}/artifacts?ordering=name").body["results"]
    assert [(row["name"], row["status"]["state"]) for row in rows] == [
        ("best", "ready"),
        ("model", "skipped"),
    ]
    assert "The job timed out" in rows[1]["status"]["message"]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"path": "../other"}, "not_inside"),
        ({"path": "/etc"}, "not_inside"),
        ({"path": "."}, "not_inside"),
        ({"path": "out", "when": "noon"}, "unknown_moment"),
        ({"path": "out", "name": "My Model"}, "not_a_dns_label"),
        ({"name": "model"}, "not_an_artifact"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_submission(api, wanted, code):
    body = {"name": "t", "kind": "train", "command": ["true"], "artifacts": [wanted]}
    assert api("ben").post("projects/team-a/jobs", body).body["errors"][0]["code"] == code


def test_two_artifacts_of_one_name_are_refused(api):
    body = {"name": "t", "kind": "train", "command": ["true"], "artifacts": [OUT, {**OUT, "path": "b/out"}]}
    assert api("ben").post("projects/team-a/jobs", body).body["errors"][0]["code"] == "name_twice"


def test_output_that_is_not_there_empty_too_large_or_a_link_fails_with_its_reason(cast, tmp_path, settings):
    artifact = kept(ended(cast, files={"other/a": "a"}))
    assert (artifact.state, artifact.reason) == ("failed", "output_missing")
    assert "Its working directory has other." in artifact.message
    event = Event.objects.get(kind="artifact.failed")
    assert (event.reason, event.message) == (
        "output_missing",
        f"Artifact {artifact.name} of {artifact.job.name}: failed. {artifact.message}",
    )
    Artifact.objects.update(state=Artifact.WAITING)
    (place := tmp_path / "work" / str(artifact.job_id) / "0" / "out").mkdir()
    assert kept(artifact.job).reason == "output_empty"
    (place / "large").write_bytes(b"12345")
    settings.ARTIFACT_MOST_BYTES = 4
    Artifact.objects.update(state=Artifact.WAITING)
    assert kept(artifact.job).reason == "artifact_too_large"
    (place / "large").unlink()
    place.rmdir()
    place.symlink_to("/etc")
    Artifact.objects.update(state=Artifact.WAITING)
    assert kept(artifact.job).reason == "output_is_link"
    place.unlink()
    (tmp_path / "elsewhere" / "out").mkdir(parents=True)
    place.parent.rename(tmp_path / "away")
    place.parent.symlink_to(tmp_path / "elsewhere")
    Artifact.objects.update(state=Artifact.WAITING)
    assert kept(artifact.job).reason == "output_is_link"
    Artifact.objects.update(state=Artifact.WAITING, path="x" * 300)
    assert kept(artifact.job).reason == "output_is_link"
    place.parent.unlink()
    (tmp_path / "away").rename(place.parent)
    Artifact.objects.update(state=Artifact.WAITING)
    assert kept(artifact.job).reason == "output_unreadable"


def test_names_that_are_not_utf8_are_written_in_messages(cast, tmp_path):
    job = ended(cast, files={"a": "a"})
    place = os.fsencode(tmp_path / "work" / str(job.pk) / "0")
    os.mkfifo(place + b"/\xff")
    assert "\\xff" in kept(job).message
    os.mkdir(place + b"/out")
    os.rename(place + b"/a", place + b"/out/\xfe")
    os.rename(place + b"/\xff", place + b"/out/\xff")
    Artifact.objects.update(state=Artifact.WAITING)
    artifact = kept(job)
    assert (artifact.state, artifact.message) == ("ready", "Left out: \\xff (neither a file nor a link).")


def test_what_is_in_the_way_of_the_lake_is_shown_and_no_fault(api, client, cast, monkeypatch):
    artifact = make_artifact(make_job(cast.project, "train1", cast.ben), "model", {"a": "a"})
    client.force_login(cast.ben)
    lake = lake_of(cast.project)

    def refuse(*_: object) -> None:
        raise Blocked("unreachable", "The bucket does not answer.")

    def damaged(*_: object) -> None:
        raise ContentDamaged(b"d" * 32)

    with monkeypatch.context() as patch:
        patch.setattr(lake, "manifest", refuse)
        shown = client.get(f"/artifacts/{artifact.pk}")
    assert shown.status_code == 200
    assert "The bucket does not answer." in shown.content.decode()
    monkeypatch.setattr(lake, "read_many", damaged)
    refused = api("ben").get(f"artifacts/{artifact.pk}/pack?start=0&count=1", accept="*/*")
    assert (refused.status, refused.code) == (409, "content_damaged")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("waiting", "It has no files yet."),
        ("failed", "It has no files."),
        ("skipped", "It has no files."),
    ],
)
def test_the_page_of_an_artifact_follows_its_job_in_all_that_depends_on_the_state(client, cast, state, words):
    artifact = make_artifact(make_job(cast.project, "train1", cast.ben), "model", {"a": "a"})
    Artifact.objects.filter(pk=artifact.pk).update(state=state, manifest="", message="Why.")
    client.force_login(cast.ben)
    page = client.get(f"/artifacts/{artifact.pk}").content.decode()
    assert f">{words}<" in page
    live = re.findall(rf'id="([a-z-]+)" data-live="job:{artifact.job_id}"', page)
    assert live == ["artifact-state", "artifact-actions", "artifact-message", "artifact"]


def test_content_that_a_dataset_has_is_stored_once_and_kept_while_one_of_them_needs_it(cast, monkeypatch):
    version = make_version(make_dataset(cast.project), {"weights": "weights"})
    lake = lake_of(cast.project)
    job = ended(cast, files={"out/weights.pt": "weights"})
    before = sorted(lake.root.glob("packs/*/*"))
    artifact = kept(job)
    assert artifact.state == "ready"
    assert sorted(lake.root.glob("packs/*/*")) == before
    version.dataset.delete()
    monkeypatch.setattr("datasets.actions.lake_collection.GRACE", timedelta(seconds=-60))
    collect_lake(str(cast.project.pk), lambda: False)
    digest = next(iter(manifest_named(artifact.project, artifact.manifest).contents()))
    assert lake.read(digest) == b"weights"
    artifact.delete()
    collect_lake(str(cast.project.pk), lambda: False)
    assert lake.lacking([digest]) == {digest}


def test_owners_delete_artifacts_and_the_audit_log_says_so(api, cast):
    job = make_job(cast.project, "train1", cast.ben)
    artifact = make_artifact(job, "model", {"a": "a"})
    assert api("ben").delete(f"artifacts/{artifact.pk}").status == 403
    assert api("ana").delete(f"artifacts/{artifact.pk}").status == 200
    assert not Artifact.objects.exists()
    assert AuditEntry.objects.filter(verb="artifact.delete", actor="ana").exists()


def test_an_artifact_goes_with_its_job_also_while_it_is_kept(cast):
    job = ended(cast)
    keep_artifacts()
    artifact = Artifact.objects.get()
    job.delete()
    artifact_ready(str(artifact.pk), StoredArtifact(1, 1, "0" * 64))
    keep_output()
    assert not Artifact.objects.exists()
    assert Command.objects.get(kind=KEEP).state == Command.DONE


def test_files_that_could_not_be_read_are_named_with_why(cast, monkeypatch):
    ended(cast)
    found = Synced(None, "", 2, 0, failed=[(b"\xfe", "unreadable"), (b"log", "changing")])
    monkeypatch.setattr("datasets.command_handlers.artifacts.sync_tree", lambda *_, **__: found)
    keep_artifacts()
    carry_out_due()
    assert Artifact.objects.get().message == (
        "Could not be read: \\xfe (its permissions or the disk do not let it be read),"
        " log (a program writes to it; wait until it has ended)."
    )


@pytest.mark.parametrize("cause", [Blocked("unreachable", "It is away."), WorkerFailed("It is away.")])
def test_an_artifact_waits_for_a_lake_that_is_away(cast, monkeypatch, cause):
    job = ended(cast)

    def refuse(*_: object, **__: object) -> None:
        raise cause

    with monkeypatch.context() as patch:
        patch.setattr("datasets.command_handlers.artifacts.sync_tree", refuse)
        keep_artifacts()
        for _ in range(6):
            Command.objects.filter(kind=KEEP).update(not_before=Now())
            carry_out_due()
    artifact = Artifact.objects.get()
    assert (artifact.state, artifact.message) == ("keeping", "It is away.")
    Command.objects.filter(kind=KEEP).update(not_before=Now())
    artifact = kept(job)
    assert (artifact.state, artifact.message) == ("ready", "")
