"""The first page: sums of any size, bounded lists; sentences and cells say what the rows say."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.models import Cluster, Device, Lease, Node, Sample, User
from controlplane.telemetry.metrics import GPU_MEMORY, GPU_UTILIZATION, floor
from dashboards.charts.series import Point
from dashboards.pages import overview as pages
from dashboards.reads.devices import cell, held_together
from dashboards.reads.overview import CELL_DEVICES, Facts, figures, sentences, shown_projects
from dashboards.reads.series import utilisation_points
from jobs.overview import DeviceSums, JobGroup, NodeCounts
from tests.app.pages.conftest import Yard
from tests.builders import make_job, make_node, make_user
from tests.cast import Cast
from tests.crowd import make_crowd

Visit = Callable[[User | None], Client]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEVICES = DeviceSums(16, 0, 0, 0, 0.0, 0, 0, 0)


def facts(**changes: Any) -> Facts:
    """Two nodes of eight devices at rest, with other values in some fields."""
    return replace(Facts(DEVICES, NodeCounts(2, 2, 0), (), None), **changes)


def jobs(count: int, kind: str = "train", project: str = "team-a", *, is_queued: bool = False) -> JobGroup:
    return JobGroup(is_queued, project, kind, count, NOW - timedelta(minutes=4, seconds=5))


def device(index: int = 0, utilization: float | None = None, shares: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {"index": index, "utilization": utilization, "is_foreign": False, "shares": list(shares)}


def share(
    job: str | None, project: str = "team-a", milli: int = 1000, use: float | None = None
) -> dict[str, Any]:
    """A share that the job of that name holds; None for one that the reader does not see."""
    return {"job": job, "name": job, "project": project, "milli_gpus": milli, "utilization": use}


def test_the_page_says_what_the_rows_say(yard: Yard, visit: Visit):
    page = visit(yard.cast.ana).get("/").content.decode()
    assert f'href="/jobs/{yard.running.pk}"' in page
    assert f'href="/jobs/{yard.queued.pk}"' in page
    assert f'href="/jobs/{yard.finished.pk}"' not in page
    assert ">2</span>" in page  # nodes, and GPUs held
    assert "of 4 quota" in page
    assert page.count('class="index"') == 16


def test_what_is_not_known_has_no_unit(yard: Yard, visit: Visit):
    unit = '<span class="unit">%</span>'
    Device.objects.update(utilization=None)
    assert unit not in visit(yard.cast.ana).get("/").content.decode()
    Device.objects.update(utilization=0.0)
    assert unit in visit(yard.cast.ana).get("/").content.decode()


def test_an_empty_yard_says_how_to_fill_it(cast: Any, visit: Visit):
    Device.objects.all().delete()
    Node.objects.all().delete()
    page = visit(cast.root).get("/").content.decode()
    assert "No node has reported yet" in page
    assert "yard submit hyper1" in page
    assert "The queue is empty." in page


def test_a_stranger_reads_nothing_that_the_figures_contradict(yard: Yard, visit: Visit):
    page = visit(yard.cast.chi).get("/").content.decode()
    assert "No job of your projects is running." in page
    assert "No job is running." not in page.split('id="words"')[0]
    assert 'href="/projects/team-a"' not in page


def test_hints_name_a_project_that_the_reader_may_use(yard: Yard, visit: Visit):
    assert "yard submit hyper1 -p team-a" in visit(yard.cast.ben).get("/").content.decode()
    assert "yard submit hyper1 -p team-b" in visit(yard.cast.chi).get("/").content.decode()
    assert "yard submit hyper1 -p team-b" in visit(yard.cast.chi).get("/jobs").content.decode()
    assert "yard submit" not in visit(yard.cast.vera).get("/").content.decode()  # a viewer submits nowhere


def test_queries_do_not_grow_with_jobs(yard: Yard, visit: Visit):
    client = visit(yard.cast.ana)

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get("/").status_code == 200
        return len(queries)

    count()
    before = count()
    for number in range(12):
        make_job(yard.cast.project, f"more-{number}", yard.cast.ana, gpus=0.5)
    yard.plant.settle()
    assert count() == before


HIDDEN = (jobs(14, project="team-x"), jobs(2, project="team-x", is_queued=True))
OWN = frozenset({"team-a"})
MIXED = (jobs(2), jobs(1, "interactive"), jobs(1398, project="team-b"))
IDLE = replace(DEVICES, measured=2, idle_milli=1000)


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        ({}, "nodes", "all ready"),
        ({"nodes": NodeCounts(3, 1, 0)}, "nodes", "2 not ready"),
        ({"nodes": NodeCounts(3, 3, 1)}, "nodes", "1 cordoned"),
        ({"nodes": NodeCounts(3, 1, 1)}, "nodes", "2 not ready, 1 cordoned"),
        ({"models": [("V100", 32768), ("H100", 81920)]}, "gpus", "V100 32\u00a0GiB, H100 80\u00a0GiB"),
        ({}, "gpus_allocated", "all within quota"),
        ({"over_quota": 4}, "gpus_allocated", "4 over quota"),
        ({}, "gpus_idle_allocated", "none"),
        ({"devices": IDLE, "idle": ["sleeper"]}, "gpus_idle_allocated", "sleeper"),
        ({"devices": IDLE, "idle": ["a", "b", "c"]}, "gpus_idle_allocated", "a, b…"),
        ({"devices": IDLE}, "gpus_idle_allocated", "none in your projects"),
        (
            {"devices": replace(DEVICES, measured=3, use=1.6, busy=2)},
            "gpu_utilization",
            "80\u00a0% of busy devices",
        ),
        ({"devices": replace(DEVICES, measured=3)}, "gpu_utilization", "no device is busy"),
        ({}, "gpu_utilization", "nothing measures it"),
        ({"devices": replace(DEVICES, gpus=0)}, "gpu_utilization", "no device is busy"),
        ({"jobs": MIXED}, "jobs_running", "1,400 train, 1 interactive"),
        ({}, "jobs_running", "nothing runs"),
        ({}, "jobs_queued", "none queued"),
        ({"jobs": HIDDEN, "sees": OWN}, "jobs_running", "none in your projects"),
        ({"jobs": HIDDEN, "sees": OWN}, "jobs_queued", "none in your projects"),
        ({"jobs": (*HIDDEN, jobs(3, is_queued=True)), "sees": OWN}, "jobs_queued", "3 in your projects"),
    ],
)
def test_sentences(changes: dict[str, Any], name: str, expected: str):
    assert sentences(facts(**changes))[name] == expected


def test_the_longest_wait_is_shown_to_those_who_see_all_jobs():
    queued = (jobs(3, is_queued=True), jobs(2, project="team-x", is_queued=True))
    oldest = queued[0].oldest
    assert [row.get("since") for row in figures(facts(jobs=queued))][-1] == oldest
    assert [row.get("since") for row in figures(facts(jobs=queued, sees=OWN))][-1] is None


def test_cells_show_shares_side_by_side_filled_to_their_use():
    shares = (share("half", milli=500, use=0.5), share("rest", "team-x", 250))
    drawn = cell(device(4, 0.8, shares), {"team-a": 3})
    first, second = drawn["parts"]
    names = ("x", "width", "y", "height", "palette_index", "job")
    assert [first[name] for name in names] == [0, 50, 50, 50, 3, "half"]
    assert [second[name] for name in names] == [50, 25, 20, 80, 0, "rest"]
    assert drawn["title"] == "GPU 4: half (0.5), rest (0.25), 80\u00a0%"
    assert (drawn["job"], drawn["is_idle"]) == (None, False)


def test_a_free_device_is_not_idle_and_a_held_one_at_rest_is():
    assert cell(device(1), {})["is_idle"] is False
    assert cell(device(1), {})["title"] == "GPU 1: free"
    assert cell(device(1, 0.0, (share("a"),)), {})["is_idle"] is True


def test_a_whole_device_is_a_link_to_its_job_and_another_projects_shows_the_project():
    assert cell(device(0, 0.9, (share("a"),)), {})["job"] == "a"
    hidden = cell(device(0, 0.9, (share(None, "team-x"),)), {})
    assert (hidden["job"], hidden["title"]) == (None, "GPU 0: team-x, 90\u00a0%")


def test_neighbouring_devices_of_one_job_are_told_together():
    runs = held_together(
        [*(device(n, 0.5, (share("a"),)) for n in range(3)), device(3), device(4, 1.0, (share("b"),))]
    )
    shown = [(run["label"], [holder["name"] for holder in run["holders"]], run["use"]) for run in runs]
    assert shown == [("0–2", ["a"], 0.5), ("3", [], None), ("4", ["b"], 1.0)]


def test_the_projects_that_hold_most_are_shown_by_name():
    rows = [
        {"name": n, "allocated_gpus": held, "fair_share_gpus": 0, "gpu_quota": 0}
        for n, held in zip("dcba", (1, 0, 5, 3), strict=True)
    ]
    assert [row["name"] for row in shown_projects(rows, 3)] == ["a", "b", "d"]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings of other tests' clusters are forgotten."""
    monkeypatch.setattr(pages, "_kept", {})


def test_ten_thousand_devices_are_a_square_a_node(db: None, visit: Visit):
    make_crowd(320, 1200, running=900)
    page = visit(make_user("root", is_admin=True)).get("/").content.decode()
    assert CELL_DEVICES < 320 * 8
    assert 'data-pitch-x="10"' in page
    assert len(page.encode()) <= 150_000


def test_a_card_names_the_jobs_of_a_node(yard: Yard, visit: Visit):
    node = Node.objects.filter(devices__allocations__pod__job=yard.running).first()
    assert node is not None
    own = visit(yard.cast.ana).get(f"/nodes/{node.name}/card").content.decode()
    assert f'href="/jobs/{yard.running.pk}"' in own
    other = visit(yard.cast.chi).get(f"/nodes/{node.name}/card").content.decode()
    assert str(yard.running.pk) not in other
    assert "team-a" in other


def test_cells_are_links_to_the_jobs_that_hold_them(yard: Yard, visit: Visit):
    link = f'<a href="/jobs/{yard.running.pk}" class="cell'
    for path in ("/", "/nodes"):
        assert visit(yard.cast.ana).get(path).content.decode().count(link) == 2
        assert str(yard.running.pk) not in visit(yard.cast.chi).get(path).content.decode()


@pytest.fixture
def sampled(cast: Cast) -> datetime:
    """The end of a range in which the newest sample of a cluster at rest is 90 s old. It is later than now, so that the
    test may take any time."""
    end = floor(timezone.now() + timedelta(hours=1), 10)
    Device.objects.update(utilization=0.25, memory_used_mib=4096, memory_mib=16384)
    for metric, mean in ((GPU_UTILIZATION, 0.25), (GPU_MEMORY, 4096.0 * Device.objects.count())):
        sample = {"minimum": mean, "maximum": mean, "total": mean, "at": end - timedelta(seconds=90)}
        Sample.objects.create(metric=metric, by="cluster", subject="memory", step_seconds=10, **sample)
    for name in ("loop", "collect"):
        Lease.objects.create(name=name, completed_at=end)
    return end


def ends(end: datetime) -> list[Point]:
    """The last point of each line, as seconds before the end and its value."""
    points = (line[-1] for line in utilisation_points(end - timedelta(minutes=5), end))
    return [((end - at).total_seconds(), value) for at, value in points if isinstance(at, datetime)]


def test_the_chart_of_a_cluster_at_rest_ends_now(sampled: datetime) -> None:
    assert ends(sampled) == [(0, 0.25)] * 2


def test_the_chart_of_an_earlier_range_ends_with_its_last_sample(sampled: datetime) -> None:
    earlier = sampled - timedelta(hours=2)
    Sample.objects.update(at=earlier - timedelta(seconds=90))
    assert ends(earlier) == [(90, 0.25)] * 2


@pytest.mark.parametrize(("name", "seconds"), [("loop", 20), ("collect", 90)])
def test_the_chart_of_a_cluster_that_nothing_looks_at_ends_with_its_last_sample(
    sampled: datetime, name: str, seconds: float
) -> None:
    Lease.objects.filter(name=name).update(completed_at=timezone.now() - timedelta(seconds=seconds))
    assert ends(sampled) == [(90, 0.25)] * 2


def test_the_chart_of_a_cluster_that_does_not_answer_ends_with_its_last_sample(sampled: datetime) -> None:
    Cluster.objects.update(is_reachable=False)
    assert ends(sampled) == [(90, 0.25)] * 2


def test_the_chart_of_a_cluster_without_recent_samples_ends_with_the_last(sampled: datetime) -> None:
    """Its devices cannot be measured, though the cluster answers."""
    Sample.objects.update(at=sampled - timedelta(seconds=200))
    assert ends(sampled) == [(200, 0.25)] * 2


def test_the_chart_of_utilisation_ends_where_the_card_stands(cast: Cast) -> None:
    """On a cluster without a meter only those devices are measured whose jobs speak."""
    now = timezone.now()
    quiet = make_node(Cluster.objects.create(name="quiet", engine="memory"), "gpu-1", gpus=24)
    Device.objects.update(utilization=0.0)
    quiet.devices.update(utilization=None)
    quiet.devices.filter(index=0).update(utilization=0.85)
    for name, mean in (("memory", 0.0), ("quiet", 0.85)):
        sample = {"minimum": mean, "maximum": mean, "total": mean, "at": now - timedelta(seconds=30)}
        Sample.objects.create(metric=GPU_UTILIZATION, by="cluster", subject=name, step_seconds=10, **sample)
    gpu, _memory = utilisation_points(now - timedelta(minutes=5), now)
    measured = Device.objects.exclude(utilization=None).values_list("utilization", flat=True)
    assert [round(value, 6) for _at, value in gpu] == [round(sum(measured) / len(measured), 6)]
