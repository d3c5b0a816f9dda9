"""Several cache locations in a Kubernetes cluster: each project has a volume at each, for the nodes that it serves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict, Invalid
from controlplane.actions.projects import edit_project
from controlplane.commands.dispatch import carry_out_due
from controlplane.loop.podspecs import start_payloads
from controlplane.models import Cluster, Command, Event, Node
from controlplane.scheduling.view import PodPlacement
from datasets.actions.cache_locations import REMOVE_VOLUME, create_location, edit_location
from datasets.actions.cache_upkeep import keep_caches
from datasets.actions.caches import EVICT_CACHE, FILL_CACHE, cache_version, clear_cache, location_for
from datasets.actions.job_data import follow_room
from datasets.claim_watching import check_claims
from datasets.command_handlers.caches import CHECK_LOCATION
from datasets.models import Cache, CacheLocation, Dataset, DatasetUse
from datasets.queries.caches import room_of
from datasets.queries.job_data import dataset_mounts, observe_data
from datasets.storage.claims import CACHE_CLAIM, CLAIM_DELETED, CacheClaim, CacheTask
from jobs.kinds.base import PodShape
from jobs.models import Job
from tests.builders import make_cluster, make_job
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes", "own_volumes")]
STATED = {
    "cache_storage_class": "nfs",
    "cache_size": "10Gi",
    "control_url": "http://control:8000",
    "default_image": "python:3",
}
ZONE_B = {"name": "zone-b", "node_labels": {"zone": "b"}}
LONG = (FILL_CACHE, EVICT_CACHE, REMOVE_VOLUME, CHECK_LOCATION)


@dataclass
class Engine:
    """Carries every task out at once. `lost`: names of claims that the cluster lost."""

    tasks: list[tuple[CacheClaim, CacheTask]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    claim: CacheClaim = field(default_factory=CacheClaim)

    def caches(self, project: str, claim: CacheClaim) -> "Engine":
        return Engine(self.tasks, self.deleted, self.lost, claim)

    def run(self, task: CacheTask, budget: Any, report: Any = None) -> Sequence[str]:
        self.tasks.append((self.claim, task))
        return task.keep

    def trouble(self) -> str:
        return self.claim_trouble("", self.claim.name)

    def claim_trouble(self, project: str, claim: str) -> str:
        return CLAIM_DELETED if claim in self.lost else ""

    def delete(self) -> None:
        self.deleted.append(self.claim.name)


@pytest.fixture
def engine(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A cluster with dgx1-1 in no zone and dgx1-2 in zone b."""
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes", settings=STATED)
    Node.objects.filter(name="dgx1-2").update(labels={"zone": "b"})
    engine = Engine()
    for module in ("claim_watching", "cache_volumes"):
        monkeypatch.setattr(f"datasets.{module}.engine_for", lambda cluster: engine)
    for project in (cast.project, cast.other):
        project.refresh_from_db()
    return engine


@pytest.fixture
def xray(cast: Cast, engine: Engine) -> Dataset:
    dataset = make_dataset(cast.project, is_shared=True)
    make_version(dataset, {"a": "one"})
    return dataset


@pytest.fixture
def zone(cast: Cast, engine: Engine) -> CacheLocation:
    more = {"storage_class": "nfs-b", "room_bytes": 5 << 30}
    return create_location(cast.project.cluster, {**ZONE_B, **more}, actor=SYSTEM)


def work() -> None:
    wait_until(lambda: not (carry_out_due() or Command.objects.of_kinds(LONG).unfinished().exists()))


def submit(cast: Cast, name: str = "job", **more: Any) -> Job:
    mounts = [{"dataset": "xray", "mount_path": "/data", "cached": True}]
    return make_job(cast.project, name, datasets=mounts, **more)


def caches() -> set[tuple[str, str]]:
    return set(Cache.objects.values_list("location__name", "state"))


def refusal(cluster: Cluster, **values: Any) -> str:
    with pytest.raises(Invalid) as refused:
        create_location(cluster, {"name": "more", "node_labels": {"zone": "c"}, **values}, actor=SYSTEM)
    [error] = refused.value.errors
    return f"{error.pointer} {error.code}"


def test_a_request_by_name_fills_the_volume_of_that_location_alone(
    api: Any, cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    version = str(xray.versions.get().pk)
    made = api("ben").post("caches", {"version_id": version, "location": "zone-b"})
    assert (made.status, made.body["location"]) == (201, "zone-b.team-a")
    work()
    assert caches() == {("zone-b.team-a", "ready")}
    [(claim, task)] = engine.tasks
    nodes = ("dgx1-2",)
    assert claim == CacheClaim(f"{CACHE_CLAIM}-{zone.pk}", "nfs-b", 5 << 30, "ReadWriteMany", nodes)
    assert task.key == version
    api("ben").post("caches", {"version_id": version})
    work()
    assert caches() == {("zone-b.team-a", "ready"), ("memory.team-a", "ready")}
    assert engine.tasks[1][0] == CacheClaim(nodes=("dgx1-1",))

    def listed(location: str) -> list[str]:
        return [one["location"] for one in api("ben").get(f"caches?location={location}").body["results"]]

    assert listed("zone-b") == listed("zone-b.team-a") == ["zone-b.team-a"]
    assert listed("memory") == ["memory.team-a"]
    shapes = {one["name"]: one for one in api("ben").get("cache-locations").body["results"]}
    assert set(shapes) == {"memory", "memory.team-a", "zone-b", "zone-b.team-a"}
    own = shapes["zone-b.team-a"]
    assert (own["parent"], own["project"], own["node_labels"]) == ("zone-b", "team-a", {"zone": "b"})
    assert (own["room_bytes"], own["used_bytes"], own["storage_class"]) == (5 << 30, 3, "nfs-b")
    assert (shapes["zone-b"]["caches"], shapes["memory"]["room_bytes"]) == (0, 10 << 30)
    assert "zone-b.team-a" not in str(api("chi").get("cache-locations").body)


def test_data_is_filled_on_no_node_that_was_cordoned_here(cast: Cast, engine: Engine, xray: Dataset):
    location = location_for(cast.project.cluster, cast.project)
    cache_version(xray.versions.get(), location, actor=SYSTEM)
    work()
    Node.objects.filter(name="dgx1-1").update(is_cordoned=True)
    clear_cache(Cache.objects.get(), actor=SYSTEM)
    work()
    assert [claim.nodes for claim, _ in engine.tasks] == [(), ("dgx1-2",)]


def test_pods_mount_the_claim_of_the_location_of_their_node(cast: Cast, xray: Dataset, zone: CacheLocation):
    job = submit(cast)
    key = str(xray.versions.get().pk)
    mounts = dataset_mounts(job, ["dgx1-1", "dgx1-2"])
    tree = f"trees/{key}"
    assert mounts["dgx1-1"] == [["", "/data", True, CACHE_CLAIM, tree]]
    assert mounts["dgx1-2"] == [["", "/data", True, f"{CACHE_CLAIM}-{zone.pk}", tree]]


def test_pods_that_mount_different_claims_say_so_and_all_ask_once(
    cast: Cast, xray: Dataset, zone: CacheLocation, django_assert_max_num_queries: Any
):
    """By this the MPI operator, which gives all hosts the same mounts, gets no gang over two locations."""
    job, without = submit(cast), make_job(cast.project, "without")

    def payloads(one: Job, *nodes: str) -> list[dict[str, Any]]:
        at = {rank: PodPlacement(rank, node) for rank, node in enumerate(nodes)}
        return start_payloads(one, [PodShape(rank, "worker") for rank in at], at, {})

    def are_equal(one: Job, *nodes: str) -> set[bool]:
        return {payload["has_equal_mounts"] for payload in payloads(one, *nodes)}

    assert are_equal(job, "dgx1-2", "dgx1-2") == {True}
    assert are_equal(job, "dgx1-1", "dgx1-2") == {False}
    assert are_equal(without, "dgx1-1", "dgx1-2") == {True}
    with django_assert_max_num_queries(1):
        found = payloads(job, *["dgx1-1", "dgx1-2"] * 4)
    assert [one["mounts"][-1][3] for one in found] == [CACHE_CLAIM, f"{CACHE_CLAIM}-{zone.pk}"] * 4


def test_the_scheduler_sees_where_the_data_of_each_project_is(cast: Cast, xray: Dataset, zone: CacheLocation):
    cluster, version = cast.project.cluster, xray.versions.get()
    cache_version(version, location_for(cluster, cast.project, "zone-b"), actor=SYSTEM)
    cache_version(version, location_for(cluster, cast.other), actor=SYSTEM)
    work()
    job = submit(cast)
    mounts = [{"dataset": "team-a/xray", "mount_path": "/data"}]
    other = make_job(cast.other, "other", datasets=mounts)
    data = observe_data(cluster)
    assert [one.name for one in data.locations] == ["memory", "zone-b"]
    assert (data.of(str(job.pk)).locations, data.of(str(job.pk)).fillable) == (("zone-b",), ("memory",))
    assert (data.of(str(other.pk)).locations, data.of(str(other.pk)).fillable) == (("memory",), ("zone-b",))
    assert {use.location.name for use in DatasetUse.objects.all()} == {"zone-b.team-a", "memory.team-b"}


def test_data_is_brought_to_where_the_scheduler_found_room_and_leaves_what_failed(
    cast: Cast, xray: Dataset, zone: CacheLocation, django_assert_max_num_queries: Any
):
    cache_version(
        xray.versions.get(), location_for(cast.project.cluster, cast.project, "zone-b"), actor=SYSTEM
    )
    work()
    jobs = [submit(cast, f"job{number}") for number in range(4)]
    Job.objects.update(reason="waiting_for_data", details={"fill_at": "memory"})
    follow_room(timezone.now())
    assert {use.location.name for use in DatasetUse.objects.all()} == {"memory.team-a"}
    with django_assert_max_num_queries(6):
        follow_room(timezone.now())
    work()
    assert caches() == {("zone-b.team-a", "ready"), ("memory.team-a", "ready")}
    with pytest.raises(Conflict, match="used by job job0"):
        clear_cache(Cache.objects.get(location__name="zone-b.team-a"), actor=SYSTEM)
    Job.objects.exclude(pk=jobs[0].pk).update(state="succeeded")
    Job.objects.update(reason="", details={})
    Cache.objects.filter(location__name="memory.team-a").update(state=Cache.FAILED)
    Cache.objects.filter(location__name="zone-b.team-a").update(state=Cache.EVICTING)
    follow_room(timezone.now())
    assert DatasetUse.objects.get(job=jobs[0]).location.name == "zone-b.team-a"


def test_a_cluster_whose_settings_forbid_caches_keeps_no_other_from_moving_data(
    cast: Cast, xray: Dataset, zone: CacheLocation
):
    submit(cast)
    Job.objects.update(reason="waiting_for_data", details={"fill_at": "memory"})
    before = DatasetUse.objects.get().location
    Cluster.objects.update(settings={})
    follow_room(timezone.now())
    assert DatasetUse.objects.get().location == before


def test_a_gang_over_two_locations_waits_until_both_have_its_data(
    cast: Cast, xray: Dataset, zone: CacheLocation
):
    cluster, version = cast.project.cluster, xray.versions.get()
    for name in ("zone-b", ""):
        cache_version(version, location_for(cluster, cast.project, name), actor=SYSTEM)
    job = submit(cast)
    assert observe_data(cluster).of(str(job.pk)).is_waiting
    work()
    # Ready at every location: the nodes are not restricted.
    assert observe_data(cluster).of(str(job.pk)).locations == ()


def test_a_running_job_whose_caches_are_lost_gets_new_workers_nowhere(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    cluster = cast.project.cluster
    cache_version(xray.versions.get(), location_for(cluster, cast.project, "zone-b"), actor=SYSTEM)
    work()
    job = submit(cast)
    Job.objects.filter(pk=job.pk).update(state="running")
    assert observe_data(cluster).of(str(job.pk)).locations == ("zone-b",)
    Cache.objects.update(state=Cache.FAILED, reason="files_gone")
    data = observe_data(cluster)
    assert data.of(str(job.pk)).locations
    assert not set(data.of(str(job.pk)).locations) & {one.name for one in data.locations}


def test_a_fill_without_a_node_or_with_too_many_fails_by_name(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    Node.objects.filter(name="dgx1-2").update(is_ready=False)
    at = location_for(cast.project.cluster, cast.project, "zone-b")
    cache_version(xray.versions.get(), at, actor=SYSTEM)
    work()
    cache = Cache.objects.get()
    assert (cache.state, cache.reason) == ("failed", "no_nodes")
    assert "zone-b.team-a" in cache.message
    CacheLocation.objects.filter(pk=zone.pk).update(access_mode="ReadWriteOnce")
    Node.objects.update(is_ready=True, labels={"zone": "b"})
    cache_version(xray.versions.get(), at, actor=SYSTEM)
    work()
    cache.refresh_from_db()
    assert (cache.reason, engine.tasks) == ("several_nodes", [])
    assert "serves 2 nodes" in cache.message


def test_a_location_of_one_node_that_gains_a_node_gets_no_pods(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    cluster = cast.project.cluster
    CacheLocation.objects.filter(name="zone-b").update(access_mode="ReadWriteOnce")
    at = location_for(cluster, cast.project, "zone-b")
    cache_version(xray.versions.get(), at, actor=SYSTEM)
    work()
    job = submit(cast)
    assert observe_data(cluster).of(str(job.pk)).locations == ("zone-b",)
    add_node(cluster, "dgx1-3", zone="b")
    data = observe_data(cluster).of(str(job.pk))
    assert (data.is_waiting, data.locations) == (True, ())
    assert dict(data.progress)["message"] == "zone-b serves 2 nodes, and its ReadWriteOnce volume is for one."
    cache_version(xray.versions.get(), location_for(cluster, cast.project), actor=SYSTEM)
    work()
    data = observe_data(cluster).of(str(job.pk))
    assert (data.is_waiting, data.locations, data.fillable) == (False, ("memory",), ())
    later = submit(cast, "later")
    assert {use.location.name for use in DatasetUse.objects.filter(job=later)} == {"memory.team-a"}
    Node.objects.filter(name="dgx1-3").update(is_cordoned=True)
    assert observe_data(cluster).of(str(job.pk)).locations == ()


def test_jobs_of_a_location_of_one_node_that_gains_a_node_leave_it_before_their_start_alone(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    """Queued ones go where new ones go; new workers of running ones do not start where their data is not."""
    cluster = cast.project.cluster
    CacheLocation.objects.filter(name="zone-b").update(access_mode="ReadWriteOnce")
    cache_version(xray.versions.get(), location_for(cluster, cast.project, "zone-b"), actor=SYSTEM)
    work()
    queued, running = submit(cast), submit(cast, "running")
    Job.objects.filter(pk=running.pk).update(state="running")
    add_node(cluster, "dgx1-3", zone="b")
    assert observe_data(cluster).of(str(running.pk)).locations == ("zone-b",)
    for _ in range(2):
        follow_room(timezone.now())
        work()
    assert observe_data(cluster).of(str(queued.pk)).locations == ("memory",)
    moved = DatasetUse.objects.values_list("job__name", "location__name")
    assert set(moved) == {(queued.name, "memory.team-a"), ("running", "zone-b.team-a")}


def add_node(cluster: Cluster, name: str, **labels: str) -> Node:
    [like] = Node.objects.filter(cluster=cluster, name="dgx1-2")
    like.pk, like.name, like.labels, like._state.adding = None, name, labels, True
    like.save()
    return like


def test_a_location_goes_with_the_claims_of_its_volumes_once_it_is_empty(
    api: Any, cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    version = xray.versions.get()
    cache = cache_version(version, location_for(cast.project.cluster, cast.project, "zone-b"), actor=SYSTEM)
    work()
    claim = f"{CACHE_CLAIM}-{zone.pk}"
    refused = api("root").delete("cache-locations/zone-b")
    assert (refused.status, refused.body["code"]) == (409, "cache_location_in_use")
    refused = api("root").delete("cache-locations/zone-b.team-a")
    assert (refused.status, refused.body["code"]) == (409, "is_volume")
    clear_cache(cache, actor=SYSTEM)
    work()
    assert api("root").delete("cache-locations/zone-b").status == 204
    work()
    assert engine.deleted == [claim]
    assert not CacheLocation.objects.filter(name__startswith="zone-b").exists()
    # As before there were locations: no nodes are named.
    cache_version(version, location_for(cast.project.cluster, cast.project, "zone-b"), actor=SYSTEM)
    work()
    assert engine.tasks[-1][0] == CacheClaim()


def test_a_lost_claim_is_named_and_fails_the_caches_of_its_location_alone(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    for name in ("zone-b", ""):
        at = location_for(cast.project.cluster, cast.project, name)
        cache_version(xray.versions.get(), at, actor=SYSTEM)
    work()
    engine.lost.add(f"{CACHE_CLAIM}-{zone.pk}")
    check_claims()
    work()
    keep_caches(Cache.objects.latest("changed_at").changed_at)
    assert caches() == {("zone-b.team-a", "failed"), ("memory.team-a", "ready")}
    [event] = Event.objects.filter(kind="cache_location.lost")
    assert event.data == {"location": "zone-b.team-a", "claim": f"{CACHE_CLAIM}-{zone.pk}"}


def test_room_and_age_limit_are_of_each_volume(cast: Cast, engine: Engine, zone: CacheLocation):
    volume = location_for(cast.project.cluster, cast.project, "zone-b")
    edit_location(zone, {"room_bytes": 1 << 30, "unused_days": 7}, actor=SYSTEM)
    volume.refresh_from_db()
    assert (room_of(volume), volume.unused_days) == (5 << 30, 7)
    assert room_of(location_for(cast.project.cluster, cast.other, "zone-b")) == 1 << 30
    edit_location(volume, {"room_bytes": 1}, actor=SYSTEM)
    with pytest.raises(Invalid, match="serves the nodes of its location"):
        edit_location(volume, {"node_pools": ["a"]}, actor=SYSTEM)


def test_a_move_of_the_project_loses_all_its_volumes(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    for name in ("zone-b", ""):
        at = location_for(cast.project.cluster, cast.project, name)
        cache_version(xray.versions.get(), at, actor=SYSTEM)
    work()
    edit_project(cast.project, {"cluster": make_cluster("second", nodes=0)}, actor=cast.actor("root"))
    assert set(Cache.objects.values_list("state", "reason")) == {("failed", "project_moved")}
    assert not CacheLocation.objects.exclude(kept_keys=[]).exists()


def test_locations_that_cannot_be_are_refused_by_name(cast: Cast, engine: Engine, zone: CacheLocation):
    cluster = cast.project.cluster
    assert refusal(cluster, directory="/nvme") == "/directory not_a_directory"
    assert refusal(make_cluster("plain", nodes=0), storage_class="nfs") == "/storage_class not_a_volume"
    for name in ("zone-b", "memory"):
        with pytest.raises(Conflict, match="already"):
            create_location(cluster, {**ZONE_B, "name": name}, actor=SYSTEM)
    Cluster.objects.filter(pk=cluster.pk).update(scheduler="kai")
    cluster.refresh_from_db()
    assert refusal(cluster) == "/cluster one_location"


def test_under_another_scheduler_all_pods_mount_the_default_location(
    cast: Cast, engine: Engine, xray: Dataset, zone: CacheLocation
):
    cache_version(
        xray.versions.get(), location_for(cast.project.cluster, cast.project, "zone-b"), actor=SYSTEM
    )
    work()
    job = submit(cast)
    Cluster.objects.update(scheduler="kai")
    job.project.cluster.refresh_from_db()
    assert [mount[3] for mount in dataset_mounts(job)[""]] == [CACHE_CLAIM]
    assert observe_data(job.project.cluster).of(str(job.pk)).is_waiting
    keep_caches(Cache.objects.latest("changed_at").changed_at)
    work()
    assert caches() == {("zone-b.team-a", "ready"), ("memory.team-a", "ready")}
    assert not observe_data(job.project.cluster).of(str(job.pk)).is_waiting


def test_an_admin_makes_a_location_of_volumes_in_the_page(client: Any, cast: Cast, engine: Engine):
    client.force_login(cast.root)
    form = {"name": "zone-b", "cluster": "memory", "node_labels": "zone=b", "unused_days": "2"}
    more = {"storage_class": "nfs-b", "access_mode": "ReadWriteOnce", "room_bytes": "20Gi"}
    wrong = client.post("/new/cache-location", form | more | {"storage_class": "Not a class"})
    assert (wrong.status_code, "lower-case letters" in wrong.content.decode()) == (400, True)
    assert client.post("/new/cache-location", form | more).status_code == 302
    made = CacheLocation.objects.get(name="zone-b")
    stated = (made.storage_class, made.access_mode, made.room_bytes, made.unused_days)
    assert stated == ("nfs-b", "ReadWriteOnce", 20 << 30, 2)
    location_for(cast.project.cluster, cast.project, "zone-b")
    page = client.get("/cache-locations").content.decode()
    assert "volume of team-a for zone-b" in page
    assert "for each project" in page
    edit = client.get("/cache-locations/zone-b.team-a/edit").content.decode()
    assert "The volume of team-a for the nodes of zone-b." in edit
    assert "Delete" not in edit
    assert client.post("/cache-locations/zone-b/delete").status_code == 302
    assert not CacheLocation.objects.filter(name__startswith="zone-b").exists()


def test_the_page_of_a_dataset_offers_the_locations_that_lack_a_version(
    client: Any, cast: Cast, xray: Dataset, zone: CacheLocation
):
    client.force_login(cast.ben)
    address, offer = f"/datasets/{xray.pk}", '<option value="{0}">{0}</option>'
    asks = f"{address}/cache?version=1"
    assert asks in client.get(address).content.decode()
    page = client.get(asks).content.decode()
    assert page.index(offer.format("memory")) < page.index(offer.format("zone-b"))
    said = client.post(f"{address}/cache", {"version": "1", "location": "zone-b"}, follow=True)
    assert "xray@1 is being cached at zone-b.team-a." in said.content.decode()
    assert caches() == {("zone-b.team-a", "queued")}
    page = client.get(asks).content.decode()
    assert offer.format("zone-b") not in page
    assert offer.format("memory") in page
    said = client.post(f"{address}/cache", {"version": "1", "location": "zone-c"}, follow=True)
    assert "There is no cache location named zone-c." in said.content.decode()
    client.post(f"{address}/cache", {"version": "1", "location": "memory"})
    assert caches() == {("zone-b.team-a", "queued"), ("memory.team-a", "queued")}
    assert asks not in client.get(address).content.decode()
