"""REST views of artifacts, the output that jobs keep."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from django.db.models import QuerySet
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse

from controlplane.api import query
from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import IN_STATES, OF_PROJECTS, WITH_NAMES, Filter, Listing, paged
from controlplane.api.problems import Problem
from controlplane.models import Role
from datasets import code_manifest
from datasets.access import artifact_for, visible_artifacts
from datasets.actions.artifacts import delete_artifact
from datasets.api.contents import (
    BINARY,
    DIRECTORY,
    LISTED,
    entry_of,
    file_of,
    file_response,
    listed_files,
    pack_operation,
    pack_response,
    stored_manifest,
)
from datasets.api.schemas import ARTIFACT
from datasets.code_archive import write_archive
from datasets.manifests import EXECUTABLE, LINK, Manifest
from datasets.models import Artifact
from datasets.queries.artifacts import artifact_rows, artifact_shape, artifact_shapes
from datasets.queries.lake import lake_of
from datasets.queries.volume_files import BYTES, PIECE_BYTES
from jobs.access import job_for

_KINDS = {EXECUTABLE: code_manifest.EXECUTABLE, LINK: code_manifest.LINK}
TAR = "application/x-tar"
ARTIFACTS = Listing(
    ARTIFACT,
    {"created_at": ("created_at", "id"), "name": ("name", "id")},
    "-created_at",
    {
        "project": OF_PROJECTS,
        "name": WITH_NAMES,
        "job": Filter("job__name__in", query.texts("Of jobs with these names.")),
        "state": IN_STATES,
    },
)


class Artifacts(ApiView):
    """Artifacts of every project that the caller may see."""

    @ARTIFACTS.operation("List artifacts, newest first", "Artifact")
    def get(self, call: Call) -> Answer:
        return _listed(call, visible_artifacts(call.actor))


class JobArtifacts(ApiView):
    """The artifacts of a job, including those that are not stored yet."""

    @ARTIFACTS.operation("List what a job keeps of its output", "Artifact")
    def get(self, call: Call, job_id: str) -> Answer:
        return _listed(call, Artifact.objects.filter(job=job_for(call.actor, job_id)))


class ArtifactDetail(ApiView):
    """An artifact, by id. Deleting it leaves its content to the next garbage collection."""

    @operation("An artifact", answer=ref("Artifact"))
    def get(self, call: Call, artifact_id: str) -> Answer:
        artifact = artifact_for(call.actor, artifact_id)
        return Answer(artifact_shape(artifact), revision=_revision(artifact))

    @operation("Delete an artifact", answer=ref("Artifact"))
    def delete(self, call: Call, artifact_id: str) -> Answer:
        artifact = call.require_match(artifact_for(call.actor, artifact_id, needed=Role.OWNER), _revision)
        shown = artifact_shape(artifact)
        delete_artifact(artifact, actor=call.actor)
        return Answer(shown)


class ArtifactFiles(ApiView):
    """Entries of one directory of an artifact."""

    @operation("List a directory of an artifact", answer=LISTED, query=DIRECTORY)
    def get(self, call: Call, artifact_id: str) -> Answer:
        return listed_files(_manifest(artifact_for(call.actor, artifact_id)), call.query)


class ArtifactContent(ApiView):
    """The content of a file of an artifact, streamed."""

    @operation("Download a file of an artifact", answer=BINARY, gives=BYTES, query=file_of("artifact"))
    def get(self, call: Call, artifact_id: str) -> HttpResponseBase:
        artifact = artifact_for(call.actor, artifact_id)
        return file_response(artifact.project, entry_of(_manifest(artifact), call.query))


class ArtifactManifest(ApiView):
    """An artifact's encoded manifest: path, kind, size and SHA-256 of each file."""

    @operation("Download an artifact's manifest", answer=BINARY, gives=BYTES)
    def get(self, call: Call, artifact_id: str) -> HttpResponseBase:
        return HttpResponse(_manifest(artifact_for(call.actor, artifact_id)).encode(), content_type=BYTES)


class ArtifactPack(ApiView):
    """Contents of some of an artifact's files, as a pack."""

    @pack_operation("an artifact")
    def get(self, call: Call, artifact_id: str) -> HttpResponseBase:
        artifact = artifact_for(call.actor, artifact_id)
        return pack_response(artifact.project, _manifest(artifact), call.query)


class ArtifactArchive(ApiView):
    """All files of an artifact, as a tar archive."""

    @operation("Download an artifact as a tar archive", answer=BINARY, gives=TAR)
    def get(self, call: Call, artifact_id: str) -> HttpResponseBase:
        artifact = artifact_for(call.actor, artifact_id)
        response = StreamingHttpResponse(_archive(artifact, _manifest(artifact)), content_type=TAR)
        name = quote(f"{artifact.job.name}-{artifact.name}.tar")
        response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
        return response


def _revision(artifact: Artifact) -> Any:
    return [artifact.state]


def _listed(call: Call, rows: QuerySet[Artifact]) -> Answer:
    return paged(call, rows, ARTIFACTS, fetch=artifact_rows, shape=artifact_shapes)


def _manifest(artifact: Artifact) -> Manifest:
    """Return the manifest of an artifact. Raises Problem (409) if the artifact is not stored or the lake has lost
    it."""
    if artifact.state != Artifact.READY:
        detail = f"{artifact.name} is {artifact.state}. {artifact.message}".strip()
        raise Problem(409, "artifact_not_ready", detail)
    return stored_manifest(artifact.project, artifact.manifest)


def _archive(artifact: Artifact, manifest: Manifest) -> Iterator[bytes]:
    lake = lake_of(artifact.project)

    def pieces(entry: code_manifest.Entry) -> Iterator[bytes]:
        digest = bytes.fromhex(entry.sha256)
        return (lake.read(digest, at, PIECE_BYTES) for at in range(0, entry.size, PIECE_BYTES))

    entries = (
        code_manifest.Entry(
            os.fsdecode(one.path), _KINDS.get(one.kind, code_manifest.FILE), one.size_bytes, one.digest.hex()
        )
        for one in manifest.entries()
    )
    return write_archive(entries, pieces)
