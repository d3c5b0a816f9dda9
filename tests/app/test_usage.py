"""What projects used lately, from samples, and the fair shares that follow."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.access import Actor
from controlplane.actions.clusters import edit_cluster
from controlplane.loop.observe import JobCache, observe
from controlplane.loop.record import record
from controlplane.models import Cluster, Project, Sample
from controlplane.scheduling.cycle import decide
from controlplane.telemetry.usage import RENEWED_EVERY, decayed_usage, half_life_of
from tests.cast import Cast

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def held(project: Project, user: int, at: datetime, gpus: float, seconds: int = 3600) -> None:
    """So many GPUs during the step that begins then."""
    total = gpus * seconds
    values = {"minimum": total, "maximum": total, "total": total, "count": 1}
    Sample.objects.create(
        metric="gpu_seconds", by="member", subject=f"{project.pk}/{user}", step_seconds=3600, at=at, **values
    )


def ids(cast: Cast) -> set[int]:
    return {cast.project.pk, cast.other.pk}


def hours_before(now: datetime, count: int) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0) - count * HOUR


def test_a_project_that_held_all_gpus_for_all_half_lives_used_everything(cast: Cast):
    held(cast.project, 1, hours_before(NOW, 0), 8, 1800)
    for count in range(1, 5):
        held(cast.project, count, hours_before(NOW, count), 8)
    assert decayed_usage(NOW, 8, HOUR, ids(cast)) == {cast.project.pk: 1.0}


def test_the_parts_of_all_are_one_at_most_though_the_cluster_shrank(cast: Cast):
    held(cast.project, 1, hours_before(NOW, 1), 8)
    held(cast.other, 1, hours_before(NOW, 1), 24)
    assert decayed_usage(NOW, 2, HOUR, ids(cast)) == {cast.project.pk: 0.25, cast.other.pk: 0.75}


def test_use_that_is_a_half_life_old_counts_half(cast: Cast):
    held(cast.project, 1, hours_before(NOW, 1), 8)
    held(cast.other, 1, hours_before(NOW, 1 + 24), 8)
    held(cast.other, 1, hours_before(NOW, 24 * 6), 8)  # older than all half-lives
    found = decayed_usage(NOW, 1, DAY, ids(cast))
    assert found[cast.project.pk] == pytest.approx(2 * found[cast.other.pk], abs=0.02)
    assert decayed_usage(NOW, 0, DAY, ids(cast)) == {}


def test_use_of_another_clusters_gpus_does_not_count(cast: Cast, settings):
    settings.USAGE_HALF_LIFE = DAY
    elsewhere = Project.objects.create(name="elsewhere", cluster=Cluster.objects.create(name="second"))
    now = timezone.now()
    held(cast.project, 1, hours_before(now, 1), 100)
    alone = usage_seen()
    held(elsewhere, 1, hours_before(now, 1), 100_000)
    assert usage_seen() == alone


def usage_seen(kept: JobCache | None = None, later: timedelta = timedelta()) -> dict[str, float]:
    """What the scheduler sees."""
    seen = observe(Cluster.objects.earliest("pk"), timezone.now() + later, kept=kept).view
    return {project.name: project.usage for project in seen.projects}


def test_the_scheduler_sees_past_use_only_with_a_half_life(cast: Cast, settings):
    for count in range(1, 6):
        held(cast.project, 1, hours_before(timezone.now(), count), 100)
    assert set(usage_seen().values()) == {0.0}
    settings.USAGE_HALF_LIFE = HOUR
    assert usage_seen()[cast.project.name] == 1.0


def test_a_cluster_may_have_a_half_life_of_its_own_and_pages_show_what_counts(cast: Cast, client: Client):
    for count in range(1, 6):
        held(cast.project, 1, hours_before(timezone.now(), count), 100)
    cluster = Cluster.objects.get()
    project_page = f"/projects/{cast.project.name}"
    client.force_login(cast.root)
    assert b"Used lately" not in client.get(project_page).content
    edit_cluster(cluster, {"usage_half_life_hours": 1}, actor=Actor(user=cast.root))
    cycle(cluster)
    cast.project.refresh_from_db()
    assert cast.project.recent_usage == 1.0
    assert "100\xa0% of the cluster" in client.get(project_page).content.decode()
    assert b"counts half after 1 hour" in client.get(f"/clusters/{cluster.name}").content
    edit_cluster(cluster, {"usage_half_life_hours": 0}, actor=Actor(user=cast.root))
    cycle(cluster)
    cast.project.refresh_from_db()
    assert cast.project.recent_usage is None


def test_a_clusters_half_life_wins_over_the_setting(cast: Cast, settings):
    settings.USAGE_HALF_LIFE = DAY
    cluster = Cluster.objects.get()
    assert half_life_of(cluster) == DAY
    cluster.usage_half_life_hours = 0
    assert not half_life_of(cluster)


def cycle(cluster: Cluster) -> None:
    """Observe, decide and record once."""
    now = timezone.now()
    seen = observe(cluster, now)
    record(cluster, decide(seen.view), seen, now)


def test_past_use_is_read_again_after_a_while(cast: Cast, settings):
    settings.USAGE_HALF_LIFE = DAY
    kept = JobCache()
    before = usage_seen(kept)
    held(cast.project, 1, hours_before(timezone.now(), 1), 100)
    assert usage_seen(kept) == before
    assert usage_seen(kept, RENEWED_EVERY)[cast.project.name] > 0


def test_another_half_life_counts_at_once(cast: Cast, settings):
    settings.USAGE_HALF_LIFE = DAY
    kept = JobCache()
    held(cast.project, 1, hours_before(timezone.now(), 1), 100)
    before = usage_seen(kept)
    settings.USAGE_HALF_LIFE = HOUR
    assert usage_seen(kept)[cast.project.name] > before[cast.project.name]
