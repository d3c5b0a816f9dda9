"""Access to datasets, volumes, snapshots, artifacts and caches: members of the owning project by their role;
shared datasets are readable by every signed-in user."""

from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from controlplane.access import (
    Actor,
    Forbidden,
    NotVisible,
    require_held,
    role_in,
    uuid_of,
    visible_project_ids,
)
from controlplane.models import Role
from datasets.models import Artifact, Cache, CacheLocation, Dataset, DatasetVersion, Snapshot, Volume

H = TypeVar("H", Volume, Snapshot, Artifact)
R = TypeVar("R", bound=Model)
_NO_OTHERS = Q()


def visible_datasets(actor: Actor) -> QuerySet[Dataset]:
    """Return the datasets that the actor may read: shared ones and those of the actor's projects; all for an
    admin."""
    return _in_visible_projects(actor, Dataset.objects.all(), Q(is_shared=True))


def dataset_for(actor: Actor, dataset_id: str, *, needed: str = Role.VIEWER) -> Dataset:
    """Return a dataset by id, with its project. Raises NotVisible for a malformed id and if there is none that the
    actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such dataset that you can see.")
    dataset = Dataset.objects.select_related("project").filter(pk=uuid_of(dataset_id, missing)).first()
    if dataset is None:
        raise missing
    require_role(actor, dataset, needed, missing)
    return dataset


def version_for(actor: Actor, version_id: str, *, needed: str = Role.VIEWER) -> DatasetVersion:
    """Return a version by id, with its dataset and project. Raises NotVisible for a malformed id and if there is
    none that the actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such version that you can see.")
    rows = DatasetVersion.objects.select_related("dataset__project", "parent")
    version = rows.filter(pk=uuid_of(version_id, missing)).first()
    if version is None:
        raise missing
    require_role(actor, version.dataset, needed, missing)
    return version


def visible_volumes(actor: Actor) -> QuerySet[Volume]:
    """Return the volumes of the projects that the actor may see."""
    return _in_visible_projects(actor, Volume.objects.all())


def visible_snapshots(actor: Actor) -> QuerySet[Snapshot]:
    """Return the snapshots of the projects that the actor may see."""
    return _in_visible_projects(actor, Snapshot.objects.all())


def volume_for(actor: Actor, volume_id: str, *, needed: str = Role.VIEWER) -> Volume:
    """Return a volume by id, with its project. Raises NotVisible for a malformed id and if there is none that the
    actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such volume that you can see.")
    rows = visible_volumes(actor).select_related("project__cluster")
    return _held(actor, rows.filter(pk=uuid_of(volume_id, missing)).first(), needed, missing)


def snapshot_for(actor: Actor, snapshot_id: str, *, needed: str = Role.VIEWER) -> Snapshot:
    """Return a snapshot by id, with its project. Raises NotVisible for a malformed id and if there is none that the
    actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such snapshot that you can see.")
    rows = visible_snapshots(actor).select_related("project__cluster", "volume")
    return _held(actor, rows.filter(pk=uuid_of(snapshot_id, missing)).first(), needed, missing)


def _in_visible_projects(actor: Actor, rows: QuerySet[R], others: Q = _NO_OTHERS) -> QuerySet[R]:
    ids = visible_project_ids(actor)
    return rows if ids is None else rows.filter(Q(project__in=ids) | others)


def _held(actor: Actor, row: H | None, needed: str, missing: NotVisible) -> H:
    """Return `row` if the actor has the role `needed` in its project. Raises `missing` if the row is None or not
    visible, Forbidden if the actor has only a lower role."""
    if row is None:
        raise missing
    require_held(actor, row.project, role_in(actor, row.project), needed, missing)
    return row


def visible_artifacts(actor: Actor) -> QuerySet[Artifact]:
    """Return the artifacts of the projects the actor may see."""
    return _in_visible_projects(actor, Artifact.objects.all())


def artifact_for(actor: Actor, artifact_id: str, *, needed: str = Role.VIEWER) -> Artifact:
    """Return an artifact by id, with its project and job. Raises NotVisible for a malformed id and if there is
    none that the actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such artifact that you can see.")
    rows = visible_artifacts(actor).select_related("project__cluster", "job")
    return _held(actor, rows.filter(pk=uuid_of(artifact_id, missing)).first(), needed, missing)


def visible_caches(actor: Actor) -> QuerySet[Cache]:
    """Return the caches of datasets that the actor may read."""
    return Cache.objects.filter(version__dataset__in=visible_datasets(actor))


def visible_locations(actor: Actor) -> QuerySet[CacheLocation]:
    """Return the cache locations that the actor may see: those without a project, and those of visible
    projects."""
    return _in_visible_projects(actor, CacheLocation.objects.all(), Q(project=None))


def cache_for(actor: Actor, cache_id: str, *, needed: str = Role.VIEWER) -> Cache:
    """Return a cache by id, with its version, dataset, project and location. Raises NotVisible for a malformed id
    and if there is none that the actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such cache that you can see.")
    rows = Cache.objects.select_related("version__dataset__project", "location__cluster", "location__project")
    cache = rows.filter(pk=uuid_of(cache_id, missing)).first()
    if cache is None:
        raise missing
    require_role(actor, cache.version.dataset, needed, missing)
    return cache


def require_role(actor: Actor, dataset: Dataset, needed: str, missing: NotVisible) -> None:
    """Raise `missing` if the actor may not read the dataset, Forbidden if the actor has a lower role than
    `needed`. Every user has the role viewer for a shared dataset."""
    held = role_in(actor, dataset.project)
    if held is None and dataset.is_shared:
        if needed == Role.VIEWER:
            return
        where = f"This needs the role {needed} in its project {dataset.project.name}"
        raise Forbidden(f"{dataset.name} is shared for reading. {where}, of which you are not a member.")
    require_held(actor, dataset.project, held, needed, missing)
