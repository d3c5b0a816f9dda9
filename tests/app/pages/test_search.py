"""The command palette: every page of the navigation, and objects by name, as far as the actor may see them."""

from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from controlplane.models import User
from tests.builders import make_job
from tests.cast import Cast
from tests.datasets import make_dataset
from tests.volumes import make_volume

Visit = Callable[[User | None], Client]


def found(client: Client, text: str) -> list[tuple[str, str]]:
    return [(one["label"], one["kind"]) for one in client.get(f"/search.json?q={text}").json()["results"]]


def test_pages_of_every_app_are_found(cast: Cast, visit: Visit):
    assert ("Volumes", "page") in found(visit(cast.ana), "vol")
    assert ("Cache locations", "page") in found(visit(cast.ana), "cache")
    assert ("Clusters", "page") in found(visit(cast.root), "clus")
    assert found(visit(cast.ana), "clus") == []


def test_objects_are_found_by_name(cast: Cast, visit: Visit):
    make_job(cast.project, name="lanes-1")
    make_dataset(cast.project, "lanes-raw")
    make_volume(cast.project, "lanes-out")
    assert found(visit(cast.ana), "lanes") == [
        ("lanes-1", "team-a · queued"),
        ("lanes-raw", "team-a · dataset"),
        ("lanes-out", "team-a · volume"),
    ]
    assert found(visit(cast.chi), "lanes") == []
    assert ("ana", "user") in found(visit(cast.root), "ana")
    assert ("ana", "user") not in found(visit(cast.ben), "ana")


def test_a_detached_cluster_is_not_found(cast: Cast, visit: Visit):
    """It has no page any more, and another one may have its name."""
    cluster = cast.project.cluster
    assert (cluster.name, "cluster") in found(visit(cast.root), cluster.name)
    type(cluster).objects.filter(pk=cluster.pk).update(detached_at=timezone.now())
    assert (cluster.name, "cluster") not in found(visit(cast.root), cluster.name)
