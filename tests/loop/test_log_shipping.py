"""Whose logs an engine is to copy into the log store, and which process has it do so."""

from datetime import timedelta

import pytest
from django.conf import settings

from controlplane.engines.base import WRITES_LOG_STORE
from controlplane.logstore.reader import log_path
from controlplane.logstore.writer import LogWriter
from controlplane.loop.log_shipping import LOOK_BACK_SECONDS, LogKeeper
from controlplane.models import Lease
from jobs.models import Pod
from tests.builders import make_job, make_project


@pytest.fixture
def told(plant, monkeypatch):
    """What the plant's engine was told to copy, look by look; it writes no log itself."""
    looks = []
    monkeypatch.setattr(plant.engine, "capabilities", plant.engine.capabilities - {WRITES_LOG_STORE})
    monkeypatch.setattr(plant.engine, "copy_logs", looks.append)
    return looks


def ended_without_log(plant) -> Pod:
    """The pod of a job that has run to its end; its log was not copied to the end yet."""
    make_job(make_project(), command=["sleep", "1"])
    plant.settle()
    plant.tick(seconds=2)
    pod = Pod.objects.get()
    assert pod.released_at is not None
    path_of(pod).unlink(missing_ok=True)
    return pod


def path_of(pod: Pod):
    return log_path(settings.LOG_DIR, str(pod.job_id), 1, pod.rank)


def end_log(pod: Pod) -> None:
    writer = LogWriter(str(path_of(pod)))
    writer.end("exit 0")
    writer.close()


def test_running_pods_are_copied_and_engines_that_write_logs_are_left_alone(plant, told, monkeypatch):
    make_job(make_project())
    plant.settle()
    pod = Pod.objects.get()
    assert LogKeeper().look(plant.clock())
    assert told == [{pod.name: str(path_of(pod))}]
    monkeypatch.undo()
    Lease.objects.all().delete()
    assert LogKeeper().look(plant.clock())
    assert len(told) == 1


def test_a_pod_that_has_gone_is_copied_until_its_log_has_its_end(plant, told):
    pod, keeper = ended_without_log(plant), LogKeeper()
    keeper.look(plant.clock())
    end_log(pod)
    keeper.look(plant.clock())
    assert told == [{pod.name: str(path_of(pod))}, {}]


def test_a_log_without_an_end_is_not_looked_for_for_ever(plant, told):
    ended_without_log(plant)
    LogKeeper().look(plant.clock() + timedelta(seconds=LOOK_BACK_SECONDS + 1))
    assert told == [{}]


def test_a_pod_that_never_ran_has_no_log(plant, told):
    plant.engine.faults.start_refusal = ("image_unknown", "There is no image 'x'.")
    make_job(make_project())
    plant.settle()
    LogKeeper().look(plant.clock())
    assert told == [{}]


def test_one_process_copies_and_another_takes_over(plant, told):
    make_job(make_project())
    plant.settle()
    first, second = LogKeeper(), LogKeeper()
    assert (first.look(plant.clock()), second.look(plant.clock())) == (True, False)
    Lease.objects.filter(name="logs").update(expires_at=plant.cluster.created_at)  # the first one hangs
    assert second.look(plant.clock())
    del told[:]
    assert not first.look(plant.clock())
    assert told == [{}]  # it copies no more
    second.stop()
    assert told == [{}, {}]
    assert first.look(plant.clock())


def test_an_engine_in_trouble_does_not_stop_the_look(plant, told, monkeypatch):
    monkeypatch.setattr(plant.engine, "copy_logs", lambda _: 1 / 0)
    assert LogKeeper().look(plant.clock())
