"""The page of cache locations: what each has and holds, and what admins change of it."""

from pathlib import Path

import pytest
from django.test import Client

from controlplane.access import SYSTEM
from controlplane.models import Cluster, NodePool
from datasets.actions.caches import cache_version, location_for
from datasets.models import Cache, CacheLocation
from tests.cast import Cast
from tests.datasets import make_dataset, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes")]
FAST = {"name": "fast", "cluster": "memory", "node_labels": "disk=nvme zone=b", "unused_days": "2"}


@pytest.fixture
def location(cast: Cast, own_lakes: Path) -> CacheLocation:
    location = location_for(cast.project.cluster)
    cache = cache_version(make_version(make_dataset(cast.project), {"a": "one"}), location, actor=SYSTEM)
    Cache.objects.filter(pk=cache.pk).update(state=Cache.FILLING, reserved_bytes=3_000_000, hits=7)
    CacheLocation.objects.filter(pk=location.pk).update(used_bytes=2_000_000, room_bytes=10_000_000)
    return location


def signed_in(cast: Cast, name: str) -> Client:
    client = Client()
    client.force_login(getattr(cast, name))
    return client


def text_of(client: Client, address: str) -> str:
    return client.get(address).content.decode().replace("\xa0", " ")


def test_the_list_says_what_is_committed_and_what_more_fits(cast: Cast, location: CacheLocation):
    page = text_of(signed_in(cast, "vera"), "/cache-locations")
    for words in ("memory", "5.0 MB", "/10.0 MB", "1 day unused", "all that no other location has"):
        assert words in page
    # The link to its form is for admins.
    assert "/cache-locations/memory/edit" not in page
    assert "/cache-locations/memory/edit" in text_of(signed_in(cast, "root"), "/cache-locations")


@pytest.mark.parametrize("sort", ["caches", "-hits", "-room", "nodes"])
def test_the_list_is_sorted_by_its_columns(cast: Cast, location: CacheLocation, sort: str):
    assert signed_in(cast, "root").get(f"/cache-locations?sort={sort}").status_code == 200


def test_a_volume_of_a_project_is_shown_to_its_members_alone(cast: Cast, location: CacheLocation):
    CacheLocation.objects.create(
        cluster=location.cluster, project=cast.project, name="memory.team-a", room_bytes=1
    )
    assert "volume of team-a" in text_of(signed_in(cast, "ben"), "/cache-locations")
    assert "memory.team-a" not in text_of(signed_in(cast, "chi"), "/cache-locations")


def test_an_admin_changes_room_and_age_limit(cast: Cast, location: CacheLocation):
    root, address = signed_in(cast, "root"), "/cache-locations/memory/edit"
    assert 'value="10000000"' in text_of(root, address)
    saved = root.post(address, {"room_bytes": "500Gi", "unused_days": "7"})
    assert saved.status_code == 302, saved.content
    location.refresh_from_db()
    assert (location.room_bytes, location.unused_days) == (500 << 30, 7)
    assert 'value="500Gi"' in text_of(root, address)
    root.post(address, {"room_bytes": "", "unused_days": "7"})
    location.refresh_from_db()
    assert location.room_bytes is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("room_bytes", "much"),
        ("room_bytes", "-1"),
        ("room_bytes", "1e300"),
        ("unused_days", "0"),
        ("unused_days", "9" * 30),
    ],
)
def test_what_is_no_size_or_number_of_days_is_refused(
    cast: Cast, location: CacheLocation, field: str, value: str
):
    fields = {"room_bytes": "", "unused_days": "1", field: value}
    assert signed_in(cast, "root").post("/cache-locations/memory/edit", fields).status_code == 400


@pytest.mark.parametrize("room", [0, 1000])
def test_a_location_without_room_can_be_edited(cast: Cast, location: CacheLocation, room: int):
    CacheLocation.objects.filter(pk=location.pk).update(room_bytes=room)
    root, address = signed_in(cast, "root"), "/cache-locations/memory/edit"
    assert f'value="{room}"' in text_of(root, address)
    assert root.post(address, {"room_bytes": str(room), "unused_days": "9"}).status_code == 302
    location.refresh_from_db()
    assert (location.room_bytes, location.unused_days) == (room, 9)


def test_the_list_is_sorted_by_what_is_committed(cast: Cast, location: CacheLocation):
    # 4 MB used, against 2 MB used and 3 MB reserved by a fill.
    CacheLocation.objects.create(
        cluster=location.cluster, name="fuller", node_pools=["a"], used_bytes=4_000_000, is_default=False
    )
    page = text_of(signed_in(cast, "vera"), "/cache-locations?sort=-room")
    assert page.index("<b>memory</b>") < page.index("<b>fuller</b>")


def test_an_admin_creates_and_deletes_a_location_of_some_nodes(cast: Cast, location: CacheLocation):
    root = signed_in(cast, "root")
    assert root.post("/new/cache-location", FAST).status_code == 302
    made = CacheLocation.objects.get(name="fast")
    assert (made.node_labels, made.unused_days) == ({"disk": "nvme", "zone": "b"}, 2)
    assert "disk=nvme zone=b" in text_of(root, "/cache-locations/fast/edit")
    assert "disk=nvme, zone=b" in text_of(root, "/cache-locations")
    assert "Delete fast?" in text_of(root, "/cache-locations/fast/delete")
    assert root.post("/cache-locations/fast/delete").status_code == 302
    assert not CacheLocation.objects.filter(name="fast").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node_labels": ""}, "Name the node pools"),
        ({"node_labels": "disk"}, "Write labels as NAME=VALUE."),
        ({"node_labels": "zone==b"}, "Write labels as NAME=VALUE."),
        ({"node_labels": "-zone=b"}, "must be"),
        ({"node_labels": "zone=" + "b" * 64}, "At most 63 bytes."),
        ({"node_pools": "far"}, "memory has no node pool far; its pools are: default."),
        ({"directory": "relative"}, "Give an absolute path"),
        ({"name": "memory"}, "choose another name"),
    ],
    ids=["no nodes", "no pair", "two signs", "bad name", "long", "of another cluster", "relative", "in use"],
)
def test_a_location_that_cannot_be_is_refused_with_the_reason(
    cast: Cast, location: CacheLocation, change: dict[str, str], words: str
):
    NodePool.objects.create(cluster=Cluster.objects.create(name="other", engine="memory"), name="far")
    answer = signed_in(cast, "root").post("/new/cache-location", FAST | change)
    assert answer.status_code == 400
    assert words in answer.content.decode()


def test_changing_locations_is_for_admins(cast: Cast, location: CacheLocation):
    ana = signed_in(cast, "ana")
    for address in ("/new/cache-location", "/cache-locations/memory/edit", "/cache-locations/memory/delete"):
        assert ana.get(address).status_code == 403
        assert ana.post(address, {}).status_code == 403
