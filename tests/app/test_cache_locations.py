"""Several cache locations in one cluster: jobs start where their data is, or it is brought to where they fit."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict, Invalid
from controlplane.actions.nodes import delete_pool
from controlplane.models import Cluster, Command, Node, NodePool
from datasets.actions.cache_locations import create_location, delete_location, edit_location
from datasets.actions.cache_upkeep import keep_caches
from datasets.actions.caches import cache_version, clear_cache, location_for
from datasets.actions.job_data import follow_room
from datasets.models import Cache, CacheLocation, Dataset, DatasetUse, DatasetVersion
from datasets.queries.caches import directory_of, location_rows, location_shapes
from datasets.queries.job_data import dataset_mounts, observe_data
from jobs.actions import submit_job
from jobs.models import Job
from tests.app.cached import work
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.loop.plant import Plant


@pytest.fixture
def plant(plant: Plant) -> Plant:
    """Two nodes of eight GPUs, the second in the pool `west`; no node is in the pools `more` and `north`."""
    pool, *_ = [
        NodePool.objects.create(cluster=plant.cluster, name=name) for name in ("west", "more", "north")
    ]
    Node.objects.filter(name=sorted(Node.objects.values_list("name", flat=True))[1]).update(pool=pool)
    return plant


@pytest.fixture
def west(plant: Plant) -> CacheLocation:
    return create_location(plant.cluster, {"name": "west", "node_pools": ["west"]}, actor=SYSTEM)


@pytest.fixture
def xray(people: Cast) -> Dataset:
    dataset = make_dataset(people.project)
    make_version(dataset, {"a": "one"})
    return dataset


def submit(cast: Cast, name: str, gpus: int = 8, **more: Any) -> Job:
    mounts = [{"dataset": "xray", "mount_path": "/data", "cached": True}]
    body = {"name": name, "kind": "train", "image": "quickstart", "gpus": gpus, "datasets": mounts, **more}
    return submit_job(cast.project, body, actor=cast.actor("ana"))


def pool_of(job: Job) -> set[str]:
    return set(job.pods.values_list("node__pool__name", flat=True))


def test_jobs_start_where_their_data_is_and_read_it_there(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    cache_version(xray.versions.get(), west, actor=SYSTEM)
    work()
    job = submit(people, "job", gpus=1)
    assert DatasetUse.objects.get().location == west
    plant.settle()
    job.refresh_from_db()
    assert (job.state, pool_of(job)) == ("running", {"west"})
    assert job.message.endswith("Placed where xray@1 is cached: west.")
    [[(source, *others)]] = dataset_mounts(job, [job.pods.get().node.name]).values()
    assert Path(source).is_relative_to(directory_of(west))
    assert (Path(source) / "a").read_text() == "one"
    [order] = Command.objects.filter(kind="start_pod")
    assert order.payload["mounts"] == [[source, *others]]
    assert [cache.location for cache in Cache.objects.all()] == [west]


def test_where_only_another_location_has_room_the_data_is_brought_there_once(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    cache_version(xray.versions.get(), west, actor=SYSTEM)
    work()
    first, second = submit(people, "first"), submit(people, "second")
    plant.settle()
    second.refresh_from_db()
    assert (second.state, second.reason) == ("queued", "waiting_for_data")
    assert "where it has room" in second.message
    for _ in range(2):
        follow_room(plant.clock())
    default = location_for(plant.cluster)
    assert set(Cache.objects.values_list("location", "state")) == {(west.pk, "ready"), (default.pk, "queued")}
    work()
    plant.settle()
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, pool_of(first)) == ("running", {"west"})
    assert (second.state, pool_of(second)) == ("running", {"default"})


def test_the_end_of_each_copy_is_known_by_its_location(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    create_location(plant.cluster, {"name": "north", "node_pools": ["north"]}, actor=SYSTEM)
    cache_version(xray.versions.get(), west, actor=SYSTEM)
    work()
    make_version(make_dataset(people.project, "atlas"), {"b": "b"})
    pair = [{"dataset": name, "mount_path": f"/{name}"} for name in ("xray", "atlas")]
    job = submit(people, "job", datasets=pair)
    filling = {"state": Cache.FILLING, "bytes_done": 0, "bytes_per_second": 1}
    DatasetVersion.objects.filter(dataset__name="atlas").update(size_bytes=600)
    Cache.objects.filter(version__dataset__name="atlas").update(**filling)
    data = observe_data(plant.cluster).of(str(job.pk))
    assert (data.is_waiting, data.copies) == (True, (("west", 600),))
    cache_version(xray.versions.get(), location_for(plant.cluster), actor=SYSTEM)
    default = cache_version(
        DatasetVersion.objects.get(dataset__name="atlas"), location_for(plant.cluster), actor=SYSTEM
    )
    Cache.objects.filter(location=default.location).update(**filling)
    # The last of its datasets counts; one whose copy waits has no known end.
    assert observe_data(plant.cluster).of(str(job.pk)).copies == ((default.location.name, 600), ("west", 600))
    Cache.objects.filter(pk=default.pk).update(message="The disk is full.")
    assert observe_data(plant.cluster).of(str(job.pk)).copies == (("west", 600),)


def test_a_new_version_is_brought_to_where_its_job_has_room(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    body = {"name": "other", "kind": "train", "image": "quickstart", "gpus": 8, "node_pool": "default"}
    submit_job(people.project, body, actor=people.actor("ana"))
    plant.settle()
    job = submit(people, "job")
    assert Cache.objects.get().location == west
    work()
    plant.settle()
    job.refresh_from_db()
    assert (job.state, pool_of(job)) == ("running", {"west"})


def test_data_goes_past_a_location_that_is_too_small_for_it(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    CacheLocation.objects.filter(is_default=True).update(room_bytes=2)
    submit(people, "first")
    assert DatasetUse.objects.get().location == west
    CacheLocation.objects.update(room_bytes=2)
    submit(people, "second")
    work()
    assert set(Cache.objects.values_list("state", "reason")) == {("failed", "no_room")}


def test_data_leaves_a_location_where_its_fill_failed_for_one_that_has_room(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    pair = [{"dataset": name, "mount_path": f"/{name}"} for name in ("xray", "atlas")]
    make_version(make_dataset(people.project, "atlas"), {"b": "b"})
    job = submit(people, "job", datasets=pair)
    [first] = {use.location for use in DatasetUse.objects.all()}
    assert first is not None
    CacheLocation.objects.filter(pk=first.pk).update(room_bytes=2)
    work()
    assert Cache.objects.filter(location=first, state=Cache.FAILED).exists()
    for _ in range(2):
        follow_room(plant.clock())
    [second] = {use.location for use in DatasetUse.objects.all()}
    assert second != first
    work()
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"


def test_data_that_fits_nowhere_is_not_moved_to_and_fro(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    location_for(plant.cluster)
    submit(people, "job")
    CacheLocation.objects.update(room_bytes=2)
    for _ in range(3):
        work()
        follow_room(plant.clock())
    assert Cache.objects.get().state == Cache.FAILED


def test_a_job_of_a_pool_whose_location_has_no_room_says_so_though_its_data_is_elsewhere(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    cache_version(xray.versions.get(), location_for(plant.cluster), actor=SYSTEM)
    CacheLocation.objects.filter(pk=west.pk).update(room_bytes=2)
    work()
    job = submit(people, "job", gpus=1, node_pool="west")
    work()
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("queued", "waiting_for_data")
    assert "could not be brought to the cluster: west has room for 2 B more" in job.message


def test_jobs_whose_data_is_on_its_way_cost_no_query_each(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset, django_assert_num_queries: Any
):
    jobs = [submit(people, f"job{number}") for number in range(5)]
    details = {"fill_at": DatasetUse.objects.first().location.name}
    for job in jobs:
        Job.objects.filter(pk=job.pk).update(reason="waiting_for_data", details=details)
    with django_assert_num_queries(4):
        follow_room(plant.clock())


def test_a_cache_that_a_job_may_use_stays_and_is_not_brought_to_other_locations(
    people: Cast, plant: Plant, west: CacheLocation, xray: Dataset
):
    cache = cache_version(xray.versions.get(), west, actor=SYSTEM)
    work()
    submit(people, "job")
    with pytest.raises(Conflict, match="used by job job"):
        clear_cache(Cache.objects.get(pk=cache.pk), actor=SYSTEM)
    keep_caches(plant.clock())
    assert Cache.objects.count() == 1
    with pytest.raises(
        Conflict,
        match=r"still has caches: 1\. Remove them first: yard dataset uncache NAME@VERSION --location ",
    ):
        delete_location(west, actor=SYSTEM)


def test_locations_are_refused_that_could_harm_each_other(plant: Plant, west: CacheLocation, tmp_path: Path):
    def code(**values: Any) -> str:
        with pytest.raises(Invalid) as refused:
            create_location(plant.cluster, {"name": "more", **values}, actor=SYSTEM)
        [error] = refused.value.errors
        return error.code

    assert code() == "required"
    below = str(directory_of(west) / "more")
    assert code(node_pools=["more"], directory=below) == "directory_in_use"
    assert code(node_pools=["more"], directory=str(directory_of(west))) == "directory_in_use"
    assert code(node_pools=["more"], directory="more") == "not_an_absolute_path"
    with pytest.raises(Conflict, match="already"):
        create_location(plant.cluster, {"name": "west", "node_pools": ["more"]}, actor=SYSTEM)
    with pytest.raises(Invalid, match="serves all nodes that no other"):
        edit_location(location_for(plant.cluster), {"node_pools": ["west"]}, actor=SYSTEM)
    with pytest.raises(Invalid, match="Name the node pools"):
        edit_location(west, {"node_pools": []}, actor=SYSTEM)
    with pytest.raises(Conflict, match="cannot be deleted"):
        delete_location(location_for(plant.cluster), actor=SYSTEM)
    delete_location(west, actor=SYSTEM)
    assert CacheLocation.objects.get().is_default


def test_a_node_pool_that_a_location_names_is_not_deleted(plant: Plant, west: CacheLocation):
    pool = NodePool.objects.get(name="north")
    edit_location(west, {"node_pools": ["west", "north"]}, actor=SYSTEM)
    with pytest.raises(Conflict, match=r"Cache locations name north \(west\); take it out") as refused:
        delete_pool(pool, actor=SYSTEM)
    assert refused.value.code == "node_pool_in_use"
    edit_location(west, {"node_pools": ["west"]}, actor=SYSTEM)
    delete_pool(pool, actor=SYSTEM)
    assert not NodePool.objects.filter(name="north").exists()


def test_a_directory_that_may_not_be_looked_into_is_refused_and_hides_no_location(
    plant: Plant, west: CacheLocation, monkeypatch: pytest.MonkeyPatch
):
    look = Path.exists

    def exists(path: Path) -> bool:
        if path.is_relative_to("/closed/in"):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path)

    # root, which tests may run as, looks into everything
    monkeypatch.setattr(Path, "exists", exists)
    values = {"name": "more", "node_pools": ["more"], "directory": "/closed/in"}
    with pytest.raises(Invalid, match="/closed/in: Permission denied") as refused:
        create_location(plant.cluster, values, actor=SYSTEM)
    assert [(error.pointer, error.code) for error in refused.value.errors] == [("/directory", "not_readable")]
    CacheLocation.objects.filter(pk=west.pk).update(directory="/closed/in")
    shapes = location_shapes(location_rows(CacheLocation.objects.order_by("name")))
    assert [shape["name"] for shape in shapes if shape["free_bytes"] == 0] == ["west"]
    assert len(shapes) == 2


def test_a_cluster_named_as_a_location_of_another_has_a_default_location(plant: Plant, people: Cast):
    create_location(plant.cluster, {"name": "fast", "node_pools": ["west"]}, actor=SYSTEM)
    fast = Cluster.objects.create(name="fast", engine=plant.cluster.engine)
    first = location_for(fast)
    assert (first.name, first.cluster, first.is_default) == (f"fast-{fast.pk}", fast, True)
    assert location_for(fast) == first


def test_nothing_else_in_the_directory_of_a_location_is_touched(
    people: Cast, plant: Plant, xray: Dataset, tmp_path: Path
):
    notes = tmp_path / "nvme" / "staging" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("not ours")
    values = {"name": "nvme", "node_pools": ["west"], "directory": str(tmp_path / "nvme")}
    nvme = create_location(plant.cluster, values, actor=SYSTEM)
    cache_version(xray.versions.get(), nvme, actor=SYSTEM)
    work()
    keep_caches(plant.clock())
    assert Cache.objects.get().state == Cache.READY
    assert notes.read_text() == "not ours"
    assert sorted(path.name for path in notes.parent.parent.iterdir()) == [directory_of(nvme).name, "staging"]


def test_the_default_location_is_there_before_the_first_cache(plant: Plant):
    assert not CacheLocation.objects.exists()
    keep_caches(plant.clock())
    location = CacheLocation.objects.get()
    assert (location.name, location.is_default, location.project) == (plant.cluster.name, True, None)
    keep_caches(plant.clock())
    assert CacheLocation.objects.count() == 1


def test_a_cluster_without_caches_gets_no_location(plant: Plant):
    Cluster.objects.update(engine="kubernetes", settings={})
    keep_caches(plant.clock())
    assert not CacheLocation.objects.exists()
