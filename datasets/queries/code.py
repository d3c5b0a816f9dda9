"""Questions about code trees."""

from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.models import Project
from datasets.code_manifest import is_sha256
from datasets.code_store import FOLDER, ProjectCode
from datasets.models import CodeTree

SCHEME = "sha256:"


def code_root() -> Path:
    """Return the folder of the code store."""
    root: Path = settings.STATE_DIR / FOLDER
    return root


def code_of(project: Project) -> ProjectCode:
    """Return the project's part of the code store."""
    return ProjectCode(code_root(), project.pk)


def digest_of(tree: str) -> str | None:
    """Return the hexadecimal digits of `sha256:...`, which may be left out; None when it is no tree's name."""
    digest = tree.removeprefix(SCHEME)
    return digest if is_sha256(digest) else None


def find_tree(project: Project, digest: str, commit: str | None = None) -> CodeTree | None:
    """Return the newest row of a tree, or the one of that commit; None when the project has no such tree or its files
    are lost."""
    rows = CodeTree.objects.filter(project=project, digest=digest)
    row = (rows if commit is None else rows.filter(commit=commit)).order_by("-pk").first()
    return row if row is not None and code_of(project).has(digest) else None


def code_fields(row: CodeTree) -> dict[str, Any]:
    """Return what a job's spec says of its code."""
    return {
        "tree": SCHEME + row.digest,
        "commit": row.commit,
        "branch": row.branch,
        "is_dirty": row.is_dirty,
        "source": row.source,
        "repository": row.repository,
    }


def tree_shape(row: CodeTree) -> dict[str, Any]:
    """Return a tree as REST lists it."""
    return {
        **code_fields(row),
        "id": row.pk,
        "files": row.files,
        "size_bytes": row.size_bytes,
        "created_by": row.created_by,
        "created_at": row.created_at,
        "used_at": row.used_at,
    }


def tree_detail(row: CodeTree) -> dict[str, Any]:
    """Return a tree as REST shows it by itself."""
    return {**tree_shape(row), "diff": row.diff, "is_diff_cut": row.is_diff_cut}
