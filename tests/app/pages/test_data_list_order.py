"""The lists of data: every column sorts in both directions, and the pages together hold every row once."""

from dataclasses import replace

import pytest

from controlplane.models import Cluster
from dashboards.lists.table import ListView, Page, list_page
from datasets.models import CacheLocation, Dataset, Volume
from datasets.pages.cache_location_lists import CACHE_LOCATIONS
from datasets.pages.lists import DATASETS
from datasets.pages.volume_lists import VOLUMES

pytestmark = pytest.mark.django_db

ROWS, SIZE = 7, 3
MODELS = {DATASETS.name: Dataset, VOLUMES.name: Volume, CACHE_LOCATIONS.name: CacheLocation}
SORTS = [
    pytest.param(view, direction + column.key, id=f"{view.name}-{direction}{column.key}")
    for view in (DATASETS, VOLUMES, CACHE_LOCATIONS)
    for column in view.columns
    if column.sort is not None
    for direction in ("", "-")
]


@pytest.fixture
def rows(cast) -> None:
    """As many of each, with equal values and nulls in most columns."""
    made = {"project": cast.project, "created_by": "ana"}
    kind = {"storage_class": "standard", "service_tier": "standard", "state": "ready"}
    cluster = Cluster.objects.get()
    for at in range(ROWS):
        Dataset.objects.create(name=f"data-{at}", is_shared=at % 2 == 0, **made)
        used = None if at % 3 == 0 else at % 2
        Volume.objects.create(name=f"volume-{at}", size_bytes=1, used_bytes=used, **kind, **made)
        CacheLocation.objects.create(
            name=f"at-{at}", cluster=cluster, is_default=False, unused_days=1 + at % 2
        )


def keys_of(page: Page) -> list[str]:
    return [str(row["key"]) for row, _cells in page.table.rows]


@pytest.mark.parametrize(("view", "sort"), SORTS)
def test_the_pages_hold_every_row_once_and_lead_back(cast, rows, view: ListView, sort: str):
    small = replace(view, size=SIZE)

    def read(**cursor: str) -> Page:
        return list_page(small, cast.actor("root"), MODELS[view.name].objects.all(), {"sort": sort} | cursor)

    pages = [read()]
    while (cursor := pages[-1].after) is not None:
        pages.append(read(after=cursor))
    found = [key for page in pages for key in keys_of(page)]
    assert len(found) == len(set(found)) == ROWS
    assert keys_of(read(before=pages[1].before or "")) == keys_of(pages[0])
