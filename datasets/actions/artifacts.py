"""Verbs on artifacts, the output files that jobs keep. File operations are done by commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.events import announce
from controlplane.fields import LONGEST_MESSAGE as LONGEST_EVENT
from controlplane.models import Command, Event, Project
from controlplane.models.prepared import prepared
from datasets.models import Artifact
from datasets.queries.artifacts import ARTIFACT, output_refusal
from datasets.storage.trees import TreeSize
from jobs.fields.artifacts import ALWAYS, CHECKPOINTS
from jobs.lifecycle import FINAL_STATES, SUCCEEDED

KEEP = "datasets.keep_artifact"
# The length of the column: PostgreSQL refuses a longer text, and the whole transaction with it.
LONGEST_MESSAGE = 1000
# Limit on the artifacts whose collection one run of the loop's step commands, so that a run stays short; the next takes
# the rest.
ORDERED_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class StoredArtifact(TreeSize):
    """A directory stored in the lake. `notes`: sentences about files that were left out."""

    manifest: str
    notes: str = ""


def artifact_refusals(project: Project, spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (pointer, code, detail) for each refused artifact of a job's spec."""
    if not spec["artifacts"]:
        return
    if detail := output_refusal(project.cluster):
        yield "/artifacts", "artifacts_not_supported", detail
        return
    names = set[str]()
    for place, wanted in enumerate(spec["artifacts"]):
        if wanted["name"] in names:
            detail = f"Two artifacts are named {wanted['name']}; give one another name with DIR:NAME."
            yield f"/artifacts/{place}/name", "name_twice", detail
        names.add(wanted["name"])
        if spec["working_dir"] and not wanted["path"].startswith(CHECKPOINTS):
            detail = "Only output in the job's own working directory is kept; leave working_dir out."
            yield f"/artifacts/{place}/path", "not_inside", detail


def note_artifacts(jobs: Sequence[Any]) -> None:
    """Write an artifact row in the state `waiting` for every artifact that new jobs declare."""
    rows = [
        Artifact(
            project_id=job.project_id,
            job=job,
            name=wanted["name"],
            path=wanted["path"],
            is_kept_always=wanted["when"] == ALWAYS,
            created_by=job.user.username,
        )
        for job in jobs
        for wanted in job.spec["artifacts"]
    ]
    if rows:
        Artifact.objects.bulk_create(rows)


def keep_artifacts(_: datetime | None = None) -> None:
    """Queue the storing of waiting artifacts of ended jobs, some at a time; those that are kept on success only are
    skipped unless their job succeeded. Safe to repeat."""
    for artifact in _waiting_of_ended_jobs():
        if artifact.is_kept_always or artifact.job.state == SUCCEEDED:
            _order(artifact)
        else:
            words = f"The job {artifact.job.state.replace('_', ' ')}; it is kept on success only."
            _end(artifact.pk, Artifact.WAITING, Artifact.SKIPPED, reason="job_not_succeeded", message=words)


@prepared
def _waiting_of_ended_jobs() -> QuerySet[Artifact]:
    ended = Artifact.objects.filter(state=Artifact.WAITING, job__state__in=FINAL_STATES)
    return ended.select_related("job").order_by("created_at", "pk")[:ORDERED_AT_ONCE]


def artifact_ready(artifact_id: str, kept: StoredArtifact) -> None:
    """Mark an artifact (by id) as stored; `kept` is its content in the lake. Does nothing unless it is in the
    state `keeping`. Call it in the transaction that ends the command."""
    fields = {
        "manifest": kept.manifest,
        "files": kept.files,
        "size_bytes": kept.size_bytes,
        "message": kept.notes[:LONGEST_MESSAGE],
        "ready_at": timezone.now(),
    }
    _end(artifact_id, Artifact.KEEPING, Artifact.READY, **fields)


def artifact_waits(artifact_id: str, message: str) -> None:
    """Write for users why an artifact (by id) is not stored yet. Does nothing unless it is in the state
    `keeping`. The caller tries again."""
    rows = Artifact.objects.filter(pk=artifact_id, state=Artifact.KEEPING)
    rows.update(message=message[:LONGEST_MESSAGE])


def artifact_failed(artifact_id: str, reason: str, message: str) -> None:
    """Mark an artifact (by id) as failed, with a reason code and a message. Does nothing unless it is in the
    state `keeping`. Call it in the transaction that ends the command."""
    words = {"reason": reason[:40], "message": message[:LONGEST_MESSAGE]}
    _end(artifact_id, Artifact.KEEPING, Artifact.FAILED, **words)


def delete_artifact(artifact: Artifact, *, actor: Actor) -> None:
    """Delete an artifact. Its content is collected later, unless a version or another artifact uses it."""
    with transaction.atomic():
        reread(artifact, lock=True)
        Command.objects.about(ARTIFACT, artifact.pk).cancel()
        about = {"name": artifact.name, "job": artifact.job.name, "manifest": artifact.manifest}
        write_audit(actor, "artifact.delete", ARTIFACT, str(artifact.pk), before=about)
        # Built before the deletion, because Django clears the key of a deleted object.
        event = _event("artifact.deleted", artifact, actor.name)
        artifact.delete()
        announce(event)


def _order(artifact: Artifact) -> None:
    with transaction.atomic():
        rows = Artifact.objects.filter(pk=artifact.pk, state=Artifact.WAITING)
        # Another process of the loop has queued it since it was read.
        if rows.update(state=Artifact.KEEPING, attempt=artifact.job.attempt) != 1:
            return
        Command.objects.create(kind=KEEP, subject_kind=ARTIFACT, subject_id=str(artifact.pk))
        about = {"name": artifact.name, "job": artifact.job.name, "path": artifact.path}
        write_audit(SYSTEM, "artifact.keep", ARTIFACT, str(artifact.pk), after=about)
        _happened("artifact.keeping", artifact)


def _end(artifact_id: Any, before: str, state: str, **fields: Any) -> None:
    with transaction.atomic():
        if Artifact.objects.filter(pk=artifact_id, state=before).update(state=state, **fields):
            found = Artifact.objects.select_related("job").get(pk=artifact_id)
            _happened(f"artifact.{state}", found)


def _happened(kind: str, artifact: Artifact) -> None:
    announce(_event(kind, artifact, SYSTEM.name))


def _event(kind: str, artifact: Artifact, actor: str) -> Event:
    verb = kind.partition(".")[2]
    has_failed = verb == Artifact.FAILED
    why = f" {artifact.message}" if has_failed else ""
    return Event(
        kind=kind,
        project_id=artifact.project_id,
        job_id=artifact.job_id,
        actor=actor,
        reason=artifact.reason if has_failed else "",
        message=f"Artifact {artifact.name} of {artifact.job.name}: {verb}.{why}"[:LONGEST_EVENT],
        data={"artifact": str(artifact.pk), "name": artifact.name},
    )
