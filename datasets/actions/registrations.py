"""Create versions from directories of the control plane's machine: the request, its progress and its result."""

from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import SYSTEM, Actor
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, invalid
from controlplane.fields import LONGEST_MESSAGE
from controlplane.models import Command
from datasets.actions.datasets import commit_version, dataset_happened, keep_manifest
from datasets.manifests import Manifest
from datasets.models import Dataset, DatasetRegistration, DatasetVersion

REGISTER, REGISTRATION = "datasets.register", "dataset_registration"  # kind and subject of the commands
# Suffix of a path in TRAINYARD_DATASET_SOURCES: the lake may hard-link files of this directory.
LINK = ":link"


def allowed_sources() -> dict[str, bool]:
    """Return the directories that an admin has allowed, each with whether its files may be hard-linked."""
    return {one.removesuffix(LINK).rstrip("/"): one.endswith(LINK) for one in settings.DATASET_SOURCES}


def register_directory(dataset: Dataset, path: str, note: str, *, actor: Actor) -> DatasetRegistration:
    """Return a new request for a version of a directory, which a worker creates; `note` becomes the version's
    message. Raises Invalid for a directory that no admin has allowed, and Conflict while another registration of
    the dataset is unfinished."""
    path = path.rstrip("/")
    if path not in allowed_sources():
        known = ", ".join(allowed_sources()) or "none"
        detail = f"{path} is not allowed. TRAINYARD_DATASET_SOURCES lists what can be registered: {known}."
        raise invalid("/path", "path_not_allowed", detail)
    try:
        with transaction.atomic():
            row = DatasetRegistration.objects.create(
                dataset=dataset, path=path, note=note, created_by=actor.user
            )
            Command.objects.create(kind=REGISTER, subject_kind=REGISTRATION, subject_id=str(row.pk))
            write_audit(actor, "dataset.register", "dataset", str(dataset.pk), after={"path": path})
            dataset_happened("dataset.registration_requested", dataset, actor, path=path)
    # The database allows one unfinished registration per dataset.
    except IntegrityError as error:
        detail = f"A directory is being registered in {dataset.name} already; wait until that has ended."
        raise Conflict("registration_under_way", detail) from error
    return row


def commit_registration(row: DatasetRegistration, manifest: Manifest) -> DatasetVersion:
    """Create the version of a registered directory, and return it; if nothing changed, return the newest version. Safe
    to repeat. Raises Invalid if the manifest is not accepted, Conflict if another version is committed meanwhile or
    contents are missing."""
    keep_manifest(row.dataset, manifest.encode())
    # Reading the directory may have taken minutes, in which others may have committed versions.
    row.dataset.refresh_from_db()
    actor = Actor(row.created_by) if row.created_by else SYSTEM
    return commit_version(row.dataset, manifest.hash, row.dataset.latest, row.note, actor=actor)[0]


def note_progress(row: DatasetRegistration, **done: int) -> None:
    """Write the progress of an unfinished registration; clears its last problem. `done`: values by column."""
    with transaction.atomic():
        if _pending(row.pk).update(reason="", message="", **done):
            dataset_happened("dataset.registration_progressed", row.dataset, SYSTEM)


def registration_waits(registration_id: str, code: str, message: str) -> None:
    """Write why an unfinished registration (by id) has to be tried again: a reason code and a message. Does
    nothing if both are known already."""
    words = {"reason": code, "message": message[:LONGEST_MESSAGE]}
    with transaction.atomic():
        if _pending(registration_id).exclude(**words).update(**words):
            row = DatasetRegistration.objects.select_related("dataset").get(pk=registration_id)
            dataset_happened("dataset.registration_waits", row.dataset, SYSTEM)


def finish_registration(registration_id: str, version: DatasetVersion, remarks: str) -> None:
    """Mark a registration (by id) as ready, with its version. `remarks`: sentences for the user, "" for none."""
    ready = {"state": DatasetRegistration.READY, "version": version, "reason": ""}
    _end(registration_id, **ready, message=remarks[:LONGEST_MESSAGE])


def fail_registration(registration_id: str, code: str, message: str) -> None:
    """Mark an unfinished registration (by id) as failed, with a reason code and a message."""
    words = {"reason": code, "message": message[:LONGEST_MESSAGE]}
    _end(registration_id, state=DatasetRegistration.FAILED, **words)


def _end(registration_id: str, **result: Any) -> None:
    # It has ended before, or was deleted with its dataset.
    if not _pending(registration_id).update(finished_at=timezone.now(), **result):
        return
    row = DatasetRegistration.objects.select_related("dataset").get(pk=registration_id)
    dataset_happened(f"dataset.registration_{row.state}", row.dataset, SYSTEM, path=row.path)


def _pending(registration_id: Any) -> Any:
    return DatasetRegistration.objects.filter(pk=registration_id, state=DatasetRegistration.PENDING)
