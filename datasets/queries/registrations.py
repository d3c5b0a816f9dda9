"""Read registrations of directories as plain data in REST form."""

import shlex
from typing import Any

from datasets.models import DatasetRegistration, DatasetVersion

SYNC_AGAIN = "yard dataset sync --full from where the files are"


def registration_shape(row: DatasetRegistration) -> dict[str, Any]:
    """Return a registration in REST form."""
    return {
        "id": str(row.pk),
        "dataset_id": str(row.dataset_id),
        "path": row.path,
        "state": row.state,
        "reason": {"code": row.reason, "message": row.message} if row.reason or row.message else None,
        "progress": {
            "files": row.files_done,
            "total_files": row.files,
            "bytes": row.bytes_done,
            "total_bytes": row.size_bytes,
        },
        "version": row.version.number if row.version else None,
        "version_id": str(row.version_id) if row.version_id else None,
        "created_by": row.created_by.username if row.created_by else "",
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


def repair_of(version: DatasetVersion) -> str:
    """Return what stores missing contents of a version again: the command that registers its directory again, if it
    was made of one, else words that say to sync."""
    whole = version.parent_id if version.subset else version.pk
    rows = DatasetRegistration.objects.filter(version=whole, state=DatasetRegistration.READY)
    path = rows.order_by("-created_at").values_list("path", flat=True).first()
    if path is None:
        return SYNC_AGAIN
    dataset = version.dataset
    return f"yard dataset register {dataset.name} {shlex.quote(path)} -p {dataset.project.name}"
