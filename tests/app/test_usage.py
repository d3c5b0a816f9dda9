"""What projects used lately, from samples, and the fair shares that follow."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from controlplane.loop.observe import KeptJobs, observe
from controlplane.models import Cluster, Project, Sample
from controlplane.telemetry.usage import RENEWED_EVERY, decayed_usage
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


def hours_before(now: datetime, count: int) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0) - count * HOUR


def test_a_project_that_held_all_gpus_for_all_half_lives_used_everything(cast: Cast):
    held(cast.project, 1, hours_before(NOW, 0), 8, 1800)
    for count in range(1, 5):
        held(cast.project, count, hours_before(NOW, count), 8)
    assert decayed_usage(NOW, 8, HOUR) == {cast.project.pk: 1.0}


def test_the_parts_of_all_are_one_at_most_though_the_cluster_shrank(cast: Cast):
    held(cast.project, 1, hours_before(NOW, 1), 8)
    held(cast.other, 1, hours_before(NOW, 1), 24)
    assert decayed_usage(NOW, 2, HOUR) == {cast.project.pk: 0.25, cast.other.pk: 0.75}


def test_use_that_is_a_half_life_old_counts_half(cast: Cast):
    held(cast.project, 1, hours_before(NOW, 1), 8)
    held(cast.other, 1, hours_before(NOW, 1 + 24), 8)
    held(cast.other, 1, hours_before(NOW, 24 * 6), 8)  # older than all half-lives
    found = decayed_usage(NOW, 1, DAY)
    assert found[cast.project.pk] == pytest.approx(2 * found[cast.other.pk], abs=0.02)
    assert decayed_usage(NOW, 0, DAY) == {}


def usage_seen(kept: KeptJobs | None = None, later: timedelta = timedelta()) -> dict[str, float]:
    """What the scheduler sees."""
    seen = observe(Cluster.objects.get(), timezone.now() + later, kept=kept).view
    return {project.name: project.usage for project in seen.projects}


def test_the_scheduler_sees_past_use_only_with_a_half_life(cast: Cast, settings):
    for count in range(1, 6):
        held(cast.project, 1, hours_before(timezone.now(), count), 100)
    assert set(usage_seen().values()) == {0.0}
    settings.USAGE_HALF_LIFE = HOUR
    assert usage_seen()[cast.project.name] == 1.0


def test_past_use_is_read_again_after_a_while(cast: Cast, settings):
    settings.USAGE_HALF_LIFE = DAY
    kept = KeptJobs()
    before = usage_seen(kept)
    held(cast.project, 1, hours_before(timezone.now(), 1), 100)
    assert usage_seen(kept) == before
    assert usage_seen(kept, RENEWED_EVERY)[cast.project.name] > 0
