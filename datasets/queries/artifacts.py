"""Read artifacts as plain data in REST form."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from controlplane.engines.kinds import engine_kind
from controlplane.models import Cluster
from datasets.models import Artifact
from datasets.queries.code import data_image, settings_hint
from datasets.queries.volumes import progress_of

ARTIFACT = "artifact"  # subject of commands


def artifact_rows(rows: QuerySet[Artifact]) -> list[Artifact]:
    """Return the rows of the query with the relations that `artifact_shapes` needs."""
    return list(rows.select_related("project", "job"))


def artifact_shapes(artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Return artifacts in REST form; one more query for any number."""
    progress = progress_of(ARTIFACT, [one.pk for one in artifacts if one.state == Artifact.KEEPING])
    return [_shape(artifact, progress.get(str(artifact.pk))) for artifact in artifacts]


def artifact_shape(artifact: Artifact) -> dict[str, Any]:
    """Return one artifact in REST form."""
    return artifact_shapes([artifact])[0]


def _shape(artifact: Artifact, progress: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": str(artifact.pk),
        "name": artifact.name,
        "project": artifact.project.name,
        "job_id": str(artifact.job_id),
        "job": artifact.job.name,
        "attempt": artifact.attempt or None,
        "path": artifact.path,
        "is_kept_always": artifact.is_kept_always,
        "manifest": artifact.manifest or None,
        "files": artifact.files,
        "size_bytes": artifact.size_bytes,
        "created_by": artifact.created_by,
        "created_at": artifact.created_at,
        "ready_at": artifact.ready_at,
        "status": {
            "state": artifact.state,
            "reason": artifact.reason,
            "message": artifact.message,
            "progress": progress,
        },
    }


def output_refusal(cluster: Cluster) -> str:
    """Return why the output of this cluster's jobs cannot be kept; "" if it can."""
    kind = engine_kind(cluster.engine)
    if kind.keeps_outputs:
        return ""
    if not kind.copies_outputs:
        return f"{cluster.name} cannot keep output of its pods. Write it to a volume, and take a snapshot of that."
    return settings_hint(
        cluster,
        f"Working directories end with their pods on {cluster.name}, or no image with python3 is named that reads them."
        " Write the output to a volume, or have an admin set it",
        {
            "work_storage_class=CLASS": cluster.settings.get("work_storage_class"),
            "code_image=IMAGE": data_image(cluster),
        },
    )
