"""ETags of data: every object has one, and a change or deletion with an outdated one is refused."""

import pytest

from controlplane.access import SYSTEM
from datasets.actions.caches import cache_version, location_for
from datasets.models import (
    Artifact,
    Cache,
    CacheLocation,
    CodeImport,
    DatasetRegistration,
    DatasetVersion,
    Snapshot,
)
from tests.artifacts import make_artifact
from tests.code_trees import make_tree
from tests.datasets import make_dataset, make_subset, make_version
from tests.volumes import make_snapshot, make_volume

pytestmark = pytest.mark.django_db


@pytest.fixture
def paths(own_lakes, cast, job) -> dict[str, str]:
    """Fixture: the address of one object of each kind."""
    dataset = make_dataset(cast.project)
    version = make_version(dataset, {"a.txt": "alpha"})
    make_subset(version, "some", "a*")
    location = location_for(cast.project.cluster)
    # Otherwise its free bytes are those of a disk on which others write.
    CacheLocation.objects.filter(pk=location.pk).update(room_bytes=1 << 20)
    volume = make_volume(cast.project, "data")
    imported = CodeImport.objects.create(project=cast.project, url="https://git.example/x", ref="main")
    registered = DatasetRegistration.objects.create(dataset=dataset, path="/data")
    return {
        "artifact": f"artifacts/{make_artifact(job, 'model', {'w': '1'}).pk}",
        "cache": f"caches/{cache_version(version, location, actor=SYSTEM).pk}",
        "code": f"projects/team-a/code/{make_tree(cast.project, {'a.py': b'pass'})}",
        "code_import": f"projects/team-a/code-imports/{imported.pk}",
        "dataset": f"datasets/{dataset.pk}",
        "location": f"cache-locations/{location.name}",
        "named": f"datasets/{dataset.pk}/versions/latest",
        "registration": f"datasets/{dataset.pk}/registrations/{registered.pk}",
        "snapshot": f"snapshots/{make_snapshot(volume).pk}",
        "subset": f"versions/{version.pk}/subsets/some",
        "version": f"versions/{version.pk}",
        "volume": f"volumes/{volume.pk}",
    }


def test_every_object_has_an_etag(api, paths):
    for kind, path in paths.items():
        found = api("ben").get(path)
        assert (found.status, "ETag" in found.headers) == (200, True), kind
        assert api("ben").get(path, if_none_match=found.headers["ETag"]).status == 304, kind


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("artifact", Artifact),
        ("cache", Cache),
        ("snapshot", Snapshot),
        ("subset", DatasetVersion.objects.exclude(subset="")),
    ],
)
def test_a_deletion_with_an_outdated_etag_is_refused(api, paths, kind, model):
    rows = getattr(model, "objects", model)
    before = list(rows.values())
    refused = api("ana").delete(paths[kind], if_match='"outdated"')
    assert (refused.status, refused.code) == (412, "changed_meanwhile")
    assert list(rows.values()) == before
    tag = api("ana").get(paths[kind]).headers["ETag"]
    assert api("ana").delete(paths[kind], if_match=tag).status == 200
    assert list(rows.values()) != before


def test_a_location_is_guarded(api, paths):
    root, path = api("root"), paths["location"]
    tag = root.get(path).headers["ETag"]
    changed = root.patch(path, {"unused_days": 3}, if_match=tag)
    assert changed.status == 200
    assert root.patch(path, {"unused_days": 4}, if_match=tag).status == 412
    assert root.delete(path, if_match=tag).status == 412
    assert root.patch(path, {"unused_days": 4}, if_match=changed.headers["ETag"]).status == 200
    assert root.get(path).body["unused_days"] == 4


def test_a_schedule_that_changed_meanwhile_is_not_overwritten(api, paths):
    ana, path = api("ana"), paths["volume"]
    assert ana.patch(path, {"keep_last": 3}).status == 200
    tag = ana.get(path).headers["ETag"]
    assert ana.patch(path, {"snapshot_minutes": 60}, if_match=tag).status == 200
    assert ana.patch(path, {"snapshot_minutes": None}, if_match=tag).status == 412
