"""REST views of lineage: the inputs of an object, and what was made from it."""

from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from datasets.access import artifact_for, snapshot_for, version_for, visible_datasets
from datasets.models import Artifact, DatasetVersion, Snapshot
from datasets.queries.lineage import lineage_of, lineage_shape
from jobs.access import job_for, visible_jobs
from jobs.models import Job


class ArtifactLineage(ApiView):
    """What an artifact was made from."""

    @operation("What went into an artifact", answer=ref("Lineage"))
    def get(self, call: Call, artifact_id: str) -> Answer:
        return _answer(call, artifact_for(call.actor, artifact_id))


class JobLineage(ApiView):
    """Inputs and outputs of a job."""

    @operation("What went into a job, and what was made of it", answer=ref("Lineage"))
    def get(self, call: Call, job_id: str) -> Answer:
        return _answer(call, job_for(call.actor, job_id))


class VersionLineage(ApiView):
    """What was made from a version."""

    @operation("What a version of a dataset came from, and what was made of it", answer=ref("Lineage"))
    def get(self, call: Call, version_id: str) -> Answer:
        return _answer(call, version_for(call.actor, version_id))


class SnapshotLineage(ApiView):
    """What a snapshot was made from, and which jobs read it."""

    @operation("What went into a snapshot, and what was made of it", answer=ref("Lineage"))
    def get(self, call: Call, snapshot_id: str) -> Answer:
        return _answer(call, snapshot_for(call.actor, snapshot_id))


def _answer(call: Call, row: Artifact | Job | DatasetVersion | Snapshot) -> Answer:
    return Answer(lineage_shape(lineage_of(row, visible_jobs(call.actor), visible_datasets(call.actor))))
