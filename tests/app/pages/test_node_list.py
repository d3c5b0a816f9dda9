"""The list of nodes: problems first, filters, and what jobs reserve beside what there is."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.models import Cluster, Node, User
from jobs.models import Job, Pod
from tests.app.pages.conftest import Yard
from tests.builders import make_job, make_node

Visit = Callable[[User | None], Client]


@pytest.fixture
def site(yard: Yard) -> Yard:
    """A node in each condition; the running job is on dgx1-1, which is ready."""
    stopping = make_job(yard.cast.project, "leaving", yard.cast.ana, gpus=0)
    yard.plant.settle()
    away = Cluster.objects.create(name="away", engine="memory", is_reachable=False)
    make_node(away, "z-away", gpus=1)
    for name, changes in (
        ("y-not-ready", {"is_ready": False}),
        ("x-interrupted", {"is_cordoned": True, "interruption_at": timezone.now()}),
        ("x-draining", {"is_cordoned": True}),
        ("w-cordoned", {"is_cordoned": True}),
        ("v-closed", {"is_closed": True}),
    ):
        make_node(yard.cast.project.cluster, name, gpus=2)
        Node.objects.filter(name=name).update(**changes)
    Pod.objects.filter(job=stopping).update(node=Node.objects.get(name="x-draining"))
    Job.objects.filter(pk=stopping.pk).update(state="stopping")
    return yard


def rows(client: Client, query: str = "") -> list[dict[str, Any]]:
    return [row for row, _cells in client.get(f"/nodes{query}").context["page"].table.rows]


def names(client: Client, query: str = "") -> list[str]:
    return [row["name"] for row in rows(client, query)]


def test_problems_come_first(site: Yard, visit: Visit):
    client = visit(site.cast.ana)
    order = [
        "z-away",
        "y-not-ready",
        "x-interrupted",
        "x-draining",
        "v-closed",
        "w-cordoned",
        "dgx1-1",
        "dgx1-2",
    ]
    assert names(client) == order
    page = client.get("/nodes")
    assert page.context["page"].summary == (
        "8 nodes, 1 not reachable, 1 not ready, 1 interrupted, 1 draining, 2 cordoned"
    )
    assert "1 pod left" in page.content.decode()
    assert names(client, "?sort=-state") == [*order[6:], "v-closed", "w-cordoned", *order[3::-1]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (
            "?state=problems",
            ["z-away", "y-not-ready", "x-interrupted", "x-draining", "v-closed", "w-cordoned"],
        ),
        ("?state=away", ["z-away"]),
        ("?state=not-ready", ["y-not-ready"]),
        ("?state=interrupted", ["x-interrupted"]),
        ("?state=draining", ["x-draining"]),
        ("?state=cordoned", ["v-closed", "w-cordoned"]),
        ("?state=ready", ["dgx1-1", "dgx1-2"]),
        ("?state=nonsense", []),
        ("?cluster=away", ["z-away"]),
        ("?pool=default", ["dgx1-1", "dgx1-2"]),
        ("?q=DGX1-2", ["dgx1-2"]),
    ],
)
def test_filters(site: Yard, visit: Visit, query: str, found: list[str]):
    assert names(visit(site.cast.ana), query) == found


def test_what_jobs_reserve_stands_beside_what_there_is(site: Yard, visit: Visit):
    Pod.objects.update(milli_cpus=0, memory_mib=0)
    Pod.objects.filter(job=site.running).update(milli_cpus=12_500, memory_mib=65_536)
    client = visit(site.cast.ana)
    row = next(row for row in rows(client) if row["name"] == "dgx1-1")
    assert (row["reserved_cpus"], row["reserved_memory_mib"]) == (12.5, 65_536)
    page = client.get("/nodes").content.decode()
    assert '<b>12.5</b><span class="second">/80</span>' in page
    assert '<b>64\N{NO-BREAK SPACE}GiB</b><span class="second">/512\N{NO-BREAK SPACE}GiB</span>' in page
    for key in ("cpus", "memory", "gpus"):
        assert names(client, f"?sort=-{key}")[0] == "dgx1-1", key


@pytest.mark.parametrize("sort", ["name", "state", "gpus", "use", "cpus", "memory", "pool", "cluster"])
def test_every_column_sorts(site: Yard, visit: Visit, sort: str):
    client = visit(site.cast.ana)
    assert (
        sorted(names(client, f"?sort={sort}"))
        == sorted(names(client, f"?sort=-{sort}"))
        == sorted(names(client))
    )


@pytest.mark.parametrize(
    ("path", "sorts"),
    [
        ("/projects", ["name", "gpus", "quota", "fair", "limit", "running", "queued", "cluster"]),
        ("/users", ["name", "mail", "state", "projects", "jobs", "signed-in", "since"]),
        ("/tokens", ["name", "prefix", "may", "made", "used", "expires"]),
        ("/clusters", ["name", "state", "engine", "scheduler", "nodes", "gpus", "checked"]),
    ],
)
def test_other_lists_sort_by_every_column_too(site: Yard, visit: Visit, path: str, sorts: list[str]):
    client = visit(site.cast.root)
    for sort in sorts:
        for direction in ("", "-"):
            page = client.get(f"{path}?sort={direction}{sort}").context["page"]
            assert page.sort in ("", f"{direction}{sort}")
            assert len(page.table.rows) == len(client.get(path).context["page"].table.rows), sort


def test_the_clusters_page_shows_its_nodes_as_the_list_does(site: Yard, visit: Visit):
    page = visit(site.cast.root).get("/clusters/memory").content.decode()
    assert page.index("y-not-ready") < page.index("w-cordoned") < page.index("dgx1-1")
    assert "CPUs reserved" in page


def test_an_interruption_notice_is_given_on_the_page(site: Yard, visit: Visit):
    client, path = visit(site.cast.root), "/nodes/dgx1-1/do/interrupt"
    for wrong in ("", "soon", "0s", "2d"):
        assert client.post(path, {"in": wrong}).status_code == 400, wrong
    assert Node.objects.get(name="dgx1-1").interruption_at is None
    page = client.post(path, {"in": "2m"}, follow=True).content.decode()
    assert "Jobs leave it before its provider withdraws it." in page
    assert "Elastic jobs on it shrink" in page
    assert names(client, "?state=interrupted") == ["dgx1-1", "x-interrupted"]
    assert (
        "Elastic jobs on it shrink"
        not in client.post("/nodes/dgx1-1/do/uncordon", follow=True).content.decode()
    )
