"""Pages of volumes: what each role sees and does, files, restore and the job on the restored volume."""

import pytest
from django.test import Client

from controlplane.models import Cluster
from datasets.models import Snapshot, Volume
from datasets.queries.volumes import storage_of
from jobs.models import Job
from tests.builders import make_job
from tests.volumes import directory_of, make_snapshot, make_volume, read, work

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]


def client(user) -> Client:
    found = Client()
    found.force_login(user)
    return found


def text(answer) -> str:
    return answer.content.decode()


@pytest.fixture
def volume(cast) -> Volume:
    return make_volume(cast.project, files={"sub/a&b.txt": "alpha"})


def test_viewers_look_members_write_and_owners_delete(cast, volume):
    snapshot = make_snapshot(volume)
    seen = {
        name: text(client(getattr(cast, name)).get(f"/volumes/{volume.pk}"))
        for name in ("vera", "ben", "ana")
    }
    assert ["data@1" in page for page in seen.values()] == [True, True, True]
    assert ["Restore…" in page for page in seen.values()] == [False, True, True]
    assert ["Delete…" in page for page in seen.values()] == [False, False, True]
    assert client(cast.chi).get(f"/volumes/{volume.pk}").status_code == 404
    assert "data" in text(client(cast.vera).get("/volumes"))
    assert client(cast.vera).post(f"/volumes/{volume.pk}/do/snapshot").status_code == 403
    assert client(cast.ben).post(f"/snapshots/{snapshot.pk}/delete").status_code == 403


def test_a_volume_is_created_from_its_form_and_refusals_stay_in_it(cast):
    ben = client(cast.ben)
    fields = {"project": "team-a", "name": "new", "size": "5Gi", "access_mode": "ReadWriteMany"}
    refused = ben.post("/new/volume", fields | {"storage_class": "standard", "size": "much"})
    assert (refused.status_code, "A size is a number of bytes" in text(refused)) == (400, True)
    made = ben.post("/new/volume", fields | {"storage_class": "fast"})
    volume = Volume.objects.get()
    assert made.headers["Location"] == f"/volumes/{volume.pk}"
    assert (volume.service_tier, volume.size_bytes, volume.access_mode) == ("gold", 5 << 30, "ReadWriteMany")
    again = ben.post("/new/volume", fields | {"storage_class": "fast"})
    assert "has a volume named new already" in text(again)


def test_files_are_browsed_and_downloaded_from_the_page(cast, volume):
    vera = client(cast.vera)
    assert "sub/</a>" in text(vera.get(f"/volumes/{volume.pk}"))
    below = text(vera.get(f"/volumes/{volume.pk}?directory=sub"))
    assert "?path=sub%2Fa%26b.txt" in below
    file = vera.get(f"/volumes/{volume.pk}/file?path=sub%2Fa%26b.txt")
    assert b"".join(file.streaming_content) == b"alpha"
    assert file.headers["Content-Disposition"].startswith("attachment")
    assert vera.get(f"/volumes/{volume.pk}?directory=none").status_code == 404
    assert vera.get(f"/volumes/{volume.pk}/file?path=..%2Fx").status_code == 404


def test_the_files_of_a_volume_that_is_being_made_appear_by_themselves(cast, volume):
    Volume.objects.update(state="creating")
    storage_of(volume.project_id, volume.storage_class).remove(str(volume.pk))
    page = text(client(cast.vera).get(f"/volumes/{volume.pk}"))
    assert "Its files are shown once data is ready; it is creating." in page
    assert f'id="files" data-live="volume:{volume.pk}" data-again="2"' in page


def test_a_volume_whose_disk_is_not_mounted_says_so(cast, volume):
    directory_of(volume).rename(directory_of(volume).with_name("away"))
    for about in ("", "?directory=sub"):
        page = text(client(cast.vera).get(f"/volumes/{volume.pk}{about}"))
        assert "The directory of data is not there: is its disk mounted?" in page
    file = client(cast.vera).get(f"/volumes/{volume.pk}/file?path=a.txt")
    assert (file.status_code, "is its disk mounted?" in text(file)) == (409, True)


def test_a_snapshot_is_taken_and_restored_and_its_job_is_offered_on_the_new_volume(cast, volume):
    ben = client(cast.ben)
    job = make_job(cast.project, "train1", cast.ben, volumes=[{"volume": "data", "mount_path": "/ckpt"}])
    assert ben.post(f"/volumes/{volume.pk}/do/snapshot").status_code == 302
    Snapshot.objects.update(job=job, job_name="train1")
    work()
    snapshot = Snapshot.objects.get()
    asked = text(ben.get(f"/snapshots/{snapshot.pk}/restore"))
    assert 'value="data-1"' in asked
    taken = ben.post(f"/snapshots/{snapshot.pk}/restore", {"name": "data"})
    assert (taken.status_code, "has a volume named data already" in text(taken)) == (409, True)
    ben.post(f"/snapshots/{snapshot.pk}/restore", {"name": "data-1"})
    work()
    restored = Volume.objects.get(name="data-1")
    assert read(restored) == {"sub/a&b.txt": "alpha"}
    page = text(ben.get(f"/volumes/{restored.pk}"))
    address = f"/new/job?clone={job.pk}&amp;volume=data-1&amp;instead=data"
    assert address in page
    form = text(ben.get(address.replace("&amp;", "&")))
    assert "data-1:/ckpt" in form
    assert "--pvc data-1:/ckpt" in form
    answer = ben.post(
        "/new/job",
        {"project": "team-a", "name": "again", "kind": "train", "command": "true", "volumes": "data-1:/ckpt"},
    )
    assert answer.status_code == 302
    assert Job.objects.get(name="again").spec["volumes"][0]["volume"] == "data-1"


def test_the_page_of_a_job_shows_its_volumes_and_their_snapshots(cast, volume):
    job = make_job(cast.project, "train1", cast.ben, volumes=[{"volume": "data", "mount_path": "/ckpt"}])
    vera = client(cast.vera)
    before = text(vera.get(f"/jobs/{job.pk}"))
    assert (f'href="/volumes/{volume.pk}"' in before, "data@1" in before) == (True, False)
    snapshot = make_snapshot(volume)
    Snapshot.objects.filter(pk=snapshot.pk).update(job=job, progress={"accuracy": 0.93})
    snapshot.cause_rows.update(cause="best_metric")
    after = text(vera.get(f"/jobs/{job.pk}"))
    assert ("data@1" in after, "accuracy 0.93" in after, "best metric" in after) == (True, True, True)


def test_a_size_that_the_storage_has_still_to_give_is_said_to_be_on_its_way(cast, volume):
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes")
    done = client(cast.ben).post(f"/volumes/{volume.pk}/do/resize", {"size": "3Gi"}, follow=True)
    assert [str(message) for message in done.context["messages"]] == ["The size is being changed."]
    volume.refresh_from_db()
    assert volume.size_bytes == 1 << 30


def test_changes_from_the_page_and_their_refusals(cast, volume):
    ben, ana, path = client(cast.ben), client(cast.ana), f"/volumes/{volume.pk}/do"
    ben.post(f"{path}/resize", {"size": "3Gi"})
    ben.post(f"{path}/access-mode", {"access_mode": "ReadWriteMany"})
    ben.post(f"{path}/tier", {"service_tier": "ultra"})
    ana.post(f"{path}/keep", {"keep_last": "4", "keep_days": ""})
    volume.refresh_from_db()
    assert (volume.size_bytes, volume.access_mode, volume.service_tier, volume.keep_last, volume.keep_days) == (
        3 << 30, "ReadWriteMany", "ultra", 4, None
    )  # fmt: skip
    for verb, fields in (
        ("resize", {"size": "?"}),
        ("tier", {"service_tier": "x"}),
        ("keep", {"keep_last": "-1"}),
        ("keep", {"keep_last": "00000000199999999999"}),
    ):
        refused = ana.post(f"{path}/{verb}", fields, follow=True)
        assert "error" in {message.level_tag for message in refused.context["messages"]}, verb
    ben.post(f"{path}/clone", {"name": "copy"})
    assert Volume.objects.filter(name="copy").exists()
    ana.post(f"/volumes/{volume.pk}/delete")
    assert Volume.objects.get(pk=volume.pk).state == "ready"
    work()
    ana.post(f"/volumes/{volume.pk}/delete")
    assert Volume.objects.get(pk=volume.pk).state == "deleting"


def test_all_snapshots_are_counted_and_the_newest_shown(cast, volume, monkeypatch):
    monkeypatch.setattr("datasets.pages.volumes.SNAPSHOTS_SHOWN", 2)
    for _ in range(3):
        make_snapshot(volume)
    page = text(client(cast.vera).get(f"/volumes/{volume.pk}"))
    assert ["data@1<" in page, "data@2<" in page, "data@3<" in page] == [False, True, True]
    assert "<span>3</span>" in page
    assert "yard snapshot list --volume data -p team-a" in page
    monkeypatch.setattr("datasets.pages.volumes.SNAPSHOTS_SHOWN", 3)
    assert "yard snapshot list" not in text(client(cast.vera).get(f"/volumes/{volume.pk}"))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, "all are kept"),
        ({"keep_last": 5}, "kept: the last 5"),
        (
            {"keep_last": 5, "keep_days": 30, "snapshot_minutes": 60},
            "every 1h; kept: the last 5, for 30 days",
        ),
        ({"keep_days": 1}, "kept: for 1 day"),
    ],
)
def test_the_rules_of_its_snapshots_are_one_sentence(cast, volume, rules, words):
    Volume.objects.update(**rules)
    assert f"<dd>{words}</dd>" in text(client(cast.vera).get(f"/volumes/{volume.pk}"))


def test_a_job_shows_why_its_snapshot_failed_and_rounded_numbers(cast, volume):
    job = make_job(cast.project, user=cast.ana)
    snapshot = make_snapshot(volume)
    state = {"state": "failed", "message": "The storage did not answer.", "progress": {"loss": 0.000949667}}
    Snapshot.objects.filter(pk=snapshot.pk).update(job=job, **state)
    page = text(client(cast.vera).get(f"/jobs/{job.pk}"))
    assert "The storage did not answer." in page
    assert "loss 0.00095" in page


def test_a_volume_that_holds_more_than_its_size_says_so_in_red(cast, volume):
    Volume.objects.update(used_bytes=volume.size_bytes * 2, message="It holds more than its size.")
    page = text(client(cast.vera).get(f"/volumes/{volume.pk}"))
    assert '<p class="reason bad">It holds more than its size.</p>' in page
    assert 'class="meter bad"' in text(client(cast.vera).get("/volumes"))


def test_a_schedule_says_when_it_fires_and_a_restored_volume_leads_to_its_snapshot(cast, volume):
    ana = client(cast.ana)
    assert "none is scheduled" in text(ana.get(f"/volumes/{volume.pk}"))
    ana.post(f"/volumes/{volume.pk}/do/keep", {"snapshot_every": "2h", "keep_last": "3", "keep_days": ""})
    page = text(ana.get(f"/volumes/{volume.pk}"))
    assert 'next <time datetime="' in page
    assert ">in 1\xa0h 59\xa0m</time>" in page
    assert "<dd>every 2h; kept: the last 3</dd>" in page
    snapshot = make_snapshot(volume)
    ana.post(f"/snapshots/{snapshot.pk}/restore", {"name": "back"})
    work()
    address = f"/volumes/{Volume.objects.get(name='back').pk}"
    assert f'<a href="/lineage/snapshot/{snapshot.pk}">data@1</a>' in text(ana.get(address))
    ana.post(f"/snapshots/{snapshot.pk}/delete")
    work()
    assert "<dd>data@1</dd>" in text(ana.get(address))
