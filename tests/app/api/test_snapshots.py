"""Snapshots over REST: taken, listed, restored, deleted; on events of jobs; kept by rules; and after kills."""

import sys
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict
from controlplane.actions.projects import delete_project
from controlplane.commands.dispatch import carry_out_due
from controlplane.commands.errors import Cancelled
from controlplane.commands.tasks import carry_out_here
from controlplane.engines.base import NOT_PERMITTED, EngineUnreachable
from controlplane.models import Command, Event
from controlplane.scheduling.reasons import PREEMPTED
from datasets.actions.snapshot_events import remove_old_snapshots, snapshot_on_events
from datasets.actions.snapshots import delete_snapshot, take_snapshot
from datasets.actions.volumes import create_volume
from datasets.command_handlers.snapshots import FULL_DISK_WITHIN, TakeSnapshot
from datasets.models import Snapshot, Volume, VolumeUse
from datasets.queries.due_snapshots import better, due_jobs
from datasets.storage import volumes as storage_module
from datasets.storage.base import Blocked
from datasets.storage.volumes import FolderVolumes
from jobs.models import Attempt, Job
from jobs.transitions import Target, send
from tests.builders import make_job
from tests.volumes import directory_of, make_snapshot, make_volume, read, tree_of, work, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]
MOUNT = [{"volume": "data", "mount_path": "/mnt"}]


@pytest.fixture
def volume(cast) -> Volume:
    return make_volume(cast.project, files={"model.pt": "weights"})


def watched_job(cast, *events: str, **fields) -> Job:
    """A job that mounts the volume and has begun."""
    job = make_job(cast.project, "train1", cast.ben, volumes=MOUNT, snapshot_on=list(events))
    Job.objects.filter(pk=job.pk).update(attempt=1, state="running", **fields)
    job.refresh_from_db()
    return job


def taken() -> list[tuple[str, str]]:
    snapshot_on_events()
    rows = Snapshot.objects.order_by("number").prefetch_related("cause_rows")
    return [(",".join(one.causes), one.mark) for one in rows]


def test_a_snapshot_is_taken_listed_and_restored_to_a_new_volume(api, cast, volume):
    ben = api("ben")
    made = ben.post("snapshots", {"volume": str(volume.pk)})
    assert (made.status, made.body["name"], made.body["status"]["state"]) == (201, "data@1", "pending")
    assert ben.post(f"snapshots/{made.body['id']}/restore", {"name": "early"}).code == "snapshot_not_ready"
    work()
    write(volume, {"model.pt": "worse"})
    [shown] = api("vera").get("snapshots?volume=data").body["results"]
    assert (shown["status"]["state"], shown["consistency"], shown["files"]) == ("ready", "idle", 1)
    restored = ben.post(f"snapshots/{shown['id']}/restore", {"name": "back", "access_mode": "ReadWriteMany"})
    assert (restored.status, restored.body["origin"]["name"]) == (201, "data@1")
    assert restored.body["access_mode"] == "ReadWriteMany"
    assert api("ana").delete(f"snapshots/{shown['id']}").code == "snapshot_in_use"
    work()
    assert read(Volume.objects.get(name="back")) == {"model.pt": "weights"}
    assert read(volume) == {"model.pt": "worse"}
    assert ben.post(f"snapshots/{shown['id']}/restore", {"name": "back"}).code == "name_in_use"


def test_a_snapshot_outlives_its_volume_and_is_restored_without_it(api, cast, volume):
    snapshot = make_snapshot(volume)
    assert api("ana").delete(f"volumes/{volume.pk}").status == 200
    work()
    snapshot.refresh_from_db()
    assert (snapshot.volume, snapshot.state) == (None, "ready")
    api("ben").post(f"snapshots/{snapshot.pk}/restore", {"name": "data"})
    work()
    again = Volume.objects.get()
    assert (again.name, read(again)) == ("data", {"model.pt": "weights"})
    assert make_snapshot(again).number == 2


def test_roles_and_other_projects(api, cast, volume):
    snapshot = make_snapshot(volume)
    assert api("vera").post("snapshots", {"volume": str(volume.pk)}).status == 403
    assert api("chi").post("snapshots", {"volume": str(volume.pk)}).status == 404
    assert api("chi").get(f"snapshots/{snapshot.pk}").status == 404
    assert api("ben").delete(f"snapshots/{snapshot.pk}").status == 403
    tree = tree_of(snapshot)
    assert api("ana").delete(f"snapshots/{snapshot.pk}").body["status"]["state"] == "deleting"
    work()
    assert not tree.exists()
    assert not Snapshot.objects.exists()


def test_a_snapshot_that_cannot_be_taken_says_why_and_blocks_nothing(api, cast, volume, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage_module, "sync_file_system", full)
        patch.setattr(TakeSnapshot, "backoff_seconds", (0,))
        failed = take_snapshot(volume, actor=SYSTEM)
        wait_until(carry_out_due)
        # A disk that is full for some minutes does not lose the moment of an event.
        taking = Command.objects.unfinished().filter(subject_id=failed.pk)
        taking.update(tries=100)
        wait_until(carry_out_due)
        failed.refresh_from_db()
        assert (failed.state, failed.reason) == ("pending", "disk_full")
        taking.update(created_at=timezone.now() - FULL_DISK_WITHIN)
        work()
    failed.refresh_from_db()
    assert (failed.state, failed.reason) == ("failed", "disk_full")
    assert "free space" in failed.message
    event = Event.objects.get(kind="snapshot.failed")
    assert (event.reason, event.message) == ("disk_full", f"Snapshot {failed}: failed. {failed.message}")
    assert make_snapshot(volume).state == "ready"
    assert api("ana").delete(f"snapshots/{failed.pk}").status == 200


def test_what_a_missing_right_ends_says_what_to_do_once_it_is_granted(api, cast, volume, monkeypatch):
    def forbidden(*_: Any, **__: Any) -> Any:
        raise Blocked(
            NOT_PERMITTED, "Trainyard's account may not create it. Grant it that verb.", is_passing=False
        )

    monkeypatch.setattr(FolderVolumes, "take", forbidden)
    monkeypatch.setattr(FolderVolumes, "provision", forbidden)
    take_snapshot(volume, actor=SYSTEM)
    create_volume(cast.project, {"name": "other", "size": 1 << 30}, actor=SYSTEM)
    work()
    [snapshot], [made] = (
        api("ben").get(path).body["results"] for path in ("snapshots", "volumes?name=other")
    )
    assert snapshot["status"]["message"].endswith(
        "Grant it that verb. This snapshot is not tried again: when that is granted, take another."
    )
    assert made["status"]["message"].endswith(
        "Grant it that verb. It is not tried again: when that is granted, delete other and create it again."
    )


def test_a_worker_killed_between_the_files_and_the_row_leaves_one_snapshot(volume, monkeypatch):
    """The files are there, the row is not yet written: the next worker finds them and writes it."""

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("datasets.command_handlers.snapshots.snapshot_ready", killed)
        with pytest.raises(Killed):
            make_snapshot(volume)
    [snapshot] = Snapshot.objects.all()
    assert snapshot.state == "pending"
    assert tree_of(snapshot).is_dir()
    write(volume, {"later": "not in it"})
    Command.objects.filter(kind="datasets.take_snapshot").update(
        state="pending", claim_expires_at=None, sent_at=None
    )
    work()
    snapshot.refresh_from_db()
    assert (snapshot.state, snapshot.files) == ("ready", 1)


def test_a_snapshot_that_waits_for_its_storage_says_why(api, cast, volume, monkeypatch):
    made = api("ben").post("snapshots", {"volume": str(volume.pk)}).body

    def away(*_, **__):
        raise EngineUnreachable("The cluster does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(FolderVolumes, "take", away)
        carry_out_here(Command.objects.get(kind="datasets.take_snapshot").pk)
    status = api("ben").get(f"snapshots/{made['id']}").body["status"]
    assert (status["state"], status["message"]) == ("pending", "The cluster does not answer.")
    Command.objects.update(not_before=timezone.now())
    work()
    status = api("ben").get(f"snapshots/{made['id']}").body["status"]
    assert (status["state"], status["reason"], status["message"]) == ("ready", "", "")


def test_events_of_one_moment_make_one_snapshot_that_names_them(api, cast, volume):
    job = watched_job(
        cast, "success", "preempt", "epoch", "best_metric", progress={"epoch": 1, "accuracy": 0.5}
    )
    assert taken() == [("best_metric,epoch", "best:0.5 epoch:1:1")]
    assert len(taken()) == 1
    Job.objects.update(progress={"epoch": 1, "accuracy": 0.55})
    assert taken()[1:] == [("best_metric", "best:0.55")]
    Job.objects.update(progress={"epoch": 2, "accuracy": 0.4})
    assert taken()[2:] == [("epoch", "epoch:1:2")]
    [newest, second, first] = api("vera").get("snapshots").body["results"]
    assert (first["cause"], first["causes"]) == ("best_metric", ["best_metric", "epoch"])
    assert (second["causes"], newest["causes"]) == (["best_metric"], ["epoch"])
    for cause, names in {"epoch": [3, 1], "best_metric": [2, 1], "best": [], "epoch,success": [3, 1]}.items():
        found = api("vera").get(f"snapshots?cause={cause}").body["results"]
        assert [one["number"] for one in found] == names
    Attempt.objects.create(
        job=job, number=1, ended_at=timezone.now(), reason="preempted", outcome="disrupted"
    )
    Job.objects.update(state="queued", progress={})
    assert taken()[3:] == [("preempt", "preempt:1")]
    Job.objects.update(state="succeeded", attempt=2, progress={"epoch": 2, "accuracy": 0.6})
    assert taken()[4:] == [("success,best_metric,epoch", "success best:0.6 epoch:2:2")]
    assert not VolumeUse.objects.filter(is_watched=True).exists()
    work()
    best = Snapshot.objects.get(mark__contains="best:0.6")
    assert (best.job_name, best.attempt, best.progress["accuracy"], best.state) == ("train1", 2, 0.6, "ready")


def test_a_best_metric_whose_snapshot_was_not_written_is_taken_again(cast, volume, monkeypatch):
    watched_job(cast, "best_metric", progress={"accuracy": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr("datasets.actions.snapshot_events.take_snapshot", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            snapshot_on_events()
    assert taken() == [("best_metric", "best:0.5")]


def test_preempted_attempts_beyond_the_length_of_a_mark_are_in_other_snapshots(cast, volume):
    job = watched_job(cast, "preempt")
    for number in range(1, 60):
        Attempt.objects.create(
            job=job, number=number, ended_at=timezone.now(), reason="preempted", outcome="disrupted"
        )
    Job.objects.update(state="failed")
    found = taken()
    assert {cause for cause, _ in found} == {"preempt"}
    marks = [mark for _, marks in found for mark in marks.split()]
    assert sorted(marks) == sorted(f"preempt:{number}" for number in range(1, 60))
    assert taken() == found


@pytest.mark.parametrize(("stopped_for", "expected"), [(PREEMPTED, [("preempt", "preempt:1")]), ("", [])])
def test_a_job_that_ends_well_when_it_is_preempted_has_a_snapshot_of_that(
    cast, volume, stopped_for: str, expected: list[tuple[str, str]]
):
    """A program that exits with 0 on SIGTERM has succeeded; what it wrote last is what was asked for."""
    job = watched_job(cast, "preempt")
    attempt = Attempt.objects.create(job=job, number=1)
    if stopped_for:
        send([(job, Target("queued", stopped_for, "Others got its GPUs."))])
    assert taken() == [], "its pods are not gone yet"
    Job.objects.update(state="succeeded", reason="completed", finished_at=timezone.now())
    Attempt.objects.filter(pk=attempt.pk).update(
        ended_at=timezone.now(), outcome="succeeded", reason="completed"
    )
    assert set(due_jobs([volume.pk])) == ({volume.pk} if expected else set())
    assert taken() == expected
    assert due_jobs([volume.pk]) == {}


@pytest.mark.parametrize("deleted_by", ["user", "rule"])
def test_a_deleted_snapshot_of_an_event_is_not_taken_again(cast, volume, deleted_by: str):
    job = watched_job(cast, "preempt", "epoch", progress={"epoch": 1})
    for number in (1, 2):
        Attempt.objects.create(
            job=job, number=number, ended_at=timezone.now(), reason="preempted", outcome="disrupted"
        )
        snapshot_on_events()
    before = taken()
    assert before == [("preempt,epoch", "preempt:1 epoch:1:1"), ("preempt", "preempt:2")]
    work()
    if deleted_by == "rule":
        Volume.objects.update(keep_last=1)
        remove_old_snapshots()
    else:
        delete_snapshot(Snapshot.objects.get(number=1), actor=SYSTEM)
    work()
    assert taken() == before[1:]


def test_a_job_that_failed_or_asked_for_nothing_makes_no_snapshot(cast, volume):
    watched_job(cast, "success")
    Job.objects.update(state="failed")
    assert taken() == []


def test_the_first_metric_that_a_job_reports_is_the_one_that_counts():
    assert better({"loss": 0.5}, {}) == {"name": "loss", "value": 0.5}
    assert better({"loss": 0.6}, {"name": "loss", "value": 0.5}) is None
    assert better({"loss": 0.4, "accuracy": 0.9}, {"name": "loss", "value": 0.5}) == {
        "name": "loss",
        "value": 0.4,
    }
    assert better({"accuracy": 0.9}, {"name": "accuracy", "value": 0.9}) is None
    assert better({"accuracy": True, "loss": "low"}, {}) is None


def test_rules_remove_the_oldest_snapshots_of_events_and_never_requested_ones(cast, volume):
    requested = make_snapshot(volume)
    job = watched_job(cast, "epoch")
    for epoch in range(1, 5):
        Job.objects.filter(pk=job.pk).update(progress={"epoch": epoch})
        snapshot_on_events()
    work()
    Volume.objects.update(keep_last=3)
    remove_old_snapshots()
    work()
    assert list(Snapshot.objects.order_by("number").values_list("number", flat=True)) == [1, 3, 4, 5]
    Volume.objects.update(keep_days=7)
    Snapshot.objects.filter(number__lte=4).update(created_at=timezone.now() - timedelta(days=8))
    remove_old_snapshots()
    work()
    assert [one.number for one in Snapshot.objects.order_by("number")] == [requested.number, 5]
    assert (tree_of(Snapshot.objects.get(number=5)) / "model.pt").read_text() == "weights"


def test_an_event_without_a_ready_volume_takes_nothing_and_ends(cast, volume):
    watched_job(cast, "success")
    Job.objects.update(state="succeeded")
    Volume.objects.update(state="failed")
    assert taken() == []
    assert not VolumeUse.objects.filter(is_watched=True).exists()


def test_a_volume_is_not_deleted_while_a_snapshot_of_it_is_taken(api, cast, volume):
    api("ben").post("snapshots", {"volume": str(volume.pk)})
    refused = api("ana").delete(f"volumes/{volume.pk}")
    assert (refused.status, refused.code) == (409, "volume_in_use")
    assert "data@1 is being taken" in refused.body["detail"]
    work()
    assert api("ana").delete(f"volumes/{volume.pk}").status == 200


def test_a_volume_is_not_deleted_before_the_snapshot_of_an_ended_job_is_written(api, cast, volume):
    watched_job(cast, "success")
    assert api("vera").get(f"volumes/{volume.pk}").body["snapshots_due_for"] is None
    Job.objects.update(state="succeeded", finished_at=timezone.now())
    assert api("ana").delete(f"volumes/{volume.pk}").code == "volume_in_use"
    assert api("vera").get("volumes").body["results"][0]["snapshots_due_for"] == "train1"
    assert taken() == [("success", "success")]
    assert api("vera").get(f"volumes/{volume.pk}").body["snapshots_due_for"] is None
    work()
    assert api("ana").delete(f"volumes/{volume.pk}").status == 200


def test_a_failed_snapshot_does_not_take_the_place_of_one_that_can_be_restored(cast, volume):
    job = watched_job(cast, "epoch")
    for epoch in range(1, 4):
        Job.objects.filter(pk=job.pk).update(progress={"epoch": epoch})
        snapshot_on_events()
    work()
    Snapshot.objects.filter(number__gte=2).update(state="failed")
    Volume.objects.update(keep_last=1)
    remove_old_snapshots()
    work()
    left = Snapshot.objects.order_by("number").values_list("number", "state")
    assert list(left) == [(1, "ready"), (3, "failed")]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_is_deleted_while_its_files_are_made_leaves_none(cast, volume, monkeypatch, is_cancelled: bool):
    def deleted_first(model: Any, make: Any) -> Any:
        def making(storage: FolderVolumes, key: str, *rest: Any) -> Any:
            model.objects.filter(pk=key).delete()
            made = make(storage, key, *rest)
            # As a storage system that is asked, and then waited for until the command is seen to be cancelled.
            if is_cancelled:
                raise Cancelled
            return made

        return making

    monkeypatch.setattr(FolderVolumes, "take", deleted_first(Snapshot, FolderVolumes.take))
    monkeypatch.setattr(FolderVolumes, "provision", deleted_first(Volume, FolderVolumes.provision))
    snapshot = take_snapshot(volume, actor=SYSTEM)
    other = create_volume(cast.project, {"name": "other", "size": 1 << 30}, actor=SYSTEM)
    for command in Command.objects.unfinished():
        carry_out_here(command.pk)
    assert not tree_of(snapshot).exists()
    assert not directory_of(other).exists()
    assert directory_of(volume).exists()


def test_events_of_any_number_of_jobs_cost_three_queries(cast, volume, django_assert_num_queries):
    for name in ("train1", "train2", "train3"):
        job = make_job(cast.project, name, cast.ben, volumes=MOUNT, snapshot_on=["epoch", "preempt"])
        Job.objects.filter(pk=job.pk).update(attempt=1, state="running", progress={"epoch": 1})
    assert len(taken()) == 3
    with django_assert_num_queries(3):
        snapshot_on_events()


def test_a_project_with_volumes_or_snapshots_is_not_deleted(cast, volume):
    make_snapshot(volume)
    with pytest.raises(Conflict) as refused:
        delete_project(cast.project, actor=cast.actor("root"))
    assert refused.value.code == "project_has_volumes"
    assert "1 volumes and 1 snapshots" in refused.value.detail
