"""Volumes over REST: created, changed, mounted by jobs, browsed, deleted; and who may."""

from urllib.parse import urlencode

import pytest

from controlplane.commands.errors import CommandRefused
from controlplane.commands.registry import handler_for
from controlplane.engines.base import Mount
from controlplane.models import AuditEntry, Cluster, Command, Event, Project
from datasets.actions.volumes import RESIZE, create_volume
from datasets.models import Volume, VolumeUse
from datasets.queries.volumes import volume_mount
from datasets.storage.volume_files import Child
from datasets.storage.volumes import FolderVolumes
from jobs.models import Job
from tests.builders import make_cluster, make_job
from tests.cast import SYSTEM
from tests.volumes import GIB, directory_of, make_volume, read, work, write

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]
NEW = {"project": "team-a", "name": "data", "size": "10Gi"}


def submit(api, name="train1", **body):
    return api("ben").post(
        "projects/team-a/jobs", {"name": name, "kind": "train", "command": ["true"], **body}
    )


def mounted(volume="data", path="/mnt", **more):
    return {"volume": volume, "mount_path": path, **more}


def test_a_volume_is_created_and_its_directory_is_made_by_a_worker(api, cast):
    made = api("ben").post("volumes", NEW)
    assert made.status == 201
    assert (made.body["status"]["state"], made.body["size_bytes"]) == ("creating", 10 * GIB)
    assert (made.body["storage_class"], made.body["service_tier"]) == ("standard", "standard")
    assert (made.body["access_mode"], made.body["is_size_enforced"]) == ("ReadWriteOnce", False)
    work()
    shown = api("vera").get(f"volumes/{made.body['id']}").body
    assert (shown["status"]["state"], shown["used_bytes"], shown["files"]) == ("ready", 0, 0)
    assert directory_of(Volume.objects.get()).is_dir()
    kinds = Event.objects.filter(kind__startswith="volume.").values_list("kind", flat=True)
    assert list(kinds) == ["volume.created", "volume.ready"]
    assert AuditEntry.objects.filter(verb="volume.create", actor="ben").count() == 1


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"name": "taken"}, 409, "name_in_use"),
        ({"size": "ten"}, 400, "not_a_size"),
        ({"size": "1k"}, 400, "out_of_range"),
        ({"size": True}, 400, "not_a_size"),
        ({"storage_class": "slow"}, 400, "no_such_class"),
        ({"service_tier": "gold"}, 400, "no_such_tier"),
        ({"access_mode": "ReadOnlyMany"}, 400, "unknown_access_mode"),
        ({"name": "../up"}, 400, "not_a_dns_label"),
    ],
)
def test_what_cannot_be_created_is_refused_with_its_code(api, cast, change, status, code):
    make_volume(cast.project, "taken")
    refused = api("ben").post("volumes", NEW | change)
    assert refused.status == status
    assert code in (refused.code, *(error["code"] for error in refused.body.get("errors", ())))
    assert Volume.objects.count() == 1


def test_a_job_mounts_a_volume_and_keeps_it_from_being_deleted(api, cast):
    volume = make_volume(cast.project)
    job = submit(api, volumes=[mounted()])
    assert job.status == 201
    assert job.body["volumes"] == [{"volume": "data", "mount_path": "/mnt"}]
    refused = api("ana").delete(f"volumes/{volume.pk}")
    assert (refused.status, refused.code) == (409, "volume_in_use")
    assert "train1" in refused.body["detail"]
    assert [use["name"] for use in api("vera").get(f"volumes/{volume.pk}").body["jobs"]] == ["train1"]
    Job.objects.update(state="stopped")
    directory = directory_of(volume)
    assert api("ben").delete(f"volumes/{volume.pk}").status == 403
    assert api("ana").delete(f"volumes/{volume.pk}").body["status"]["state"] == "deleting"
    work()
    assert not Volume.objects.exists()
    assert not directory.exists()


def test_a_new_volume_of_a_job_belongs_to_the_project_and_outlives_it(api, cast):
    new = {"new": {"storage_class": "fast", "size": "5Gi"}, "mount_path": "/ckpt"}
    job = submit(api, volumes=[new])
    assert job.body["volumes"] == [{"volume": "train1", "mount_path": "/ckpt"}]
    second = submit(api, "train1-again", volumes=[{**new, "new": {**new["new"], "name": "named"}}])
    assert second.body["volumes"][0]["volume"] == "named"
    volume = Volume.objects.get(name="train1")
    assert (volume.storage_class, volume.service_tier, volume.size_bytes) == ("fast", "gold", 5 * GIB)
    Job.objects.get(name="train1").delete()
    assert Volume.objects.filter(name="train1").exists()
    assert VolumeUse.objects.count() == 1
    taken = submit(api, "train1", volumes=[new])
    assert taken.body["volumes"][0]["volume"] == "train1-2"


def test_a_dry_run_creates_no_volume(api, cast):
    new = {"new": {"storage_class": "standard", "size": "5Gi"}, "mount_path": "/ckpt"}
    body = {"name": "x", "kind": "train", "command": ["true"], "volumes": [new]}
    assert api("ben").post("projects/team-a/jobs?dry_run=true", body).status in (200, 201)
    assert not Volume.objects.exists()


@pytest.mark.parametrize(
    ("mount", "code"),
    [
        (mounted("theirs"), "volume_unknown"),
        (mounted("nothing"), "volume_unknown"),
        (mounted(path="/"), "mounts_over_root"),
        (mounted(path="/a/../b"), "not_an_absolute_path"),
        ({"volume": "data"}, "not_a_mount"),
        ({"new": {"size": "1Gi"}, "mount_path": "/mnt"}, "not_a_new_volume"),
        ({"new": {"storage_class": "slow", "size": "1Gi"}, "mount_path": "/mnt"}, "no_such_class"),
    ],
)
def test_what_cannot_be_mounted_is_refused_with_its_place(api, cast, mount, code):
    make_volume(cast.other, "theirs")
    refused = submit(api, volumes=[mount])
    assert refused.status == 400
    assert [(error["code"], error["pointer"][:10]) for error in refused.body["errors"]] == [
        (code, "/volumes/0")
    ]
    assert not Job.objects.exists()


def test_snapshots_on_events_need_a_volume_and_known_events(api, cast):
    make_volume(cast.project)
    assert submit(api, snapshot_on=["success"]).body["errors"][0]["code"] == "no_volume"
    unknown = submit(api, snapshot_on=["noon"], volumes=[mounted()])
    assert unknown.body["errors"][0]["code"] == "unknown_event"


@pytest.fixture
def on_kubernetes(cast):
    """team-a's cluster has storage classes of its own."""
    cluster = make_cluster("kube", engine="kubernetes", nodes=0)
    Project.objects.filter(pk=cast.project.pk).update(cluster=cluster)
    cast.project.refresh_from_db()


@pytest.mark.usefixtures("on_kubernetes")
def test_volumes_of_a_cluster_with_storage_classes_are_claims_in_them(api):
    new = {"storage_class": "nfs-fast", "size": "1Gi"}
    assert submit(api, volumes=[{"new": new, "mount_path": "/mnt"}]).status == 201
    made = api("ben").post("volumes", {**NEW, "storage_class": "nfs-fast", "name": "models"})
    assert (made.status, made.body["storage_class"], made.body["service_tier"]) == (201, "nfs-fast", "")
    assert api("ben").post("volumes", {**NEW, "service_tier": "ultra", "name": "x"}).pointers == [
        "/service_tier"
    ]
    assert Volume.objects.get(name="models").storage_class == "nfs-fast"
    job = Job.objects.select_related("project__cluster").get()
    claim = f"volume-{Volume.objects.exclude(name='models').get().pk}"
    assert volume_mount(job.project, job.spec["volumes"][0]) == Mount("", "/mnt", claim=claim)


@pytest.mark.usefixtures("on_kubernetes")
def test_the_classes_of_a_cluster_are_listed_and_offered_as_its_check_found_them(api, cast, client):
    look = {
        "name": "storage_classes",
        "outcome": "ok",
        "message": "",
        "without_it": "",
        "found": ["nfs", "slow"],
    }
    Cluster.objects.filter(name="kube").update(checks=[look])
    results = api("ben").get("storage-classes").body["results"]
    assert [(one["name"], one["cluster"]) for one in results] == [
        ("standard", None),
        ("fast", None),
        ("nfs", "kube"),
        ("slow", "kube"),
    ]
    (shown,) = api("root").get("clusters/kube").body["status"]["checks"]
    assert "found" not in shown
    client.force_login(cast.ben)
    assert b'<option value="slow"' in client.get("/new/volume").content
    volume = create_volume(cast.project, {"name": "data", "size": GIB}, actor=SYSTEM)
    page = client.get(f"/volumes/{volume.pk}").content.decode()
    assert volume.name in page
    assert "access-mode" not in page


@pytest.mark.usefixtures("on_kubernetes")
def test_a_claim_is_resized_by_its_cluster_and_keeps_its_access_mode(api, cast):
    volume = create_volume(cast.project, {"name": "data", "size": GIB}, actor=SYSTEM)
    Volume.objects.update(state="ready")
    path, ben = f"volumes/{volume.pk}", api("ben")
    refused = ben.post(f"{path}/access-mode", {"access_mode": "ReadWriteMany"})
    assert refused.code == "access_mode_fixed"
    assert "yard volume clone data NEW --access-mode ReadWriteMany" in refused.body["detail"]
    assert ben.get(path).body["is_size_enforced"] is None, "its driver enforces it or does not"
    shared = ben.post(f"{path}/clone", {"name": "shared", "access_mode": "ReadWriteMany"})
    assert (shared.status, shared.body["access_mode"]) == (201, "ReadWriteMany"), "as the refusal says"
    assert ben.post(f"{path}/clone", {"name": "same"}).body["access_mode"] == "ReadWriteOnce"
    assert ben.post(f"{path}/resize", {"size": GIB // 2}).code == "volume_not_smaller"
    assert ben.post(f"{path}/resize", {"size": 2 * GIB}).body["size_bytes"] == GIB
    assert ben.post(f"{path}/resize", {"size": 3 * GIB}).code == "volume_in_use"
    command = Command.objects.get(kind=RESIZE)
    handler = handler_for(RESIZE)
    handler.on_failed(command, CommandRefused("not_resized", "its class does not allow it"))
    assert ben.get(path).body["status"]["message"] == "its class does not allow it"
    handler.on_done(command, 2 * GIB)
    assert ben.get(path).body["size_bytes"] == 2 * GIB
    assert ben.get(f"{path}/files").code == "being_read"  # by a pod


def test_size_access_mode_and_tier_are_changed_while_it_exists(api, cast):
    volume = make_volume(cast.project, files={"a": "x" * 3_000_000})
    path, ben = f"volumes/{volume.pk}", api("ben")
    assert ben.post(f"{path}/resize", {"size": "20Gi"}).body["size_bytes"] == 20 * GIB
    Volume.objects.update(used_bytes=3_000_000)
    assert ben.post(f"{path}/resize", {"size": "2Mi"}).code == "volume_too_full"
    assert ben.post(f"{path}/access-mode", {"access_mode": "ReadWriteMany"}).status == 200
    shown = ben.post(f"{path}/service-tier", {"service_tier": "ultra"}).body
    assert (shown["access_mode"], shown["service_tier"]) == ("ReadWriteMany", "ultra")
    assert shown["throughput_mib_per_second"] == 128 * 20 // 1024
    assert ben.post(f"{path}/service-tier", {"service_tier": "gold"}).status == 400
    assert api("ana").patch(path, {"keep_last": 3}).body["keep_last"] == 3
    assert api("vera").post(f"{path}/resize", {"size": "30Gi"}).status == 403
    assert api("chi").post(f"{path}/resize", {"size": "30Gi"}).status == 404


def test_a_clone_has_the_content_and_is_its_own(api, cast):
    volume = make_volume(cast.project, files={"deep/a.txt": "alpha"})
    made = api("ben").post(f"volumes/{volume.pk}/clone", {"name": "copy"})
    assert (made.status, made.body["origin"]["name"]) == (201, "data")
    waiting = api("ana").delete(f"volumes/{volume.pk}")
    assert (waiting.status, waiting.code) == (409, "volume_in_use")
    work()
    copy = Volume.objects.get(name="copy")
    assert (copy.state, copy.used_bytes, read(copy)) == ("ready", 5, {"deep/a.txt": "alpha"})
    write(copy, {"deep/a.txt": "other"})
    assert read(volume) == {"deep/a.txt": "alpha"}


def test_a_volume_whose_disk_is_not_mounted_cannot_be_read(api, cast):
    volume = make_volume(cast.project, files={"a.txt": "alpha"})
    directory_of(volume).rename(directory_of(volume).with_name("away"))
    for about in ("files", "files?directory=sub", "content?path=a.txt"):
        assert api("vera").get(f"volumes/{volume.pk}/{about}").code == "not_mounted"


def test_files_are_listed_and_downloaded_and_nothing_outside_is(api, cast):
    volume = make_volume(
        cast.project, files={"a.txt": "alpha", "sub/page.html": "<script>", "sub/i.png": "png"}
    )
    root = directory_of(volume)
    (root / "out").symlink_to("/etc")
    (root / "passwd").symlink_to("/etc/passwd")
    (root / "sub/up").symlink_to("..")
    vera = api("vera")
    listed = vera.get(f"volumes/{volume.pk}/files").body["results"]
    assert [(entry["name"], entry["kind"]) for entry in listed] == [
        ("a.txt", "file"), ("out", "link"), ("passwd", "link"), ("sub", "directory")
    ]  # fmt: skip
    below = vera.get(f"volumes/{volume.pk}/files?directory=sub&after=i.png&limit=1").body
    assert ([entry["path"] for entry in below["results"]], below["has_more"]) == (["sub/page.html"], True)
    page = vera.send("GET", f"volumes/{volume.pk}/content?path=sub/page.html")
    assert page.headers["Content-Type"] == "application/octet-stream"
    assert page.headers["Content-Disposition"].startswith("attachment")
    assert (page.headers["X-Content-Type-Options"], "sandbox" in page.headers["Content-Security-Policy"]) == (
        "nosniff",
        True,
    )
    assert (
        vera.send("GET", f"volumes/{volume.pk}/content?path=sub/i.png").headers["Content-Type"] == "image/png"
    )
    for path in (
        "passwd",
        "out/passwd",
        "../volumes",
        "sub/../a.txt",
        "sub/up/a.txt",
        "sub",
        "",
        "a.txt/b",
        "%00",
    ):
        assert vera.get(f"volumes/{volume.pk}/content?path={path}").status in (400, 404), path
        assert path in ("sub", "") or vera.get(f"volumes/{volume.pk}/files?directory={path}").status in (
            400,
            404,
        )
    assert api("chi").get(f"volumes/{volume.pk}/files").status == 404


def test_files_with_names_that_are_not_utf8_are_paged_through_and_downloaded(api, cast):
    volume = make_volume(cast.project, files={"d\udcfe/\udcff1": "one", "d\udcfe/\udcff2": "two"})
    vera, files = api("vera"), f"volumes/{volume.pk}/files"
    [directory] = vera.get(files).body["results"]
    asked = {"directory": directory["path"], "limit": "1"}
    first, second = (
        vera.get(f"{files}?{urlencode(asked | {'after': after})}").body for after in ("", "\\xff1")
    )
    assert [page["results"][0]["name"] for page in (first, second)] == ["\\xff1", "\\xff2"]
    assert (first["has_more"], second["has_more"]) == (True, False)
    content = f"volumes/{volume.pk}/content?{urlencode({'path': second['results'][0]['path']})}"
    assert vera.get(content, accept="*/*").body == b"two"


def test_a_time_that_no_date_has_does_not_hide_a_directory(api, cast, monkeypatch):
    volume = make_volume(cast.project)
    found = [Child(b"a", "file", 1, 1e12), Child(b"b", "file", 1, -1e12)]
    monkeypatch.setattr(FolderVolumes, "children", lambda *_: found)
    listed = api("vera").get(f"volumes/{volume.pk}/files")
    assert [entry["modified_at"][:4] for entry in listed.body["results"]] == ["9999", "1970"]


def test_volumes_of_others_are_not_listed(api, cast):
    make_volume(cast.project)
    make_volume(cast.other, "theirs")
    assert [row["name"] for row in api("vera").get("volumes").body["results"]] == ["data"]
    assert [row["name"] for row in api("root").get("volumes?project=team-b").body["results"]] == ["theirs"]


def test_a_clone_of_a_job_mounts_the_same_volume(api, cast):
    make_volume(cast.project)
    job = make_job(cast.project, "first", cast.ben, volumes=[mounted(read_only=True)])
    again = api("ben").post(f"jobs/{job.pk}/clone", {"name": "second"})
    assert again.body["volumes"] == [mounted(read_only=True)]
    assert VolumeUse.objects.filter(job__name="second", is_read_only=True).exists()
