"""Lineage over REST and on its page: the chain from data to model, in both directions, and nothing that is hidden."""

import pytest

from tests.artifacts import make_artifact
from tests.builders import make_job
from tests.code_trees import make_tree
from tests.datasets import make_dataset, make_version
from tests.volumes import make_snapshot, make_volume, work

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes", "own_volumes")]


@pytest.fixture
def chain(cast, api):
    """train1 reads xray@2 and writes a volume; its snapshot is restored; train2 runs on it and keeps a model."""
    dataset = make_dataset(cast.other, "atlas", is_shared=True)
    make_version(dataset, {"a": "1"})
    version = make_version(dataset, {"a": "2"})
    tree = make_tree(cast.project, {"train.py": b"x", "requirements.txt": b"torch==2"}, commit="9c1f2ab")
    make_volume(cast.project, "state")
    reads = [{"dataset": "team-b/atlas", "version": "2", "mount_path": "/data"}]
    code = {"tree": tree, "commit": "9c1f2ab"}
    volumes = [{"volume": "state", "mount_path": "/mnt"}]
    train1 = make_job(
        cast.project, "train1", cast.ben, command=["python", "train.py", "--seed", "7"], code=code,
        datasets=reads, volumes=volumes,
    )  # fmt: skip
    snapshot = make_snapshot(train1.volume_uses.get().volume)
    type(snapshot).objects.filter(pk=snapshot.pk).update(job=train1, job_name="train1")
    api("ben").post(f"snapshots/{snapshot.pk}/restore", {"name": "back"})
    work()
    train2 = make_job(cast.project, "train2", cast.ben, volumes=[{"volume": "back", "mount_path": "/mnt"}])
    model = make_artifact(train2, "model", {"w": "w"})
    return version, snapshot, train1, train2, model


def names(answer) -> set[str]:
    return {f"{one['kind']} {one['name']}" for one in answer.body["nodes"]}


def test_the_chain_leads_from_the_model_to_the_data_by_hashes(api, chain):
    version, snapshot, _, _, model = chain
    answer = api("vera").get(f"artifacts/{model.pk}/lineage")
    expected = {
        "artifact model",
        "job train2",
        "volume back",
        "snapshot state@1",
        "job train1",
        "version atlas@2",
    }
    assert expected | {"code 9c1f2ab", "environment requirements.txt", "seed 7"} <= names(answer)
    edges = {
        (edge["source"].split(":")[0], edge["target"].split(":")[0]): edge for edge in answer.body["edges"]
    }
    assert edges["version", "job"]["identity"] == f"sha256:{version.manifest}"
    assert edges["snapshot", "volume"]["identity"] == f"snapshot:{snapshot.pk}"
    assert edges["volume", "job"]["identity"] is None


def test_the_same_chain_is_found_from_the_data_the_jobs_and_the_snapshot(api, chain):
    version, snapshot, train1, train2, _ = chain
    for path in (
        f"versions/{version.pk}",
        f"snapshots/{snapshot.pk}",
        f"jobs/{train1.pk}",
        f"jobs/{train2.pk}",
    ):
        found = names(api("ben").get(f"{path}/lineage"))
        assert {"artifact model", "version atlas@2", "job train1", "job train2"} <= found, path
    assert "version atlas@1" in names(api("ben").get(f"versions/{version.pk}/lineage"))


def test_a_restored_volume_leads_to_its_job_also_when_the_snapshot_is_deleted(api, chain, client, cast):
    """Retention rules delete snapshots, and the chain of a model ended there."""
    _, snapshot, train1, train2, model = chain
    snapshot.delete()
    answer = api("vera").get(f"artifacts/{model.pk}/lineage")
    assert {"job train1", "snapshot state@1", "version atlas@2"} <= names(answer)
    [lost] = [one for one in answer.body["nodes"] if one["kind"] == "snapshot"]
    assert (lost["id"], lost["detail"]) == (None, "deleted since")
    edges = {(edge["source"], edge["target"]) for edge in answer.body["edges"]}
    assert {
        (f"job:{train1.pk}", lost["key"]),
        (lost["key"], f"volume:{train2.volume_uses.get().volume_id}"),
    } <= edges
    assert "job train2" in names(api("vera").get(f"jobs/{train1.pk}/lineage"))
    client.force_login(cast.vera)
    assert "deleted since" in client.get(f"/lineage/artifact/{model.pk}").content.decode()


def test_a_snapshot_without_a_job_that_is_deleted_ends_the_chain(api, cast):
    snapshot = make_snapshot(make_volume(cast.project, "state"))
    api("ben").post(f"snapshots/{snapshot.pk}/restore", {"name": "back"})
    work()
    job = make_job(cast.project, "train", cast.ben, volumes=[{"volume": "back", "mount_path": "/mnt"}])
    snapshot.delete()
    found = api("vera").get(f"jobs/{job.pk}/lineage").body["nodes"]
    assert [(one["id"], one["detail"]) for one in found if one["kind"] == "snapshot"] == [
        (None, "deleted since")
    ]


def test_nothing_of_projects_that_the_reader_may_not_see_is_shown(api, chain, cast):
    version, _, train1, _, _ = chain
    # chi owns the dataset and may not see the jobs of team-a that read it
    assert names(api("chi").get(f"versions/{version.pk}/lineage")) == {"version atlas@2", "version atlas@1"}
    type(version.dataset).objects.update(is_shared=False)
    found = names(api("ben").get(f"jobs/{train1.pk}/lineage"))
    assert "version a dataset of another project" in found
    assert not any("atlas" in one for one in found)


def test_the_page_has_the_graph_and_the_list(client, chain, cast):
    *_, model = chain
    client.force_login(cast.ben)
    text = client.get(f"/lineage/artifact/{model.pk}").content.decode()
    assert text.count('class="node ') == text.count("<tr data-key=")
    assert client.get(f"/lineage/volume/{model.pk}").status_code == 404


def test_the_number_of_queries_does_not_grow_with_the_runs(chain, cast, api, django_assert_max_num_queries):
    version, *_ = chain
    reads = [{"dataset": "team-b/atlas", "version": "2", "mount_path": "/data"}]
    for number in range(12):
        job = make_job(cast.project, f"more-{number}", cast.ben, datasets=reads)
        make_artifact(job, "model", {"w": str(number)})
    ben = api("ben")
    with django_assert_max_num_queries(45):
        answer = ben.get(f"versions/{version.pk}/lineage")
    assert len([one for one in answer.body["nodes"] if one["kind"] == "artifact"]) == 13


def test_a_lineage_without_all_runs_is_marked_as_cut(chain, cast, api, monkeypatch):
    version, *_ = chain
    assert api("ben").get(f"versions/{version.pk}/lineage").body["is_cut"] is False
    monkeypatch.setattr("datasets.queries.lineage.RUNS_MOST", 1)
    answer = api("ben").get(f"versions/{version.pk}/lineage")
    assert answer.body["is_cut"] is True
    assert len([one for one in answer.body["nodes"] if one["kind"] == "job"]) == 1


def test_of_a_run_the_newest_snapshots_are_shown_and_those_that_lead_somewhere(
    chain, cast, api, client, monkeypatch
):
    _, first, train1, *_ = chain
    volume = train1.volume_uses.get().volume
    for _ in range(4):
        snapshot = make_snapshot(volume)
        type(snapshot).objects.filter(pk=snapshot.pk).update(job=train1)
    shown = names(api("ben").get(f"jobs/{train1.pk}/lineage"))
    assert {f"snapshot state@{number}" for number in range(1, 6)} <= shown
    monkeypatch.setattr("datasets.queries.lineage.SNAPSHOTS_MOST", 2)
    answer = api("ben").get(f"jobs/{train1.pk}/lineage")
    # state@1 was restored, and state@2 and state@3 lead nowhere
    found = {one for one in names(answer) if one.startswith("snapshot")}
    assert (found, answer.body["is_cut"]) == ({f"snapshot state@{at}" for at in (1, 4, 5)}, True)
    old = type(first).objects.get(volume=volume, number=2)
    assert {"snapshot state@2", "job train1"} <= names(api("ben").get(f"snapshots/{old.pk}/lineage"))
    client.force_login(cast.ben)
    assert "the newest 2 snapshots of each" in client.get(f"/lineage/job/{train1.pk}").content.decode()
