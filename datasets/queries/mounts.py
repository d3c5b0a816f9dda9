"""Decide which versions jobs of a project may mount, and the errors for others."""

from collections.abc import Iterable, Mapping

from django.db.models import Q, QuerySet

from controlplane.fields import FieldError
from controlplane.models import Project
from datasets.models import Dataset, DatasetVersion
from datasets.queries.datasets import NAMED, find_version, subset_rows, unknown_subset, unknown_version


def mountable(project: Project) -> QuerySet[Dataset]:
    """Return the datasets that jobs of a project may mount: its own, and shared ones."""
    return Dataset.objects.filter(Q(project=project) | Q(is_shared=True)).select_related("project")


def mountable_versions(
    project: Project, names: Iterable[tuple[str, str, str]]
) -> Mapping[tuple[str, str, str], DatasetVersion | FieldError]:
    """Return, by (dataset, version, subset) as in `names`, the version that jobs of the project mount, or an
    error. The error's pointer is relative to the mount."""
    return {asked: _find(project, *asked) for asked in sorted(names)}


def _find(project: Project, name: str, version: str, subset: str) -> DatasetVersion | FieldError:
    owner, _, plain = name.rpartition("/")
    rows = mountable(project).filter(project__name=owner or project.name, name=plain)
    dataset = rows.first()
    if dataset is None:
        return FieldError(
            "/dataset",
            "dataset_unknown",
            f"Jobs of {project.name} can mount no dataset {name}. {_known(project)}",
        )
    if not dataset.latest:
        detail = f"{name} has no version yet; create one with: yard dataset sync DIR --name {plain}"
        return FieldError("/version", "dataset_version_unknown", detail)
    found = find_version(dataset, version)
    if found is None:
        return FieldError("/version", "dataset_version_unknown", unknown_version(dataset, version))
    if not subset:
        return found
    return subset_rows(found).filter(subset=subset).first() or FieldError(
        "/subset", "dataset_subset_unknown", unknown_subset(found, subset)
    )


def _known(project: Project) -> str:
    own = list(
        Dataset.objects.filter(project=project).order_by("name").values_list("name", flat=True)[: NAMED + 1]
    )
    shared = Dataset.objects.filter(is_shared=True).exclude(project=project).order_by("project__name", "name")
    names = own + [f"{owner}/{name}" for owner, name in shared.values_list("project__name", "name")[:NAMED]]
    if not names:
        return "It has none; create one with: yard dataset init NAME DIR"
    more = ", ..." if len(names) > NAMED else ""
    return f"There are: {', '.join(names[:NAMED])}{more}."
