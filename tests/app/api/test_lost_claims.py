"""Claims of a Kubernetes cluster that were deleted or lost outside Trainyard: noticed by the watch, and named."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Cluster, Command, Event, Project
from datasets.actions.cache_upkeep import keep_caches
from datasets.actions.caches import CACHE, FILL_CACHE, location_for
from datasets.actions.volume_care import end_jobs_without_volume
from datasets.actions.volumes import CHECK, create_volume, delete_volume
from datasets.claim_watching import CHECKED_EVERY, check_claims
from datasets.command_handlers.caches import CHECK_LOCATION
from datasets.models import Cache, CacheLocation, Volume
from datasets.queries.volume_waits import waiting_jobs
from datasets.storage.claims import (
    CACHE_CLAIM,
    CLAIM_BEING_DELETED,
    CLAIM_DELETED,
    CLAIM_LOST,
    NAMESPACE_DELETED,
    claim_name,
)
from jobs.actions import stop_job
from tests.builders import make_job
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.volumes import work
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes", "own_volumes")]
STATED = {"cache_storage_class": "nfs", "control_url": "http://control:8000", "default_image": "python:3"}


@dataclass
class Engine:
    """A cluster with these troubles by claim, of which the watch sees `seen`; "unknown": nothing yet."""

    real: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] | None = field(default_factory=dict)

    def claim_trouble(self, project: str, claim: str) -> str | None:
        return None if self.seen is None else self.seen.get(claim, "")

    def volumes(self, *_: object) -> "Engine":
        return self

    def caches(self, project: str, claim: Any) -> "Engine":
        return self

    def provision(self, volume: str, budget: object) -> None:
        """Nothing to do: no test looks into a volume."""

    def measure(self, *_: object) -> None:
        """What a claim holds is not known."""

    def trouble(self, volume: str = "") -> str:
        return self.real.get(claim_name(volume) if volume else CACHE_CLAIM, "")


@pytest.fixture
def engine(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Engine:
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes", settings=STATED)
    engine = Engine()
    for module in ("claim_watching", "volume_storage", "cache_volumes"):
        monkeypatch.setattr(f"datasets.{module}.engine_for", lambda cluster: engine)
    cast.project.refresh_from_db()
    return engine


@pytest.fixture
def volume(cast: Cast, engine: Engine) -> Volume:
    volume = create_volume(cast.project, {"name": "data", "size": 1 << 20}, actor=SYSTEM)
    work()
    volume.refresh_from_db()
    return volume


def checked() -> None:
    check_claims()
    looks = Command.objects.unfinished().of_kinds([CHECK, CHECK_LOCATION])
    wait_until(lambda: not (carry_out_due() or looks.exists()), what="the look at claims")


def lose(engine: Engine, claim: str, trouble: str) -> None:
    engine.real[claim] = trouble
    engine.seen = dict(engine.real)


@pytest.mark.parametrize("trouble", [CLAIM_DELETED, CLAIM_BEING_DELETED, CLAIM_LOST, NAMESPACE_DELETED])
def test_a_claim_that_is_gone_fails_its_volume_with_the_reason_everywhere(
    api: Any, cast: Cast, engine: Engine, volume: Volume, client: Any, trouble: str
):
    lose(engine, claim_name(str(volume.pk)), trouble)
    checked()
    status = api("ben").get(f"volumes/{volume.pk}").body["status"]
    assert (status["state"], status["reason"]) == ("failed", trouble)
    assert "PersistentVolume" in status["message"]
    client.force_login(cast.ben)
    assert status["message"] in client.get(f"/volumes/{volume.pk}").content.decode()
    assert Event.objects.filter(kind="volume.lost").count() == 1
    checked()
    assert Event.objects.filter(kind="volume.lost").count() == 1


def test_a_queued_job_that_mounts_it_waits_and_it_can_be_deleted_without_the_job(
    cast: Cast, engine: Engine, volume: Volume
):
    job = make_job(cast.project, volumes=[{"volume": volume.name, "mount_path": "/out"}])
    lose(engine, claim_name(str(volume.pk)), CLAIM_DELETED)
    checked()
    end_jobs_without_volume()
    job.refresh_from_db()
    # The claim may come back.
    assert job.state == "queued"
    assert waiting_jobs([job.pk]) == {str(job.pk)}
    stop_job(job, actor=SYSTEM)
    volume.refresh_from_db()
    delete_volume(volume, actor=SYSTEM)
    assert Volume.objects.get().state == "deleting"


def test_what_the_watch_does_not_know_or_knows_too_late_changes_nothing(engine: Engine, volume: Volume):
    engine.seen = None
    checked()
    # A claim that was made in this moment, or again.
    engine.seen = {claim_name(str(volume.pk)): CLAIM_DELETED}
    checked()
    assert Volume.objects.get().state == "ready"


def test_a_claim_that_a_backup_brought_back_is_used_again(engine: Engine, volume: Volume):
    claim = claim_name(str(volume.pk))
    lose(engine, claim, CLAIM_BEING_DELETED)
    checked()
    lose(engine, claim, CLAIM_DELETED)
    checked()
    assert Volume.objects.get().reason == CLAIM_DELETED
    lose(engine, claim, "")
    checked()
    found = Volume.objects.get()
    assert (found.state, found.reason, found.message) == ("ready", "", "")


def a_minute_passes() -> None:
    Command.objects.of_kinds([CHECK, CHECK_LOCATION]).update(created_at=timezone.now() - CHECKED_EVERY)


def test_a_claim_that_came_back_without_the_label_of_the_watch_is_found(engine: Engine, volume: Volume):
    lose(engine, claim_name(str(volume.pk)), CLAIM_DELETED)
    checked()
    engine.real = {}
    a_minute_passes()
    checked()
    assert Volume.objects.get().state == "ready"


def test_a_check_that_disagrees_with_the_watch_is_repeated_after_a_minute(engine: Engine, volume: Volume):
    engine.seen = {claim_name(str(volume.pk)): CLAIM_DELETED}
    orders = Command.objects.of_kinds([CHECK])
    checked()
    first = orders.get().pk
    checked()
    assert orders.get().pk == first
    a_minute_passes()
    checked()
    assert orders.get().pk != first


def test_a_volume_that_was_never_made_stays_failed(engine: Engine, volume: Volume):
    Volume.objects.update(state="failed", reason="not_provisioned")
    checked()
    assert Volume.objects.get().reason == "not_provisioned"


@pytest.fixture
def location(cast: Cast, engine: Engine) -> CacheLocation:
    version = make_version(make_dataset(cast.project), {"a": "one"})
    location = location_for(cast.project.cluster, cast.project)
    Cache.objects.create(version=version, location=location, state="ready")
    location.kept_keys, location.used_bytes = [str(version.pk)], 3
    location.save()
    return location


def test_caches_of_a_claim_that_goes_with_its_last_reader_stay(engine: Engine, location: CacheLocation):
    lose(engine, CACHE_CLAIM, CLAIM_BEING_DELETED)
    checked()
    location.refresh_from_db()
    assert location.kept_keys


def test_what_a_fill_wrote_after_the_check_asked_is_kept(
    engine: Engine, location: CacheLocation, monkeypatch: pytest.MonkeyPatch
):
    def refilled() -> str:
        CacheLocation.objects.update(kept_keys=["new"])
        return CLAIM_DELETED

    lose(engine, CACHE_CLAIM, CLAIM_DELETED)
    monkeypatch.setattr(engine, "trouble", refilled)
    checked()
    location.refresh_from_db()
    assert location.kept_keys == ["new"]


def test_caches_are_not_lost_while_a_fill_is_under_way(engine: Engine, location: CacheLocation):
    cache = Cache.objects.get()
    later = timezone.now() + timedelta(hours=1)
    Command.objects.create(kind=FILL_CACHE, subject_kind=CACHE, subject_id=str(cache.pk), not_before=later)
    lose(engine, CACHE_CLAIM, CLAIM_DELETED)
    checked()
    location.refresh_from_db()
    assert location.kept_keys


def test_the_old_cluster_of_a_project_that_moved_is_not_asked(
    cast: Cast, engine: Engine, location: CacheLocation, monkeypatch: pytest.MonkeyPatch
):
    lose(engine, CACHE_CLAIM, CLAIM_DELETED)
    check_claims()
    asked: list[str] = []
    monkeypatch.setattr(engine, "trouble", lambda: asked.append("") or "")
    other = Cluster.objects.create(name="elsewhere", engine="kubernetes", settings=STATED)
    Project.objects.filter(pk=cast.project.pk).update(cluster=other)
    looks = Command.objects.unfinished().of_kinds([CHECK_LOCATION])
    wait_until(lambda: not (carry_out_due() or looks.exists()), what="the look at claims")
    assert not asked


def test_caches_of_a_deleted_claim_are_failed_and_it_is_not_looked_at_again(
    engine: Engine, location: CacheLocation
):
    lose(engine, CACHE_CLAIM, CLAIM_DELETED)
    checked()
    keep_caches(timezone.now())
    location.refresh_from_db()
    assert (location.kept_keys, location.used_bytes) == ([], 0)
    assert (Cache.objects.get().state, Cache.objects.get().reason) == ("failed", "files_gone")
