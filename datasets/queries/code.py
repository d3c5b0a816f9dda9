"""Read code trees, and whether jobs can use them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.config.service_tokens import code_token
from controlplane.engines.kinds import engine_kind
from controlplane.models import Cluster, Project
from datasets.code_manifest import is_sha256
from datasets.code_store import FOLDER, ProjectCode
from datasets.models import CodeTree

SCHEME = "sha256:"


def code_root() -> Path:
    """Return the folder of the code store."""
    root: Path = settings.STATE_DIR / FOLDER
    return root


def code_of(project: Project) -> ProjectCode:
    """Return the store of the project's code trees."""
    return ProjectCode(code_root(), project.pk)


def control_url(cluster: Cluster) -> str:
    """Return the URL from which the cluster's pods download code, "" if none is configured."""
    return str(cluster.settings.get("control_url") or settings.STATED_URL)


def code_refusal(cluster: Cluster) -> str:
    """Return why jobs of the cluster cannot have code; "" if they can."""
    kind = engine_kind(cluster.engine)
    if kind.places_code or (kind.downloads_code and control_url(cluster)):
        return ""
    if not kind.downloads_code:
        return f"{cluster.name} cannot run uploaded code; put it into the image, or leave it out."
    return (
        f"Pods of {cluster.name} download code from the control plane, whose address for them is not configured."
        f" An admin sets one: yard cluster edit {cluster.name} --set control_url=https://..."
    )


def code_source(cluster: Cluster, project_id: int, job_id: str, attempt: int, tree: str) -> dict[str, Any]:
    """Return the fields of engines.base.CodeSource with which a pod of the attempt gets its code. `tree`: digest
    of the job's code tree."""
    source = {"tree": digest_of(tree), "project_id": project_id}
    if engine_kind(cluster.engine).places_code:
        return source
    return source | {
        "url": f"{control_url(cluster)}/api/v1/pod-code/{job_id}/{attempt}",
        "token": code_token(settings.SECRET_KEY, job_id, attempt),
    }


def digest_of(tree: str) -> str | None:
    """Return the hexadecimal digits of a tree's name; the prefix `sha256:` is optional. None if it is
    malformed."""
    digest = tree.removeprefix(SCHEME)
    return digest if is_sha256(digest) else None


def find_tree(project: Project, digest: str, commit: str | None = None) -> CodeTree | None:
    """Return the newest row of a tree, or with `commit` the one of that commit. None if the project has no such
    tree or its manifest is lost."""
    rows = CodeTree.objects.filter(project=project, digest=digest)
    row = (rows if commit is None else rows.filter(commit=commit)).order_by("-pk").first()
    return row if row is not None and code_of(project).has(digest) else None


def code_fields(row: CodeTree) -> dict[str, Any]:
    """Return the fields of a job's `code` that describe a tree."""
    return {
        "tree": SCHEME + row.digest,
        "commit": row.commit,
        "branch": row.branch,
        "is_dirty": row.is_dirty,
        "source": row.source,
        "repository": row.repository,
    }


def tree_shape(row: CodeTree) -> dict[str, Any]:
    """Return a tree in the REST form of lists."""
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
    """Return a tree in the REST form of its own resource."""
    return {**tree_shape(row), "diff": row.diff, "is_diff_cut": row.is_diff_cut}


def settings_hint(cluster: Cluster, words: str, lacking: Mapping[str, object]) -> str:
    """Return `words` and the command that sets what a cluster lacks; "" if nothing is missing. `lacking`: the present
    value of each setting by NAME=EXAMPLE."""
    wanted = [f"--set {name}" for name, value in lacking.items() if not value]
    return f"{words}: yard cluster edit {cluster.name} {' '.join(wanted)}" if wanted else ""


def data_image(cluster: Cluster) -> str:
    """Return the image, which must have python3, for pods that work on data in a cluster; "" if none is
    configured."""
    return str(cluster.settings.get("code_image") or cluster.settings.get("default_image") or "")
