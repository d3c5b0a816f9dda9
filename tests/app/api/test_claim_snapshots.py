"""Snapshots of claims: what a later try at one says of programs that wrote during an earlier one."""

from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.commands.tasks import carry_out_here
from controlplane.engines.base import EngineUnreachable
from controlplane.models import Command
from datasets.actions.snapshots import take_snapshot
from datasets.models import Snapshot
from datasets.storage.volumes import Taken
from jobs.models import Pod
from tests.app.api.placing import place
from tests.builders import make_job
from tests.volumes import make_volume

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]
NOW = timezone.now()


class Driver:
    """A storage of claims. `answers`: what its tries do after the cluster was asked for the snapshot, in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def take(self, key: str, volume: str, before: str | None, budget: Any, *calls: Any) -> Taken:
        if self.answers.pop(0) == "away":
            raise EngineUnreachable("no route")
        return Taken(None, 1, None)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr("datasets.snapshot_commands.storage_of_snapshot", lambda snapshot: driver)
    monkeypatch.setattr("datasets.snapshot_commands.claims_volumes", lambda project: True)
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
