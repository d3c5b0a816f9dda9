"""The admin's pages of clusters: attach, what was found, edit, check again, detach; secrets are never shown."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from controlplane.actions.clusters import settle_check
from controlplane.clusters.credentials import decrypt
from controlplane.models import Cluster, Command, Device, Node, User
from tests.app.api.test_clusters import BAD, GOOD, KUBECONFIG, SECRET
from tests.builders import make_project
from tests.cast import Cast

Visit = Callable[[User | None], Client]
FORM = {"name": "prod", "reach": "kubeconfig", "kubeconfig": KUBECONFIG, "scheduler": "planner"}
WARNING = {
    "name": "storage",
    "outcome": "warning",
    "message": "No class.",
    "without_it": "Checkpoints are lost.",
}


def attach(client: Client, **fields: Any) -> Cluster:
    answer = client.post("/new/cluster", FORM | fields)
    assert (answer.status_code, answer["Location"]) == (302, "/clusters/prod")
    return Cluster.objects.get(name="prod")


def settle(cluster: Cluster, *checks: dict[str, str]) -> None:
    order = Command.objects.filter(cluster=cluster, state="pending").get()
    settle_check(order, checks, timezone.now())
    Command.objects.update(state="done")


def page(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


def test_a_cluster_is_attached_from_a_file_with_settings(cast: Cast, visit: Visit):
    client = visit(cast.root)
    sent = SimpleUploadedFile("config", KUBECONFIG.encode())
    cluster = attach(
        client, kubeconfig="", kubeconfig_file=sent, settings='work_size=5Gi\n\nspot_pools=["*"]\n'
    )
    assert decrypt(cluster.credentials) == {"kubeconfig": KUBECONFIG}
    assert cluster.settings == {"work_size": "5Gi", "spot_pools": ["*"]}
    shown = page(client, "/clusters/prod")
    assert "data-checking" in shown
    assert "The cluster is being checked before it is used" in shown
    settle(cluster, GOOD, WARNING)
    shown = page(client, "/clusters/prod")
    assert "data-checking" not in shown
    for text in ("Attached", "Warning", "Without it:", "Checkpoints are lost.", "work_size"):
        assert text in shown
    assert "one finding" in page(client, "/clusters")


def test_a_refused_cluster_says_so_and_is_edited_checked_and_detached(cast: Cast, visit: Visit):
    client = visit(cast.root)
    cluster = attach(client)
    settle(cluster, BAD)
    assert "The cluster is not used." in page(client, "/clusters/prod")
    assert "does not answer" in page(client, "/clusters/prod")
    assert "?cluster=prod" not in page(client, "/nodes")
    form = {"reach": "in_cluster", "scheduler": "kai", "settings": ""}
    assert client.post("/clusters/prod/edit", form).status_code == 302
    cluster.refresh_from_db()
    assert (decrypt(cluster.credentials), cluster.scheduler) == ({"in_cluster": True}, "kai")
    settle(cluster, GOOD)
    assert client.post("/clusters/prod/do/check")["Location"] == "/clusters/prod"
    assert "Its present settings stay in use until the check has succeeded." in page(client, "/clusters/prod")
    settle(cluster, BAD)
    assert "The cluster is used with its previous settings." in page(client, "/clusters/prod")
    assert client.post("/clusters/prod/do/detach")["Location"] == "/clusters"
    assert client.get("/clusters/prod").status_code == 404


def test_an_edit_without_a_kubeconfig_keeps_the_one_that_is_there(cast: Cast, visit: Visit):
    client = visit(cast.root)
    cluster = attach(client)
    settle(cluster, GOOD)
    assert (
        client.post("/clusters/prod/edit", {"reach": "kubeconfig", "scheduler": "planner"}).status_code == 302
    )
    assert not Command.objects.filter(state="pending").exists()
    client.post("/clusters/prod/edit", {"scheduler": "planner", "settings": "work_size=9Gi"})
    settle(cluster, GOOD)
    cluster.refresh_from_db()
    assert cluster.settings == {"work_size": "9Gi"}
    assert decrypt(cluster.credentials) == {"kubeconfig": KUBECONFIG.strip()}


def test_the_half_life_of_past_use_is_set_changed_and_given_back(cast: Cast, visit: Visit):
    client = visit(cast.root)
    cluster = attach(client, usage_half_life_hours="36")
    settle(cluster, GOOD)
    cluster.refresh_from_db()
    assert cluster.usage_half_life_hours == 36
    assert 'name="usage_half_life_hours" value="36"' in page(client, "/clusters/prod/edit")
    for sent, kept in (("0", 0), ("", None)):
        form = {"scheduler": "planner", "settings": "", "usage_half_life_hours": sent}
        assert client.post("/clusters/prod/edit", form).status_code == 302
        settle(cluster, GOOD)
        cluster.refresh_from_db()
        assert cluster.usage_half_life_hours == kept


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "Prod!"}, "lower-case letters"),
        ({"name": "memory"}, "There is a cluster named memory already."),
        ({"kubeconfig": ""}, "Give a kubeconfig"),
        ({"kubeconfig": "a: ["}, "The kubeconfig is not YAML"),
        ({"kubeconfig_file": SimpleUploadedFile("x", b"\xff\xfe")}, "The file is not text."),
        ({"kubeconfig_file": SimpleUploadedFile("x", b"x" * 300_000)}, "At most 262144 bytes."),
        ({"context": "moon"}, "has no context"),
        ({"settings": "work_size"}, "work_size is not KNOB=VALUE."),
        ({"settings": "work_sise=1Gi"}, "work_sise: There is no such setting"),
        ({"settings": "host_network=true"}, "host_network: Pod security forbids this"),
        ({"usage_half_life_hours": "soon"}, "This must be a whole number from 0 to 2160."),
        ({"usage_half_life_hours": "2161"}, "This must be from 0 to 2160."),
        ({"scheduler": "volcano"}, "The scheduler of a kubernetes cluster is one of"),
    ],
)
def test_what_is_wrong_is_said_at_its_field_and_the_secret_does_not_come_back(
    cast: Cast, visit: Visit, fields: dict[str, Any], told: str
):
    answer = visit(cast.root).post("/new/cluster", FORM | fields)
    text = answer.content.decode().replace("&#x27;", "'")
    assert answer.status_code == 400
    assert told in text
    assert SECRET not in text
    assert not Cluster.objects.filter(engine="kubernetes").exists()


def test_no_page_shows_the_credentials(cast: Cast, visit: Visit):
    client = visit(cast.root)
    settle(attach(client), GOOD)
    for path in ("/clusters", "/clusters/prod", "/clusters/prod/edit", "/new/cluster", "/nodes", "/"):
        assert SECRET not in page(client, path)


def test_projects_keep_a_cluster(cast: Cast, visit: Visit):
    client = visit(cast.root)
    cluster = attach(client)
    settle(cluster, GOOD)
    make_project("team-k", cluster=cluster)
    assert "Delete them first" in page(client, "/clusters/memory")
    assert "One project is on it. Delete it first:" in page(client, "/clusters/prod")
    assert client.post("/clusters/prod/do/detach", follow=True).redirect_chain == [("/clusters/prod", 302)]
    assert Cluster.objects.filter(name="prod", detached_at=None).exists()


def test_a_lost_node_says_why_and_can_be_declared_dead(cast: Cast, visit: Visit):
    client = visit(cast.root)
    Device.objects.filter(node__name="dgx1-1", index=7).update(is_foreign=True)
    Node.objects.filter(name="dgx1-1").update(extras={"rdma/hca": 4, "hugepages-2Mi": 1 << 30})
    assert "1024 MiB of hugepages-2Mi<br>4 rdma/hca" in page(client, "/nodes/dgx1-1")
    assert "used by others" in page(client, "/nodes/dgx1-1")
    assert "It is dead…" not in page(client, "/nodes/dgx1-1")
    Node.objects.filter(name="dgx1-1").update(is_ready=False, message="Kubelet stopped posting node status.")
    shown = page(client, "/nodes/dgx1-1")
    for text in ("Kubelet stopped posting", "It is dead…"):
        assert text in shown
    client.post("/nodes/dgx1-1/do/confirm-dead")
    assert Node.objects.get(name="dgx1-1").is_cordoned


def test_nodes_of_a_cluster_that_is_away_are_marked_and_can_be_declared_dead(cast: Cast, visit: Visit):
    client = visit(cast.root)
    Cluster.objects.filter(name="memory").update(is_reachable=False)
    for address in ("/nodes", "/nodes/dgx1-1", "/clusters/memory"):
        assert '<span class="badge bad">Not reachable</span>' in page(client, address)
        assert '<span class="badge good">Ready</span>' not in page(client, address)
    overview = page(client, "/")
    assert '<div class="under">not reachable</div>' in overview
    assert overview.count('<div class="node-row is-away"') == 2
    assert "Cluster memory does not answer" in page(client, "/nodes/dgx1-1")
    assert "It is dead…" in page(client, "/nodes/dgx1-1")


def test_the_top_bar_says_how_all_clusters_stand(cast: Cast, visit: Visit):
    client, ana = visit(cast.root), visit(cast.ana)

    def bar(seen: Client) -> str:
        return page(seen, "/jobs").partition("<summary")[2].partition("</details>")[0]

    assert "<strong>memory</strong>" in bar(client)
    settle(attach(client), GOOD)
    assert "<strong>2 clusters</strong>" in bar(ana)
    assert "badge" not in bar(ana)
    Cluster.objects.filter(name="prod").update(is_reachable=False)
    assert '<span class="badge bad">1 not reachable</span>' in bar(ana)
    assert 'href="/clusters/prod"' in bar(client)
    assert 'href="/nodes?cluster=prod"' in bar(ana)
    Cluster.objects.filter(name="memory").update(state="refused")
    assert '<span class="badge bad">2 not usable</span>' in bar(ana)
    Cluster.objects.filter(name="prod").update(detached_at=timezone.now())
    assert '<strong>memory</strong><span class="badge bad">refused</span>' in bar(ana)
