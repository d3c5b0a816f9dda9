"""Suspended jobs: their grace, and the checkpoint from which they continue."""

from __future__ import annotations

import json

from controlplane.access import SYSTEM
from controlplane.loop.telemetry_step import collect_once
from controlplane.models import Command
from jobs.actions import stop_job, suspend_job
from jobs.command_kinds import STOP_POD
from jobs.models import Pod
from jobs.queries import job_detail
from jobs.transitions import REMIND_AFTER_SECONDS
from tests.builders import make_job, make_project


def running_job(plant, *, stops_in):
    """Return a running job whose pod takes these seconds to stop."""
    plant.engine.faults.stop_delay_seconds = stops_in
    job = make_job(make_project())
    plant.settle()
    return job


def test_a_suspended_job_has_its_grace_to_save_a_checkpoint_and_says_which(plant):
    job = running_job(plant, stops_in=50)
    pod = Pod.objects.get(job=job)
    plant.engine.print_line(pod.name, json.dumps({"trainyard": 1, "step": 1150, "loss": 0.5}))
    collect_once(plant.clock())
    suspend_job(job, actor=SYSTEM)
    plant.in_seconds(45)
    job.refresh_from_db()
    assert job.state == "stopping"
    saved = {"checkpoint_at": int(plant.clock().timestamp()), "checkpoint_step": 1200}
    plant.engine.print_line(pod.name, json.dumps({"trainyard": 1, **saved}))
    plant.in_seconds(10)
    job.refresh_from_db()
    pod.refresh_from_db()
    assert (job.state, pod.exit_code) == ("suspended", 143)
    # The step shown is at least that of the checkpoint.
    assert job.progress == {"step": 1200, "loss": 0.5, **saved}
    shown = job_detail(job)["status"]["reason"]
    assert shown["code"] == "suspended_by_user"
    assert shown["message"].endswith("resume it to queue it again. Checkpoint at step 1,200.")


def test_a_stop_shortens_the_grace_of_a_suspension(plant):
    job = running_job(plant, stops_in=500)
    suspend_job(job, actor=SYSTEM, grace_seconds=300)
    plant.in_seconds(5)
    stop_job(job, actor=SYSTEM)
    plant.in_seconds(11)
    job.refresh_from_db()
    assert job.state == "stopped"
    assert "No checkpoint" not in job_detail(job)["status"]["reason"]["message"]


def test_a_long_grace_is_not_cut_by_the_reminder_of_a_stop(plant):
    job = running_job(plant, stops_in=90)
    suspend_job(job, actor=SYSTEM, grace_seconds=120)
    plant.in_seconds(95)
    pod = Pod.objects.get(job=job)
    assert pod.exit_code == 143  # not killed
    job.refresh_from_db()
    assert job_detail(job)["status"]["reason"]["message"].endswith("No checkpoint was reported.")


def test_a_stop_that_failed_is_repeated_whatever_its_grace(plant):
    job = running_job(plant, stops_in=500)
    suspend_job(job, actor=SYSTEM, grace_seconds=300)
    plant.in_seconds(1)
    Command.objects.filter(kind=STOP_POD).update(state=Command.FAILED)
    plant.in_seconds(REMIND_AFTER_SECONDS + 5)
    job.refresh_from_db()
    assert job.state == "suspended"
