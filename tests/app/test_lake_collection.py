"""Content that no version needs goes, and nothing else."""

from pathlib import Path

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command, Project
from datasets.actions.datasets import commit_version, delete_dataset, keep_manifest
from datasets.actions.lake_collection import COLLECT_LAKE, GRACE, LAKE
from datasets.loop_steps import STEPS
from datasets.queries.lake import lake_of, manifest_named
from datasets.storage import folder
from datasets.storage.base import ContentMissing
from tests.cast import Cast
from tests.code_trees import sha256
from tests.datasets import make_dataset, make_version, manifest_of, pack_of
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
OLD, KEPT, ARRIVING = "of a deleted dataset", "of a version", "of a sync under way"
A_WEEK = 7 * 86400.0


@pytest.fixture(autouse=True)
def own_lake(own_lakes: Path) -> None:
    """A collection removes the lakes of projects that its database does not have: those of other tests too."""


@pytest.fixture
def a_week_old(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Files whose change time is a week ago until they are renewed; no program can set it."""
    old: set[Path] = set()
    real, renew = folder.changed_at, folder.renew_file
    monkeypatch.setattr(folder, "changed_at", lambda path: real(path) - A_WEEK * (path in old))
    monkeypatch.setattr(folder, "renew_file", lambda path: (old.discard(Path(path)), renew(path))[1])
    return old


def everything_of(project: Project) -> set[Path]:
    return {path for path in lake_of(project).root.rglob("*") if path.is_file()}


def collect() -> None:
    """As the loop and a worker do it."""
    [step] = [step for step in STEPS if step.name == "lake-collection"]
    step.run(timezone.now())
    wait_until(carry_out_due)  # due by the database's clock, which may have milliseconds only


def commands_of(project: Project) -> list[Command]:
    return list(Command.objects.of_kinds([COLLECT_LAKE]).about(LAKE, project.pk))


def has(project: Project, text: str) -> bool:
    return not lake_of(project).lacking([bytes.fromhex(sha256(text.encode()))])


def test_content_of_a_deleted_dataset_goes_and_that_of_a_running_upload_stays(
    cast: Cast, a_week_old: set[Path]
):
    doomed, kept = make_dataset(cast.project, "doomed"), make_dataset(cast.project, "kept")
    gone = make_version(doomed, {"a": OLD, "b": KEPT})
    make_version(kept, {"b": KEPT})
    delete_dataset(doomed, actor=SYSTEM)
    a_week_old |= everything_of(cast.project)
    lake_of(cast.project).put_pack(memoryview(pack_of(ARRIVING.encode())))
    collect()
    assert [has(cast.project, text) for text in (OLD, KEPT, ARRIVING)] == [False, True, True]
    with pytest.raises(ContentMissing):
        lake_of(cast.project).manifest(gone.manifest)
    arriving = manifest_of({"b": KEPT, "c": ARRIVING})
    keep_manifest(kept, arriving.encode())
    assert commit_version(kept, arriving.hash, 1, "", actor=SYSTEM)[0].number == 2
    assert [command.state for command in commands_of(cast.project)] == ["done"]


def test_nothing_of_a_deleted_project_stays(cast: Cast):
    make_version(make_dataset(cast.other), {"a": OLD})
    root = lake_of(cast.other).root
    Project.objects.filter(pk=cast.other.pk).delete()
    collect()
    assert not root.exists()


def test_a_manifest_that_was_collected_is_not_committed(cast: Cast, a_week_old: set[Path]):
    """Although this process has read it before."""
    doomed, kept = make_dataset(cast.project, "doomed"), make_dataset(cast.project, "kept")
    gone = make_version(doomed, {"b": KEPT})
    make_version(kept, {"b": KEPT, "c": KEPT})
    delete_dataset(doomed, actor=SYSTEM)
    a_week_old |= everything_of(cast.project)
    manifest_named(cast.project, gone.manifest)
    collect()
    with pytest.raises(Conflict, match="no manifest"):
        commit_version(kept, gone.manifest, 1, "", actor=SYSTEM)


def test_a_collection_keeps_what_a_version_needs_whose_request_has_not_committed_yet(
    cast: Cast, a_week_old: set[Path]
):
    """Until the request's transaction ends, the collection's connection does not see the version."""
    dataset, lake = make_dataset(cast.project), lake_of(cast.project)
    lake.put_pack(memoryview(pack_of(ARRIVING.encode())))
    manifest, _ = keep_manifest(dataset, manifest_of({"a": ARRIVING}).encode())
    a_week_old |= everything_of(cast.project)
    version, _ = commit_version(dataset, manifest.hash, 0, "", actor=SYSTEM)
    lake.collect(list, older_than_seconds=GRACE.total_seconds())
    assert has(cast.project, ARRIVING)
    assert lake.manifest(version.manifest)


def test_each_lake_has_one_command_however_often_the_loop_asks(cast: Cast):
    make_version(make_dataset(cast.project), {"a": KEPT})
    (settings.LAKE_DIR / "lost+found").mkdir()
    for _ in range(2):
        [step] = [step for step in STEPS if step.name == "lake-collection"]
        step.run(timezone.now())
    collect()
    collect()
    assert [command.state for command in commands_of(cast.project)] == ["done"]
