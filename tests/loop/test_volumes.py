"""Jobs that wait for volumes, and what their pods mount."""

import os
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.models import Command, Project
from controlplane.scheduling.reasons import PREEMPTED, describe
from datasets.actions.snapshot_events import snapshot_on_events, snapshot_on_schedule
from datasets.actions.snapshots import delete_snapshot, snapshot_failed, snapshot_waits, take_snapshot
from datasets.actions.volume_care import measure_volumes
from datasets.actions.volumes import delete_volume, edit_volume, set_access_mode
from datasets.models import KnownStorageClass, Snapshot, Volume
from datasets.queries.volume_waits import volume_waits, waiting_jobs
from datasets.queries.volumes import running_jobs, volume_shape
from jobs.actions import stop_job
from jobs.models import Attempt, Job
from jobs.queries import job_detail
from jobs.scaling import scale_job
from tests.builders import make_cluster, make_job, make_project, make_user
from tests.cast import SYSTEM
from tests.loop.elastic_program import Program, live
from tests.volumes import directory_of, make_snapshot, make_volume, work, write

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]


def mounted(volume="data", **more):
    return {"volume": volume, "mount_path": "/mnt", **more}


def reason(job):
    job.refresh_from_db()
    return job.reason, job.message


def test_the_second_job_of_a_volume_for_one_waits_and_its_reason_names_the_holder(plant):
    project = make_project()
    make_volume(project)
    first, second = (make_job(project, name, volumes=[mounted()]) for name in ("first", "second"))
    plant.settle()
    assert plant.states() == {"first": "running", "second": "queued"}
    code, message = reason(second)
    assert code == "waiting_for_volume"
    assert "job first has it" in message
    assert job_detail(second)["status"]["reason"]["details"]["held_by"] == "first"
    stop_job(first, actor=SYSTEM)
    plant.settle()
    assert plant.states() == {"first": "stopped", "second": "running"}


def test_the_reason_on_a_cluster_with_claims_suggests_a_clone_with_the_other_access_mode(plant):
    project = make_project()
    make_volume(project)
    _, second = (make_job(project, name, volumes=[mounted()]) for name in ("first", "second"))
    plant.settle()
    assert reason(second)[1].endswith("change its access mode to ReadWriteMany.")
    kube = make_cluster("kube", engine="kubernetes", nodes=0)
    Project.objects.filter(pk=project.pk).update(cluster=kube)
    sentence = describe("waiting_for_volume", volume_waits(kube.pk)[str(second.pk)])
    assert "It starts when that job has ended" in sentence
    assert "yard volume clone data NEW --access-mode ReadWriteMany" in sentence


def test_two_jobs_share_a_volume_for_many_and_the_switch_waits_for_one(plant):
    project = make_project()
    volume = make_volume(project, access_mode="ReadWriteMany")
    jobs = [make_job(project, name, volumes=[mounted()]) for name in ("first", "second")]
    plant.settle()
    assert plant.states() == {"first": "running", "second": "running"}
    with pytest.raises(Exception, match="first, second") as refused:
        set_access_mode(volume, "ReadWriteOnce", actor=SYSTEM)
    assert refused.value.code == "volume_in_use"
    stop_job(jobs[0], actor=SYSTEM)
    plant.settle()
    assert set_access_mode(volume, "ReadWriteOnce", actor=SYSTEM).access_mode == "ReadWriteOnce"


def test_a_job_waits_until_its_new_volume_is_ready(plant):
    new = {"new": {"storage_class": "standard", "size": "1Gi"}, "mount_path": "/ckpt"}
    job = make_job(make_project(), volumes=[new])
    about = Command.objects.filter(kind="datasets.provision_volume")
    about.update(not_before=timezone.now() + timedelta(hours=1))
    plant.settle()
    assert reason(job) == (
        "waiting_for_volume",
        "The volume job is not ready yet, it is creating. It starts when the volume is.",
    )
    about.update(not_before=timezone.now())
    work()
    plant.settle()
    assert plant.states() == {"job": "running"}


def test_every_pod_of_an_elastic_job_mounts_the_volumes_directory(plant):
    project = make_project()
    volume = make_volume(project)
    make_job(
        project, kind="elastic", workers=2, min_workers=1, max_workers=3, volumes=[mounted(read_only=True)]
    )
    plant.tick()
    orders = Command.objects.filter(kind="start_pod")
    assert [order.payload["mounts"] for order in orders] == [
        [[str(directory_of(volume)), "/mnt", True, "", "", True]]
    ] * 2


def test_a_preempted_job_gets_its_volume_back_when_its_pods_are_gone(plant):
    mine, other = make_project("team-a", quota=0), make_project("team-b", quota=16)
    make_volume(mine)
    job = make_job(mine, gpus=8, volumes=[mounted()])
    plant.settle()
    urgent = [make_job(other, f"urgent{number}", gpus=8) for number in range(2)]
    plant.in_seconds(15)
    assert plant.states()["job"] == "queued"
    for one in urgent:
        stop_job(one, actor=SYSTEM)
    plant.in_seconds(5)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)


def succeed(plant, job):
    job.refresh_from_db()
    plant.engine.finish(f"{job.pk}-{job.attempt}-0")
    plant.settle()


def write_snapshots():
    """Do the loop's step that writes snapshots of events. Return the commands that take them, due in an hour."""
    snapshot_on_events()
    taking = Command.objects.unfinished().filter(kind="datasets.take_snapshot")
    taking.update(not_before=timezone.now() + timedelta(hours=1))
    return taking


def two_jobs_of_a_volume(plant, *events: str):
    """Two jobs of a volume for one job; the first has written and asks for snapshots on `events`, the second waits."""
    project = make_project()
    volume = make_volume(project)
    first = make_job(project, "first", volumes=[mounted()], snapshot_on=list(events))
    second = make_job(project, "second", volumes=[mounted()])
    plant.settle()
    write(volume, {"model": "of first"})
    return volume, first, second


def test_the_next_job_of_a_volume_starts_when_the_last_snapshot_of_the_job_before_is_taken(plant):
    volume, first, second = two_jobs_of_a_volume(plant, "success")
    succeed(plant, first)
    assert plant.states() == {"first": "succeeded", "second": "queued"}, "its snapshot is not written yet"
    code, message = reason(second)
    assert (code, message) == (
        "waiting_for_volume",
        (
            "The volume data is for one job at a time, and its snapshot for job first is not taken yet. It starts when"
            " that is ready, has failed or is deleted."
        ),
    )
    taking = write_snapshots()
    plant.settle()
    assert plant.states()["second"] == "queued", "its snapshot is pending"
    taking.update(not_before=timezone.now())
    work()
    plant.settle()
    assert plant.states()["second"] == "running"
    [taken] = Snapshot.objects.all()
    assert (taken.causes, taken.consistency, taken.volume) == (["success"], "idle", volume)


def test_a_job_that_only_reads_a_volume_does_not_wait_for_the_snapshot_of_the_job_before(plant):
    _, first, second = two_jobs_of_a_volume(plant, "success")
    make_job(first.project, "reader", volumes=[mounted(read_only=True)])
    succeed(plant, first)
    assert plant.states() == {"first": "succeeded", "second": "queued", "reader": "running"}
    assert "job reader has it" in reason(second)[1]
    write_snapshots().update(not_before=timezone.now())
    work()
    [taken] = Snapshot.objects.all()
    assert (taken.consistency, taken.message) == ("idle", "")


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_snapshot_in_trouble_keeps_a_job_from_its_volume_for_a_minute(plant, has_ended: bool):
    volume, first, second = two_jobs_of_a_volume(plant, "success")
    take_snapshot(volume, actor=SYSTEM)
    work()
    os.mkfifo(directory_of(volume) / "pipe")
    succeed(plant, first)
    taking = write_snapshots()
    late = Snapshot.objects.get(job=first, mark="success")
    snapshot_waits(str(late.pk), "disk_full", "The disk is full.")
    plant.settle()
    assert plant.states()["second"] == "queued", "such as a cluster that does not answer for half a minute"
    before = late.created_at - timedelta(seconds=61)
    Snapshot.objects.filter(pk=late.pk).update(created_at=before)
    first.attempts.update(created_at=before - timedelta(hours=1))
    plant.settle()
    assert plant.states()["second"] == "running"
    if has_ended:
        succeed(plant, second)
    taking.update(not_before=timezone.now())
    work()
    late.refresh_from_db()
    assert (late.state, late.consistency) == ("ready", "idle" if has_ended else "crash")
    assert late.message == (
        "a socket, pipe or device is not in it: pipe. second began to write to data before this was taken."
    )
    assert Snapshot.objects.get(mark="").message == "", "a request has no such moment"


def test_a_snapshot_that_was_written_late_names_who_wrote_since_the_event(plant):
    """Such as after the control plane was away for a minute right after the job's end."""
    _, first, second = two_jobs_of_a_volume(plant, "success", "preempt")
    succeed(plant, first)
    Attempt.objects.filter(job=first).update(
        reason=PREEMPTED, ended_at=timezone.now() - timedelta(seconds=40)
    )
    Job.objects.filter(pk=first.pk).update(finished_at=timezone.now() - timedelta(seconds=31))
    plant.settle()
    assert plant.states()["second"] == "running"
    Attempt.objects.filter(job=second).update(created_at=timezone.now() - timedelta(seconds=20))
    snapshot_on_events()
    work()
    late = Snapshot.objects.get()
    assert (late.causes, late.consistency) == (["success", "preempt"], "crash")
    assert late.message == "second began to write to data before this was taken."


@pytest.mark.parametrize("events", [["success"], ["preempt"], ["success", "preempt"]])
def test_a_job_that_failed_leaves_its_volume_at_once_unless_an_event_may_be_due(plant, events):
    volume, first, second = two_jobs_of_a_volume(plant, *events)
    plant.engine.finish(f"{first.pk}-1-0", exit_code=1)
    plant.settle()
    assert plant.states() == {"first": "failed", "second": "running"}
    assert volume_shape(volume)["snapshots_due_for"] is None
    stop_job(second, actor=SYSTEM)
    plant.settle()
    delete_volume(volume, actor=SYSTEM)


def test_the_last_epoch_of_a_failed_job_is_taken_before_the_next_job_writes(plant):
    """Telemetry may read it only after the job's end."""
    volume, first, _ = two_jobs_of_a_volume(plant, "epoch")
    plant.engine.finish(f"{first.pk}-1-0", exit_code=1)
    plant.settle()
    assert plant.states() == {"first": "failed", "second": "queued"}
    assert volume_shape(volume)["snapshots_due_for"] == "first"
    write_snapshots()
    plant.settle()
    assert plant.states()["second"] == "running"


@pytest.mark.parametrize("ends", ["deleted", "failed"])
def test_a_snapshot_that_ends_without_content_frees_its_volume(plant, ends):
    _, first, _ = two_jobs_of_a_volume(plant, "success")
    succeed(plant, first)
    write_snapshots()
    snapshot = Snapshot.objects.get()
    plant.settle()
    assert plant.states()["second"] == "queued"
    if ends == "deleted":
        delete_snapshot(snapshot, actor=SYSTEM)
    else:
        snapshot_failed(str(snapshot.pk), "no_room", "There is no room.")
    plant.settle()
    assert plant.states()["second"] == "running"


def test_the_schedule_of_a_volume_keeps_no_job_from_it(plant):
    volume, first, _ = two_jobs_of_a_volume(plant, "success")
    edit_volume(volume, {"snapshot_minutes": 5, "keep_last": 2}, actor=SYSTEM)
    snapshot_on_schedule(timezone.now() + timedelta(minutes=6))
    taking = Command.objects.unfinished().filter(kind="datasets.take_snapshot")
    taking.update(not_before=timezone.now() + timedelta(hours=1))
    succeed(plant, first)
    snapshot_on_events()
    plant.settle()
    states = {one.causes[0]: one.state for one in Snapshot.objects.all()}
    assert states == {"schedule": "pending", "success": "ready"}
    assert plant.states()["second"] == "running"


def test_a_job_keeps_its_volume_until_its_end_is_recorded(plant):
    """An operator's word that a node is dead releases its pods before the loop ends their jobs."""
    _, first, second = two_jobs_of_a_volume(plant, "success")
    first.pods.update(released_at=timezone.now())
    assert waiting_jobs([second.pk]) == {str(second.pk)}


def test_a_preempted_job_that_is_suspended_has_its_snapshot_before_another_job_writes(plant):
    _, first, second = two_jobs_of_a_volume(plant, "preempt")
    ended = {"ended_at": timezone.now(), "reason": PREEMPTED, "outcome": "disrupted"}
    Attempt.objects.filter(job=first).update(**ended)
    first.pods.update(released_at=timezone.now())
    Job.objects.filter(pk=first.pk).update(state="suspended")
    assert waiting_jobs([second.pk]) == {str(second.pk)}
    taking = write_snapshots()
    assert waiting_jobs([second.pk]) == {str(second.pk)}, "it is pending"
    taking.update(not_before=timezone.now())
    work()
    assert waiting_jobs([second.pk]) == frozenset()


def test_a_job_without_events_leaves_its_volume_at_once(plant):
    _, first, _ = two_jobs_of_a_volume(plant)
    succeed(plant, first)
    assert plant.states() == {"first": "succeeded", "second": "running"}


def test_a_preempted_job_has_its_snapshot_before_another_job_writes(plant):
    mine, other = make_project("team-a", quota=0), make_project("team-b", quota=16)
    make_volume(mine)
    asked = make_job(mine, gpus=8, volumes=[mounted()], snapshot_on=["preempt"])
    plant.settle()
    make_job(mine, "small", gpus=0, volumes=[mounted()])
    for number in range(2):
        make_job(other, f"urgent{number}", gpus=8)
    plant.in_seconds(15)
    assert (plant.states()["job"], plant.states()["small"]) == ("queued", "queued")
    snapshot_on_events()
    work()
    plant.settle()
    assert [one.causes for one in asked.snapshots.all()] == [["preempt"]]
    assert (plant.states()["job"], plant.states()["small"]) == ("queued", "running")


def test_what_a_job_wrote_is_measured_while_it_runs_and_after_its_end(plant):
    project = make_project()
    volume = make_volume(project)
    job = make_job(project, user=make_user(), volumes=[mounted()])
    plant.settle()
    write(volume, {"a": "12345"})
    measure_volumes()
    assert not Command.objects.unfinished().filter(kind="datasets.measure_volume").exists()
    Volume.objects.update(measured_at=timezone.now() - timedelta(minutes=2))
    measure_volumes()
    work()
    volume.refresh_from_db()
    assert (volume.used_bytes, volume.files) == (5, 1)
    write(volume, {"b": "67"})
    stop_job(job, actor=SYSTEM)
    plant.settle()
    measure_volumes()
    work()
    volume.refresh_from_db()
    assert (volume.used_bytes, volume.files) == (7, 2)


def test_a_job_that_only_reads_does_not_spoil_a_snapshot(plant):
    project = make_project()
    volume = make_volume(project, files={"a": "1"})
    make_job(project, user=make_user(), volumes=[mounted(read_only=True)])
    plant.settle()
    assert running_jobs(volume)
    assert make_snapshot(volume).consistency == "idle"


def lose_driver(volume: Volume, driver: str = "quobyte") -> None:
    """The volume's storage class is configured no more, and it was of this driver."""
    Volume.objects.filter(pk=volume.pk).update(storage_class="gold")
    place = {"directory": str(settings.STORAGE_CLASSES["standard"].directory), "driver": driver}
    KnownStorageClass.objects.update_or_create(name="gold", defaults=place)


def test_a_job_whose_volume_needs_a_driver_of_another_release_waits_and_others_start(plant):
    project = make_project()
    volume = make_volume(project)
    lose_driver(volume)
    job = make_job(project, "first", volumes=[mounted()])
    make_job(project, "other")
    plant.settle()
    assert plant.states() == {"first": "queued", "other": "running"}
    code, message = reason(job)
    assert code == "waiting_for_volume"
    assert "the storage class gold, whose driver quobyte this release does not have" in message
    lose_driver(Volume.objects.get(), "folder")
    plant.settle()
    assert plant.states() == {"first": "running", "other": "running"}


def test_an_elastic_job_whose_driver_went_with_an_update_does_not_grow_and_stops_no_pass(plant):
    volume = make_volume(make_project())
    lose_driver(volume, "folder")
    bounds = {"min_workers": 1, "workers": 2, "max_workers": 8}
    program = Program(plant, make_job(volume.project, kind="elastic", volumes=[mounted()], **bounds))
    program.settle()
    lose_driver(Volume.objects.get())
    scale_job(program.job, 4, actor=SYSTEM)
    make_job(volume.project, "other")
    program.settle()
    assert plant.states() == {"job": "scaling", "other": "running"}
    assert live(program.job) == [0, 1]
