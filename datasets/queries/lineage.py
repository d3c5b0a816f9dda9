"""Read the lineage of an artifact, job, version or snapshot from rows that the reader may see."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, Q, QuerySet

from controlplane.models import Project
from datasets.lineage import (
    ARTIFACT,
    LOCK_FILES,
    RUN,
    SNAPSHOT,
    VERSION,
    VOLUME,
    Builder,
    Graph,
    Node,
    ingredients,
    node,
    parameters,
)
from datasets.models import Artifact, Dataset, DatasetUse, DatasetVersion, Snapshot, Volume, VolumeUse
from datasets.queries.code import code_of, digest_of
from jobs.models import Job

# Limits: runs of one graph, steps from run to run through snapshots, older versions, and newest snapshots of a run.
RUNS_MOST, ROUNDS_MOST, PARENTS_MOST, SNAPSHOTS_MOST = 40, 4, 5, 20
# Attribute of the loaded jobs.
NEWEST_SNAPSHOTS = "newest_snapshots"
HIDDEN_DATASET = "a dataset of another project"

Jobs = QuerySet[Job]
Datasets = QuerySet[Dataset]


def lineage_of(row: Artifact | Job | DatasetVersion | Snapshot, jobs: Jobs, datasets: Datasets) -> Graph:
    """Return the inputs of a row and what was made from it. `jobs`, `datasets`: those that the reader may
    see; the graph contains nothing else."""
    builder, start = Builder(), _start(row)
    builder.add(start)
    if isinstance(row, DatasetVersion):
        _add_parents(builder, row)
    runs, is_cut = _runs(_first(row, jobs), jobs)
    seen = _seen(datasets, [use.version for job in runs for use in job.dataset_uses.all()])
    for job in runs:
        _add_run(builder, job, seen)
    _add_older_snapshots(builder, runs, row)
    _add_origins(builder, runs)
    graph = builder.graph(start.key)
    has_older = any(len(_newest_snapshots(job)) > SNAPSHOTS_MOST for job in runs)
    return replace(graph, is_cut=graph.is_cut or is_cut or has_older)


def lineage_shape(graph: Graph) -> dict[str, Any]:
    """Return a graph in REST form."""
    return {
        "start": graph.start,
        "nodes": [
            {
                "key": one.key,
                "kind": one.kind,
                "id": one.id or None,
                "name": one.name,
                "project": one.project or None,
                "identity": one.identity or None,
                "detail": one.detail,
            }
            for one in graph.nodes
        ],
        "edges": [
            {"source": one.source, "target": one.target, "identity": one.identity or None, "role": one.role}
            for one in graph.edges
        ],
        "is_cut": graph.is_cut,
    }


def _start(row: Artifact | Job | DatasetVersion | Snapshot) -> Node:
    if isinstance(row, Artifact):
        return _artifact(row)
    if isinstance(row, Job):
        return _run(row)
    return _version(row) if isinstance(row, DatasetVersion) else _snapshot(row)


def _first(row: Artifact | Job | DatasetVersion | Snapshot, jobs: Jobs) -> list[Any]:
    """Return the ids of the jobs directly connected to a row, newest first; at most RUNS_MOST + 1."""
    if isinstance(row, Artifact):
        return [row.job_id]
    if isinstance(row, Job):
        return [row.pk]
    if isinstance(row, DatasetVersion):
        of_subsets = Q(version__parent=row) & ~Q(version__subset="")
        uses = DatasetUse.objects.filter(Q(version=row) | of_subsets, job__in=jobs)
        uses = uses.order_by("-job__submit_rank")
        return list(uses.values_list("job_id", flat=True)[: RUNS_MOST + 1])
    return [row.job_id, *_readers([str(row.pk)])] if row.job_id else list(_readers([str(row.pk)]))


def _readers(snapshots: Collection[str]) -> list[Any]:
    """Return the ids of the jobs that mount volumes created from these snapshots, newest first; at most RUNS_MOST
    + 1."""
    made = Volume.objects.filter(origin__kind=SNAPSHOT, origin__id__in=list(snapshots))
    uses = VolumeUse.objects.filter(volume__in=made).order_by("-job__submit_rank")
    return list(uses.values_list("job_id", flat=True)[: RUNS_MOST + 1])


def _runs(first: Sequence[Any], jobs: Jobs) -> tuple[list[Job], bool]:
    """Return the runs connected with the first ones through snapshots, loaded for `_add_run`, and whether
    there are more than RUNS_MOST."""
    known, fresh = dict.fromkeys(first), list(first)
    for _ in range(ROUNDS_MOST):
        # Runs may be connected in a cycle.
        fresh = [key for key in _next_to(fresh) if key not in known]
        known.update(dict.fromkeys(fresh))
        if not fresh or len(known) > RUNS_MOST:
            break
    rows = jobs.filter(pk__in=list(known)[:RUNS_MOST]).select_related("project")
    uses = Prefetch("volume_uses", VolumeUse.objects.select_related("volume").order_by("pk"))
    mounted = DatasetUse.objects.select_related("version__dataset__project", "version__parent")
    reads = Prefetch("dataset_uses", mounted.order_by("pk"))
    kept = Prefetch("artifacts", Artifact.objects.filter(state=Artifact.READY).order_by("name"))
    newest = Snapshot.objects.order_by("-created_at", "-number").prefetch_related("cause_rows")
    taken = Prefetch("snapshots", newest[: SNAPSHOTS_MOST + 1], to_attr=NEWEST_SNAPSHOTS)
    found = list(rows.prefetch_related(uses, reads, kept, taken).order_by("submit_rank"))
    return found, len(known) > RUNS_MOST


def _next_to(jobs: Sequence[Any]) -> Iterator[Any]:
    """Yield the ids of the jobs whose snapshots these jobs read, then of those that read these jobs' snapshots, also
    where the snapshots are deleted."""
    origins = Volume.objects.filter(uses__job__in=jobs, origin__kind=SNAPSHOT).values_list(
        "origin", flat=True
    )
    read = list(origins)
    yield from (UUID(origin["job_id"]) for origin in read if origin.get("job_id"))
    # Volumes that were restored by earlier versions do not record the job.
    sources = Snapshot.objects.filter(pk__in=[origin["id"] for origin in read], job__isnull=False)
    yield from sources.values_list("job_id", flat=True)
    taken = Snapshot.objects.filter(job__in=jobs).values_list("pk", flat=True)
    of_jobs = Q(origin__job_id__in=list(map(str, jobs))) | Q(origin__id__in=list(map(str, taken)))
    uses = VolumeUse.objects.filter(volume__in=Volume.objects.filter(of_jobs, origin__kind=SNAPSHOT))
    yield from uses.order_by("-job__submit_rank").values_list("job_id", flat=True)[: RUNS_MOST + 1]


def _add_run(builder: Builder, job: Job, seen: Collection[Any]) -> None:
    run = _run(job)
    for found, role in ingredients(str(job.pk), job.spec, _hash(parameters(job.spec)), _locks(job)):
        builder.link(found, run, role)
    for use in job.dataset_uses.all():
        read = builder.add(_read(use, seen))
        builder.link(read, run, use.mount_path)
        _add_whole(builder, use.version, read)
    for mount in job.volume_uses.all():
        _add_volume(builder, mount, run)
    for artifact in job.artifacts.all():
        builder.link(run, _artifact(artifact), artifact.path)
    # Newest first in the rows, oldest first in the graph.
    for snapshot in reversed(_newest_snapshots(job)[:SNAPSHOTS_MOST]):
        builder.link(run, _snapshot(snapshot), ",".join(snapshot.causes))


def _add_whole(builder: Builder, subset: DatasetVersion | None, read: Node) -> None:
    """Link the node `read` of a subset to the version that it is a part of, if the reader may see it."""
    if subset is None or not subset.subset or subset.parent is None or not read.id:
        return
    subset.parent.dataset = subset.dataset
    builder.link(_version(subset.parent), read, "subset")


def _newest_snapshots(job: Job) -> list[Snapshot]:
    """Return the newest snapshots of a job that `_runs` loaded, at most SNAPSHOTS_MOST + 1."""
    found: list[Snapshot] = vars(job)[NEWEST_SNAPSHOTS]
    return found


def _add_older_snapshots(builder: Builder, runs: Sequence[Job], row: object) -> None:
    """Link the runs to the snapshots that the graph needs though newer ones of the run have taken the room: `row`, and
    those from which volumes of the runs were restored."""
    origins = [mount.volume.origin for job in runs for mount in job.volume_uses.all()]
    needed = {origin["id"] for origin in origins if origin.get("kind") == SNAPSHOT}
    if isinstance(row, Snapshot):
        needed.add(str(row.pk))
    known: dict[UUID | None, Job] = {job.pk: job for job in runs}
    needed -= {str(one.pk) for job in runs for one in _newest_snapshots(job)[:SNAPSHOTS_MOST]}
    rows = Snapshot.objects.filter(pk__in=needed, job__in=runs).prefetch_related("cause_rows")
    for snapshot in rows.order_by("created_at", "number") if needed else ():
        builder.link(_run(known[snapshot.job_id]), _snapshot(snapshot), ",".join(snapshot.causes))


def _add_volume(builder: Builder, mount: VolumeUse, run: Node) -> None:
    volume = mount.volume
    shown = node(VOLUME, str(volume.pk), volume.name, detail="its files may change", project=run.project)
    builder.link(shown, run, mount.mount_path)


def _add_origins(builder: Builder, runs: Sequence[Job]) -> None:
    """Add the snapshots from which the runs' volumes were restored. A deleted one has no page, and is linked to its job
    by what its volume recorded."""
    restored = {
        str(mount.volume_id): (mount.volume.origin, job.project.name)
        for job in runs
        for mount in job.volume_uses.all()
        if mount.volume.origin.get("kind") == SNAPSHOT
    }
    origins = [origin["id"] for origin, _ in restored.values()]
    alive = set(map(str, Snapshot.objects.filter(pk__in=origins).values_list("pk", flat=True)))
    known = {str(job.pk): job for job in runs}
    for volume, (origin, project) in restored.items():
        identity = f"snapshot:{origin['id']}"
        source = node(SNAPSHOT, origin["id"], origin["name"], identity=identity, project=project)
        if origin["id"] not in alive:
            source = replace(source, id="", detail="deleted since")
            if job := known.get(str(origin.get("job_id"))):
                builder.link(_run(job), source)
        builder.link(source, builder.nodes[f"{VOLUME}:{volume}"], "restored")


def _add_parents(builder: Builder, version: DatasetVersion) -> None:
    rows = DatasetVersion.objects.whole().filter(dataset=version.dataset_id, number__lte=version.number)
    # One query over a range: parents have close numbers, but not always the next one.
    known = {one.pk: one for one in rows.order_by("-number")[: 4 * PARENTS_MOST]}
    child = version
    for _ in range(PARENTS_MOST):
        parent = known.get(child.parent_id) if child.parent_id else None
        if parent is None:
            return
        parent.dataset = version.dataset
        builder.link(_version(parent), _version(child), "subset" if child.subset else "parent")
        child = parent


def _seen(datasets: Datasets, versions: Iterable[DatasetVersion | None]) -> set[Any]:
    ids = {one.dataset_id for one in versions if one is not None}
    return set(datasets.filter(pk__in=ids).values_list("pk", flat=True)) if ids else set()


def _read(use: DatasetUse, seen: Collection[Any]) -> Node:
    if use.version is not None and use.version.dataset_id in seen:
        return _version(use.version)
    is_gone = use.version is None
    name = str(use) if is_gone and "/" not in use.dataset_name else HIDDEN_DATASET
    found = node(VERSION, f"use-{use.pk}", name, detail="deleted since" if is_gone else "")
    return replace(found, id="")


def _run(job: Job) -> Node:
    return node(RUN, str(job.pk), job.name, detail=job.state, project=job.project.name)


def _artifact(artifact: Artifact) -> Node:
    identity = f"sha256:{artifact.manifest}" if artifact.manifest else ""
    return node(ARTIFACT, str(artifact.pk), artifact.name, identity=identity)


def _snapshot(snapshot: Snapshot) -> Node:
    return node(SNAPSHOT, str(snapshot.pk), str(snapshot), identity=f"snapshot:{snapshot.pk}")


def _version(version: DatasetVersion) -> Node:
    return node(
        VERSION,
        str(version.pk),
        str(version),
        identity=f"sha256:{version.manifest}",
        project=version.dataset.project.name,
    )


def _locks(job: Job) -> list[tuple[str, str]]:
    """Return (path, SHA-256) of the lock files at the top level of a job's code; [] without code."""
    code = job.spec.get("code")
    return _locks_in(job.project, code["tree"]) if code else []


def _locks_in(project: Project, tree: str) -> list[tuple[str, str]]:
    digest = digest_of(tree)
    try:
        entries = code_of(project).entries(digest) if digest else ()
    except OSError:
        # The tree was removed since.
        return []
    return [(one.path, one.sha256) for one in entries if one.path in LOCK_FILES]


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
