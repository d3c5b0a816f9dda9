"""Code that no job needs goes, and nothing else."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.models import Project
from datasets.actions.code import begin_upload
from datasets.actions.code_aging import remove_old_code
from datasets.models import CodeImport, CodeTree
from datasets.queries.code import code_root, find_tree
from jobs.models import Job
from tests.builders import make_job
from tests.cast import Cast
from tests.code_trees import entries_of, make_tree, sha256

pytestmark = pytest.mark.django_db
SHARED, OLD, NEW = b"shared", b"old", b"new"


@pytest.fixture(autouse=True)
def _store(settings: Any, tmp_path: Path) -> None:
    settings.STATE_DIR, settings.CODE_KEEP_DAYS = tmp_path, 30


def in_days(days: int) -> None:
    remove_old_code(timezone.now() + timedelta(days=days))


def used_days_ago(tree: str, days: int) -> None:
    rows = CodeTree.objects.filter(digest=tree.removeprefix("sha256:"))
    rows.update(used_at=timezone.now() - timedelta(days=days))


def is_kept(project: Project, tree: str) -> bool:
    return find_tree(project, tree.removeprefix("sha256:")) is not None


def contents() -> set[str]:
    return {path.name for path in (code_root() / "objects").rglob("*") if path.is_file()}


def test_trees_that_nothing_used_for_long_go_with_what_only_they_had(cast: Cast):
    old = make_tree(cast.project, {"a": SHARED, "b": OLD})
    new = make_tree(cast.project, {"a": SHARED, "b": NEW})
    used_days_ago(old, 40)
    used_days_ago(new, -10)
    in_days(1)
    assert (is_kept(cast.project, old), is_kept(cast.project, new)) == (False, True)
    assert contents() == {sha256(SHARED), sha256(NEW)}


def test_contents_of_another_project_stay(cast: Cast):
    old = make_tree(cast.project, {"a": SHARED})
    other = make_tree(cast.other, {"a": SHARED, "b": NEW})
    used_days_ago(old, 40)
    used_days_ago(other, -10)
    in_days(1)
    assert contents() == {sha256(SHARED), sha256(NEW)}
    assert is_kept(cast.other, other)


def test_code_of_an_unfinished_job_stays_however_old(cast: Cast):
    tree = make_tree(cast.project, {"a": OLD})
    job = make_job(cast.project, "waits", cast.ben, code={"tree": tree})
    used_days_ago(tree, 400)
    in_days(1)
    assert is_kept(cast.project, tree)
    Job.objects.filter(pk=job.pk).update(state="succeeded")
    in_days(40)
    assert not is_kept(cast.project, tree)


def test_an_upload_that_was_never_finished_goes(cast: Cast):
    digest, _ = begin_upload(cast.project, entries_of({"a": OLD}))
    pending = code_root() / "projects" / str(cast.project.pk) / "pending" / digest
    in_days(0)
    assert pending.exists()
    os.utime(pending, (1, 1))
    in_days(0)
    assert not pending.exists()


def test_nothing_of_a_deleted_project_stays(cast: Cast):
    make_tree(cast.other, {"a": OLD})
    key = cast.other.pk
    Project.objects.filter(pk=key).delete()
    in_days(1)
    assert not (code_root() / "projects" / str(key)).exists()
    assert contents() == set()


def test_what_a_fetch_answered_goes_after_a_week(cast: Cast):
    row = CodeImport.objects.create(project=cast.project, url="https://git.example.org/x", ref="main")
    in_days(6)
    assert CodeImport.objects.filter(pk=row.pk).exists()
    in_days(8)
    assert not CodeImport.objects.filter(pk=row.pk).exists()


def test_the_repository_of_a_killed_fetch_goes_and_one_that_is_read_stays(settings: Any):
    left = settings.STATE_DIR / "git" / "left"
    (left / "objects").mkdir(parents=True)
    remove_old_code(timezone.now())
    assert left.exists()
    in_days(1)
    assert not left.exists()
