"""Directories of this machine that become versions: which are allowed, what is shared, and what goes wrong."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.utils import timezone

from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command
from datasets.actions.registrations import REGISTER
from datasets.command_handlers.registrations import RegisterDirectory
from datasets.ingest.worker import WorkerFailed
from datasets.models import Dataset, DatasetRegistration
from datasets.queries.lake import lake_of
from datasets.storage.base import Blocked
from datasets.storage.folder import WHOLE_BYTES
from tests.cast import Cast
from tests.datasets import make_dataset, make_version, manifest_of
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
LARGE = "l" * (WHOLE_BYTES + 1)
FILES = {"a.txt": "alpha", "sub/large.bin": LARGE}


@pytest.fixture
def source(tmp_path: Path, settings: django_settings, own_lakes: Path) -> Path:
    folder = tmp_path / "source"
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    settings.DATASET_SOURCES = [str(folder)]
    return folder


@pytest.fixture
def dataset(cast: Cast) -> Dataset:
    return make_dataset(cast.project)


def register(api: Any, dataset: Dataset, path: Path, person: str = "ben") -> Any:
    return api(person).post(
        f"datasets/{dataset.pk}/registrations", {"path": str(path), "message": "as it is"}
    )


def work() -> None:
    wait_until(lambda: not (carry_out_due() or Command.objects.of_kinds([REGISTER]).unfinished().exists()))


def state(api: Any, dataset: Dataset, row: Any) -> Any:
    return api("ben").get(f"datasets/{dataset.pk}/registrations/{row['id']}").body


def test_an_allowed_directory_becomes_a_version(api: Any, cast: Cast, dataset: Dataset, source: Path):
    answer = register(api, dataset, source)
    assert (answer.status, answer.body["state"]) == (202, "pending")
    work()
    done = state(api, dataset, answer.body)
    assert (done["state"], done["version"], done["reason"]) == ("ready", 1, None)
    version = api("vera").get(f"datasets/{dataset.pk}/versions/1").body
    assert (version["manifest"], version["author"], version["message"]) == (
        manifest_of(FILES).hash,
        "ben",
        "as it is",
    )
    assert api("ben").post(f"versions/{version['id']}/verify").body["is_intact"] is True
    assert os.access(source / "sub/large.bin", os.W_OK), "the source is left as it was"
    same = register(api, dataset, source)
    work()
    done = state(api, dataset, same.body)
    assert (done["version"], done["reason"]["message"]) == (1, "Nothing changed since version 1.")
    (source / "a.txt").write_text("other")
    again = register(api, dataset, source)
    work()
    assert state(api, dataset, again.body)["version"] == 2


def test_what_is_damaged_is_repaired_by_registering_again(
    api: Any, cast: Cast, dataset: Dataset, source: Path
):
    """The members have no files of their own to sync from."""
    register(api, dataset, source)
    work()
    version = dataset.versions.get()
    lake = lake_of(cast.project)
    [located] = lake.locate([sha256(b"alpha").digest()])
    lake.path_of(located).unlink()
    found = api("ben").post(f"versions/{version.pk}/verify").body
    command = f"yard dataset register {dataset.name} {source} -p team-a"
    assert (found["is_intact"], found["repair"]) == (False, command)
    register(api, dataset, source)
    work()
    found = api("ben").post(f"versions/{version.pk}/verify").body
    assert (found["is_intact"], found["repair"]) == (True, "")
    assert dataset.versions.count() == 1


def test_a_registration_waits_for_the_disk_of_the_lake(
    api: Any,
    dataset: Dataset,
    source: Path,
    settings: django_settings,
    monkeypatch: pytest.MonkeyPatch,
):
    make_version(dataset, {"a": "alpha"})
    mounted = settings.LAKE_DIR
    monkeypatch.setattr(RegisterDirectory, "backoff_seconds", (0,))
    away = mounted.rename(mounted.with_name("disk"))
    mounted.mkdir()
    asked = register(api, dataset, source).body
    wait_until(carry_out_due)
    Command.objects.unfinished().update(tries=100)
    wait_until(carry_out_due)
    assert state(api, dataset, asked)["state"] == "pending"
    assert not list(mounted.iterdir())
    mounted.rmdir()
    away.rename(mounted)
    work()
    assert state(api, dataset, asked)["state"] == "ready"


def test_only_what_an_admin_allowed_is_read(api: Any, dataset: Dataset, source: Path):
    for path in (source / "sub", source.parent, source / "..", Path("/etc")):
        answer = register(api, dataset, path)
        assert answer.status == 400, path
    [error] = register(api, dataset, source / "sub").body["errors"]
    assert (error["pointer"], error["code"]) == ("/path", "path_not_allowed")
    assert str(source) in error["detail"]
    assert register(api, dataset, source, "vera").status == 403
    assert not DatasetRegistration.objects.exists()


def test_files_are_linked_where_an_admin_says_so_and_become_read_only(
    api: Any, cast: Cast, dataset: Dataset, source: Path, settings: django_settings
):
    settings.DATASET_SOURCES = [f"{source}:link"]
    lake, large = lake_of(cast.project), source / "sub/large.bin"
    # The control plane's umask makes files private, which are copied.
    large.chmod(0o644)
    # What was written within the last tick of the clock is copied.
    os.utime(large, (1, 1))
    register(api, dataset, source)
    work()
    [located] = lake.locate([manifest_of({"x": LARGE}).digest(0)])
    stored = lake.path_of(located)
    assert stored.stat().st_mode & 0o222 == 0
    assert stored.stat().st_ino == large.stat().st_ino
    assert large.stat().st_mode & 0o222 == 0, "an edit of one would edit both"
    (source / "a.txt").write_text("still writable: small files are copied")


def test_what_is_in_the_way_is_said(
    api: Any, cast: Cast, dataset: Dataset, source: Path, settings: django_settings
):
    empty, gone = source.parent / "empty", source.parent / "gone"
    empty.mkdir()
    settings.DATASET_SOURCES = [str(empty), str(gone)]
    found = []
    for path in (empty, gone):
        row = register(api, dataset, path).body
        work()
        failed = state(api, dataset, row)
        found.append((failed["state"], failed["reason"]["code"]))
    assert found == [("failed", "no_files"), ("failed", "source_missing")]
    client = Client()
    client.force_login(cast.ben)
    assert "was not registered" in client.get(f"/datasets/{dataset.pk}").content.decode()


def test_one_at_a_time(api: Any, dataset: Dataset, source: Path):
    assert register(api, dataset, source).status == 202
    assert register(api, dataset, source).body["code"] == "registration_under_way"


def test_a_link_out_of_the_directory_is_left_out_and_named(api: Any, dataset: Dataset, source: Path):
    (source / "evil").symlink_to("/etc/passwd")
    row = register(api, dataset, source).body
    work()
    done = state(api, dataset, row)
    assert done["state"] == "ready"
    assert done["reason"]["message"] == "Left out: evil (a link that leads out of the directory)."
    assert api("ben").get(f"versions/{done['version_id']}").body["manifest"] == manifest_of(FILES).hash


def test_the_page_offers_what_is_allowed(cast: Cast, dataset: Dataset, source: Path):
    client = Client()
    client.force_login(cast.ben)
    assert str(source) in client.get(f"/datasets/{dataset.pk}/upload").content.decode()
    client.post(f"/datasets/{dataset.pk}/register", {"path": "/etc"})
    assert "/etc is not allowed" in client.get(f"/datasets/{dataset.pk}").content.decode()
    client.post(f"/datasets/{dataset.pk}/register", {"path": str(source)})
    assert "is being registered" in client.get(f"/datasets/{dataset.pk}").content.decode()


def test_a_registration_that_is_tried_again_says_why_on_the_page_and_then_ends(
    api: Any, cast: Cast, dataset: Dataset, source: Path, monkeypatch: pytest.MonkeyPatch
):
    away = "s3://lake at http://10.0.0.9 cannot be used: the connection is refused; try again later."

    def refuse(*_: object, **__: object) -> None:
        raise WorkerFailed(away)

    row = register(api, dataset, source).body
    page = Client()
    page.force_login(cast.ben)
    with monkeypatch.context() as patch:
        patch.setattr("datasets.command_handlers.registrations.sync_tree", refuse)
        wait_until(carry_out_due, what="the try that is refused")
        waits = state(api, dataset, row)
        assert (waits["state"], waits["reason"]) == ("pending", {"code": "not_stored", "message": away})
        assert f"it is tried again: {away}" in page.get(f"/datasets/{dataset.pk}").content.decode()
    Command.objects.unfinished().update(not_before=timezone.now())
    work()
    done = state(api, dataset, row)
    assert (done["state"], done["reason"]) == ("ready", None)


@pytest.mark.parametrize(
    "refusal",
    [WorkerFailed("Away.", "no_such_host"), Blocked("unreachable", "Away.")],
    ids=["worker", "here"],
)
def test_a_registration_waits_for_the_lake_as_long_as_it_takes(
    api: Any, dataset: Dataset, source: Path, refusal: Exception, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise refusal

    row = register(api, dataset, source).body
    with monkeypatch.context() as patch:
        patch.setattr("datasets.command_handlers.registrations.sync_tree", refuse)
        for _ in range(RegisterDirectory.max_tries + 1):
            Command.objects.unfinished().update(not_before=timezone.now())
            wait_until(carry_out_due, what="the try that is refused")
    waits = state(api, dataset, row)
    assert (waits["state"], waits["reason"]) == ("pending", {"code": refusal.code, "message": "Away."})
    Command.objects.unfinished().update(not_before=timezone.now())
    work()
    assert state(api, dataset, row)["state"] == "ready"
