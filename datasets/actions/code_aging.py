"""Remove code trees that no job needs any more, to free disk space."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from controlplane.models import Project
from datasets.actions.code_imports import remove_left_repositories
from datasets.code_store import ProjectCode, forget_project, project_ids, sweep_shared
from datasets.models import CodeImport, CodeTree
from datasets.queries.code import SCHEME, code_root
from jobs.models import Job

# Younger contents are kept even without a tree: their upload may still be running.
GRACE = timedelta(hours=6)
# How long finished imports are kept; their result is also in the tree and the audit log.
KEEP_IMPORTS = timedelta(days=7)
# Limit on the rows that are deleted in one transaction, because other writers wait for it.
BATCH = 500


def remove_old_code(now: datetime) -> None:
    """Remove trees that no unfinished job uses and no submission has named for CODE_KEEP_DAYS, unfinished uploads, all
    code of deleted projects, and contents that no tree uses any more; also the rows of old imports."""
    root, before = code_root(), (now - GRACE).timestamp()
    while _forget_rows(now - timedelta(days=settings.CODE_KEEP_DAYS)):
        pass
    # List the folders first: a project that is created afterwards is then not treated as deleted.
    found = project_ids(root)
    known = set(Project.objects.values_list("pk", flat=True))
    for project_id in found:
        if project_id not in known:
            forget_project(root, project_id)
            continue
        store = ProjectCode(root, project_id)
        kept = set(CodeTree.objects.filter(project=project_id).values_list("digest", flat=True))
        store.remove_except(kept, before)
        store.sweep(before)
    sweep_shared(root, before)
    remove_left_repositories(before)
    CodeImport.objects.filter(created_at__lt=now - KEEP_IMPORTS).delete()


def _forget_rows(limit: datetime) -> int:
    """Delete the rows of at most BATCH trees that were last used before `limit`; trees of unfinished jobs stay. Return
    how many rows were examined: 0 if there are no more."""
    old = CodeTree.objects.filter(used_at__lt=limit).order_by("used_at")
    with transaction.atomic():
        rows = list(old.values_list("pk", "project_id", "digest")[:BATCH])
        used = _in_use({project for _, project, _ in rows})
        needed = [pk for pk, project, digest in rows if (project, digest) in used]
        # Not the present time: such a tree is examined again a day later, when its job may have ended.
        CodeTree.objects.filter(pk__in=needed).update(used_at=limit + timedelta(days=1))
        gone = [pk for pk, project, digest in rows if (project, digest) not in used]
        # The condition again, because a submission may have marked a tree as used since.
        CodeTree.objects.filter(pk__in=gone, used_at__lt=limit).delete()
    return len(rows)


def _in_use(projects: set[int]) -> set[tuple[int, str]]:
    """Return (project, digest) for the code of unfinished jobs of these projects (ids)."""
    unfinished = Job.objects.filter(project__in=projects).unfinished()
    found = unfinished.filter(spec__code__tree__isnull=False).values_list("project_id", "spec__code__tree")
    return {(project, str(tree).removeprefix(SCHEME)) for project, tree in found}
