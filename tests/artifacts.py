"""Artifacts for tests: jobs with real files in their working directories, and artifacts with content in a lake."""

from typing import Any

from django.conf import settings

from controlplane.commands.dispatch import carry_out_due
from controlplane.config.work_directories import work_directory
from controlplane.models import Command
from datasets.actions.artifacts import keep_artifacts
from datasets.models import Artifact
from datasets.queries.artifacts import ARTIFACT
from datasets.queries.lake import lake_of
from jobs.models import Job
from tests.datasets import manifest_of, pack_of
from tests.waiting import wait_until


def make_artifact(job: Job, name: str, files: dict[str, str], **fields: Any) -> Artifact:
    """Return an artifact of a job that is ready and has these files (path -> text), stored in the lake."""
    manifest, lake = manifest_of(files), lake_of(job.project)
    lake.put_pack(memoryview(pack_of(*{text.encode() for text in files.values()})))
    lake.put_manifest(manifest.hash, manifest.encode())
    kept = {"manifest": manifest.hash, "files": len(manifest), "size_bytes": manifest.size_bytes}
    ready = {"state": Artifact.READY, "path": "out", "created_by": job.user.username}
    return Artifact.objects.create(job=job, project=job.project, name=name, **kept, **ready, **fields)


def write_output(job: Job, files: dict[str, str]) -> None:
    """Write files (path -> text) below the working directory of the job's rank 0."""
    for path, text in files.items():
        place = work_directory(settings.STATE_DIR, str(job.pk), 0) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def keep_output() -> None:
    """Store the artifacts of ended jobs, as the loop and a worker do; wait until that is done."""
    keep_artifacts()
    about = Command.objects.unfinished().filter(subject_kind=ARTIFACT)

    def is_done() -> bool:
        carry_out_due()
        return not about.exists()

    wait_until(is_done, what="the end of the keeping of artifacts")
