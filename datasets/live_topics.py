"""Live topics of data: a dataset with its newest version and caches; a volume with its snapshots."""

from controlplane.live.registry import Reading, TopicKind, Touch, parse_id
from datasets.models import Cache, Dataset
from datasets.queries.caches import cache_rows, cache_shapes
from datasets.queries.datasets import dataset_shape
from datasets.volume_topics import VOLUME


def read_dataset(dataset_id: str, _project_id: int) -> Reading | None:
    """Return the topic's state of a dataset with its newest version and caches; None if it does not exist."""
    dataset = Dataset.objects.select_related("project").filter(pk=dataset_id).first()
    if dataset is None:
        return None
    caches = cache_shapes(cache_rows(Cache.objects.filter(version__dataset=dataset).order_by("created_at")))
    return Reading(
        {"dataset": {dataset_id: dataset_shape(dataset)}, "caches": {each["id"]: each for each in caches}}
    )


def _project_of(dataset_id: str) -> int | None:
    return Dataset.objects.filter(pk=dataset_id).values_list("project_id", flat=True).first()


def _is_touched(touch: Touch) -> bool:
    return bool(touch.event.data.get("dataset") == touch.subject)


TOPICS = (TopicKind("dataset", parse_id, _project_of, read_dataset, _is_touched), VOLUME)
