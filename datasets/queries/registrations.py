"""Read registrations of directories as plain data in REST form."""

from typing import Any

from datasets.models import DatasetRegistration


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
