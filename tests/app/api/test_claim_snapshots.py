"""Snapshots of claims: what a later try at one says of programs that wrote during an earlier one."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.commands.registry import CommandHandler
from controlplane.commands.tasks import carry_out_here
from controlplane.engines.base import EngineUnreachable
from controlplane.models import Command
from datasets.actions.snapshots import REMOVE, delete_snapshot, restore_snapshot, take_snapshot
from datasets.command_handlers.snapshots import UNSHOWN_TRIES
from datasets.models import Snapshot, Volume
from datasets.pod_quiesce import PodPause
from datasets.queries.volumes import snapshot_shape
from datasets.storage.base import UNLIMITED, Blocked
from datasets.storage.claims import NOT_DELETED, NOT_PROVISIONED
from datasets.storage.volumes import Taken
from jobs.models import Pod
from tests.app.api.placing import place
from tests.builders import make_job
from tests.volumes import make_snapshot, make_volume

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]
NOW = timezone.now()


class Driver:
    """A storage of claims. `answers`: what its tries do after the cluster was asked for the snapshot, in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.removals = 0
        self.is_asked = False

    def has_snapshot(self, key: str) -> bool:
        return self.is_asked

    def remove_snapshot(self, key: str) -> None:
        self.removals += 1
        raise Blocked(NOT_DELETED, "It is not deleted yet: the array is busy.")

    def restore(self, *about: Any) -> None:
        raise Blocked(NOT_PROVISIONED, "It is not made yet: the array copies.")

    def take(self, key: str, volume: str, before: str | None, budget: Any, *calls: Any) -> Taken:
        answer = self.answers.pop(0)
        if answer == "unasked":
            raise EngineUnreachable("no route")
        self.is_asked = True
        if answer == "away":
            raise EngineUnreachable("no route")
        if answer == "slow":
            budget.give_way()
            calls[-1]()
        return Taken(None, 1, None)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr("datasets.command_handlers.snapshots.storage_of_snapshot", lambda snapshot: driver)
    monkeypatch.setattr("datasets.command_handlers.snapshots.claims_volumes", lambda project: True)
    return driver


@pytest.mark.parametrize(("writes", "consistency"), [(True, "crash"), (False, "idle")])
def test_a_job_that_ends_between_two_tries_has_written_into_the_snapshot(
    cast: Any, driver: Driver, writes: bool, consistency: str
) -> None:
    driver.answers = ["away", "ready"]
    volume = make_volume(cast.project)
    job = make_job(cast.project, volumes=[{"volume": "data", "mount_path": "/mnt"}])
    if writes:
        place(job)
    command = Command.objects.get(subject_id=take_snapshot(volume, actor=SYSTEM).pk)
    carry_out_here(command.pk)
    Pod.objects.update(released_at=NOW)
    Command.objects.filter(pk=command.pk).update(not_before=NOW)
    carry_out_here(command.pk)
    snapshot = Snapshot.objects.get()
    assert (snapshot.state, snapshot.consistency, driver.answers) == ("ready", consistency, [])


@pytest.mark.parametrize(
    ("first", "pauses", "consistency"), [("unasked", 2, "quiesced"), ("away", 1, "crash")]
)
def test_programs_pause_again_if_the_cluster_was_not_asked_when_they_did(
    cast: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch, first: str, pauses: int, consistency: str
) -> None:
    paused: list[str] = []
    pause = PodPause(None, UNLIMITED)
    pause.has_paused = True
    monkeypatch.setattr(PodPause, "has_lasted", lambda pause: pause.has_paused)

    def quiesced(volume: Any, key: str, *_: Any) -> Any:
        paused.append(key)
        return nullcontext(pause)

    monkeypatch.setattr("datasets.command_handlers.snapshots.quiesced_by_pod", quiesced)
    driver.answers = [first, "ready"]
    place(make_job(cast.project, volumes=[{"volume": make_volume(cast.project).name, "mount_path": "/mnt"}]))
    command = Command.objects.get(subject_id=take_snapshot(Volume.objects.get(), actor=SYSTEM).pk)
    carry_out_here(command.pk)
    Command.objects.filter(pk=command.pk).update(not_before=NOW)
    carry_out_here(command.pk)
    snapshot = Snapshot.objects.get()
    assert (snapshot.state, snapshot.consistency, len(paused)) == ("ready", consistency, pauses)


@pytest.mark.parametrize(
    ("has_paused", "seconds", "seen"),
    [(True, 60, ("ready", "quiesced")), (True, 0, ("pending", "crash")), (False, 60, ("pending", "crash"))],
    ids=["paused", "paused too long", "not paused"],
)
def test_programs_stay_paused_for_the_content_while_other_commands_wait(
    cast: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch, has_paused: bool, seconds: float, seen: Any
) -> None:
    """On a busy control plane each snapshot of a driver that needs 5 s for the content was only crash-consistent."""
    pause = PodPause(None, UNLIMITED)
    pause.has_paused = has_paused
    monkeypatch.setattr(PodPause, "has_lasted", lambda pause: pause.has_paused)
    monkeypatch.setattr("datasets.command_handlers.snapshots.quiesced_by_pod", lambda *_: nullcontext(pause))
    monkeypatch.setattr("datasets.command_handlers.snapshots.LONGEST_PAUSE_SECONDS", seconds)
    driver.answers = ["slow"]
    volume, other = make_volume(cast.project), make_volume(cast.project, "other")
    place(make_job(cast.project, volumes=[{"volume": "data", "mount_path": "/mnt"}]))
    waiting = take_snapshot(other, actor=SYSTEM)
    Command.objects.filter(subject_id=waiting.pk).update(not_before=NOW - timedelta(days=1))
    snapshot = take_snapshot(volume, actor=SYSTEM)
    carry_out_here(Command.objects.get(subject_id=snapshot.pk).pk)
    snapshot.refresh_from_db()
    assert (snapshot.state, snapshot.consistency) == seen
    # What a later try would write is not known to be true before the snapshot is ready.
    assert snapshot_shape(snapshot)["consistency"] == (seen[1] if seen[0] == "ready" else None)


def test_a_snapshot_that_its_driver_does_not_delete_stays_and_says_why(cast: Any, driver: Driver) -> None:
    snapshot = take_snapshot(make_volume(cast.project), actor=SYSTEM)
    delete_snapshot(snapshot, actor=SYSTEM)
    removal = Command.objects.get(subject_id=snapshot.pk, kind=REMOVE)
    seen = []
    for _ in range(UNSHOWN_TRIES + 1):
        carry_out_here(removal.pk)
        Command.objects.filter(pk=removal.pk).update(not_before=NOW)
        snapshot.refresh_from_db()
        seen.append((snapshot.state, snapshot.reason))
    assert seen == [("deleting", "")] * UNSHOWN_TRIES + [("deleting", "not_deleted")]
    assert snapshot.message == "It is not deleted yet: the array is busy."


def test_a_restore_that_its_driver_copies_says_why_it_waits_and_fails_after_an_hour(
    cast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make_snapshot(make_volume(cast.project))
    monkeypatch.setattr("datasets.command_handlers.volumes.storage_of_volume", lambda volume: Driver())
    volume = restore_snapshot(snapshot, "back", actor=SYSTEM)
    making, seen = Command.objects.get(subject_id=volume.pk), []
    for hours in (0,) * CommandHandler.max_tries + (1,):
        Command.objects.filter(pk=making.pk).update(not_before=NOW, created_at=NOW - timedelta(hours=hours))
        carry_out_here(making.pk)
        volume.refresh_from_db()
        seen.append((volume.state, volume.reason, volume.message))
    words = ("not_provisioned", "It is not made yet: the array copies.")
    assert seen == [("creating", *words)] * CommandHandler.max_tries + [("failed", *words)]
