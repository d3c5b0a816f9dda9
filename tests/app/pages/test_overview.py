"""The first page is drawn from the live state; sentences and cells say what the rows say."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.live.state import read_overview
from controlplane.models import Cluster, Device, Event, Node, Sample, User
from controlplane.telemetry.metrics import GPU_UTILIZATION
from dashboards.reads.overview import cell, density, sentences
from dashboards.reads.series import utilisation_points
from tests.app.pages.conftest import Yard
from tests.builders import make_job, make_node
from tests.cast import Cast

Visit = Callable[[User | None], Client]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def state_of(**parts: Any) -> dict[str, dict[str, Any]]:
    totals = {"nodes": 2, "nodes_ready": 2, "gpus": 16}
    return {"totals": {"all": totals}, "projects": {}, "running": {}, "queued": {}, "nodes": {}} | parts


def device(index: int = 0, utilization: float | None = None, shares: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {
        "index": index,
        "model": "V100",
        "memory_mib": 32768,
        "utilization": utilization,
        "is_foreign": False,
        "shares": list(shares),
    }


def node(*devices: dict[str, Any], **flags: bool) -> dict[str, Any]:
    return {"devices": list(devices), "is_ready": True, "is_reachable": True, "is_cordoned": False} | flags


def share(job: str, project: str = "team-a", milli: int = 1000) -> dict[str, Any]:
    return {"job": job, "project": project, "milli_gpus": milli}


def test_the_page_says_what_the_rows_say(yard: Yard, visit: Visit):
    page = visit(yard.cast.ana).get("/").content.decode()
    assert f'href="/jobs/{yard.running.pk}"' in page
    assert f'href="/jobs/{yard.queued.pk}"' in page
    assert f'href="/jobs/{yard.finished.pk}"' not in page
    assert ">2</span>" in page  # nodes, and GPUs held
    assert "of 4 quota" in page
    assert page.count('class="index"') == 16


def test_what_is_not_known_has_no_unit(yard: Yard, visit: Visit):
    unit = '<span class="unit" id="utilisation-unit"{}>%</span>'
    Device.objects.update(utilization=None)
    assert unit.format(" hidden") in visit(yard.cast.ana).get("/").content.decode()
    Device.objects.update(utilization=0.0)
    assert unit.format("") in visit(yard.cast.ana).get("/").content.decode()


def test_an_empty_yard_says_how_to_fill_it(cast: Any, visit: Visit):
    Device.objects.all().delete()
    Node.objects.all().delete()
    page = visit(cast.root).get("/").content.decode()
    assert "No node has reported yet" in page
    assert "yard submit hyper1" in page
    assert "Nobody waits." in page


def test_a_stranger_reads_nothing_that_the_figures_contradict(yard: Yard, visit: Visit):
    page = visit(yard.cast.chi).get("/").content.decode()
    assert "No job of your projects runs." in page
    assert "Nothing runs." not in page.split('id="words"')[0]
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


IDLE = {
    "nodes": {"n": node(device(0, 0.0, (share("j"),)), device(1, 0.9, (share("k"),)))},
    "running": {"j": {"name": "sleeper", "kind": "train"}, "k": {"name": "busy", "kind": "train"}},
}
UNMEASURED = {
    "nodes": {"n": node(device(0, None, (share("j"),)), device(1))},
    "running": {"j": {"name": "unwatched", "kind": "train"}},
}
OVER = {"a": {"allocated_gpus": 8, "gpu_quota": 4}, "b": {"allocated_gpus": 1, "gpu_quota": 2}}
BUSY = {"n": node(device(0, 0.9), device(1, 0.7), device(2, 0.0))}
KINDS = {
    str(number): {"name": "x", "kind": kind} for number, kind in enumerate(("train", "interactive", "train"))
}
OTHERS = {
    "all": {"nodes": 1, "nodes_ready": 1, "jobs_running": 14, "jobs_queued": 2, "gpus_idle_allocated": 2}
}  # jobs that the reader does not see
CORDONED = {
    "n": node(is_cordoned=True),
    "gone": node(is_cordoned=True, is_ready=False),
    "away": node(is_cordoned=True, is_reachable=False),
}
WAITING = {"q": {"queued_at": NOW - timedelta(minutes=4, seconds=5)}}


@pytest.mark.parametrize(
    ("parts", "name", "expected"),
    [
        ({}, "nodes", "all ready"),
        ({"totals": {"all": {"nodes": 3, "nodes_ready": 1}}}, "nodes", "2 not ready"),
        ({"nodes": CORDONED}, "nodes", "1 cordoned"),
        (
            {"nodes": CORDONED, "totals": {"all": {"nodes": 3, "nodes_ready": 1}}},
            "nodes",
            "2 not ready, 1 cordoned",
        ),
        ({"nodes": {"n": node(device(0), device(1))}}, "gpus", "V100 32\u00a0GB"),
        ({}, "gpus_allocated", "all within quota"),
        ({"projects": OVER}, "gpus_allocated", "4 over quota"),
        ({}, "gpus_idle_allocated", "none"),
        (IDLE, "gpus_idle_allocated", "sleeper"),
        ({"nodes": BUSY}, "gpu_utilization", "80\u00a0% of busy devices"),
        ({}, "gpu_utilization", "no device is busy"),
        ({"nodes": UNMEASURED["nodes"]}, "gpu_utilization", "nothing measures it"),
        (UNMEASURED, "gpus_idle_allocated", "none"),
        ({"running": KINDS}, "jobs_running", "2 train, 1 interactive"),
        ({}, "jobs_running", "nothing runs"),
        ({"queued": WAITING}, "jobs_queued", "longest 4\u00a0m 5\u00a0s"),
        ({}, "jobs_queued", "nobody waits"),
        ({"totals": OTHERS}, "jobs_running", "none in your projects"),
        ({"totals": OTHERS}, "jobs_queued", "none in your projects"),
        ({"totals": OTHERS}, "gpus_idle_allocated", "none in your projects"),
        ({"totals": OTHERS, "queued": WAITING}, "jobs_queued", "1 in your projects"),
    ],
)
def test_sentences(parts: dict[str, Any], name: str, expected: str):
    assert sentences(state_of(**parts), NOW)[name] == expected


def test_cells_show_shares_side_by_side_filled_to_their_use():
    running = {"a": {"name": "half", "gpu_utilization": 0.5}, "b": {"name": "rest", "gpu_utilization": None}}
    projects = {"team-a": {"palette_index": 3}}
    shares = (share("a", milli=500), share("b", "team-x", 250))
    drawn = cell(device(4, 0.8, shares), state_of(running=running, projects=projects))
    first, second = drawn["parts"]
    assert (first["x"], first["width"], first["y"], first["height"], first["palette_index"]) == (
        0,
        50,
        50,
        50,
        3,
    )
    assert (second["x"], second["width"], second["height"], second["palette_index"]) == (50, 25, 80, 0)
    assert drawn["title"] == "GPU 4: half (0.5), rest (0.25), 80\u00a0%"
    assert drawn["is_idle"] is False


def test_a_free_device_is_not_idle_and_a_held_one_at_rest_is():
    assert cell(device(1), state_of())["is_idle"] is False
    assert cell(device(1), state_of())["title"] == "GPU 1: free"
    assert cell(device(1, 0.0, (share("a"),)), state_of())["is_idle"] is True


@pytest.mark.parametrize(
    ("nodes", "style"), [(2, ""), (8, ""), (9, "nodes-many"), (40, "nodes-many"), (41, "nodes-heat")]
)
def test_cells_shrink_with_the_cluster(nodes: int, style: str):
    assert density(nodes) == style


def test_the_page_reads_the_state_of_the_live_topic(yard: Yard, visit: Visit):
    state = read_overview(Event.objects.last_seq()).seen_by(None)
    page = visit(yard.cast.root).get("/").content.decode()
    for record in [*state["running"].values(), *state["queued"].values()]:
        assert record["name"] in page
        assert record["message"] in page if "message" in record else True
    words = json.loads(page.split('<script id="words" type="application/json">')[1].split("</script>")[0])
    assert words["nobody_waits"] == "nobody waits"


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
