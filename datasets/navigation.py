"""Navigation entries of the pages of data."""

from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.access import Actor
from dashboards.pages.navigation import NavigationEntry
from datasets.access import visible_datasets, visible_volumes


def _datasets(actor: Actor) -> int:
    return visible_datasets(actor).count()


def _volumes(actor: Actor) -> int:
    return visible_volumes(actor).count()


def _find_datasets(actor: Actor, text: str, most: int) -> list[tuple[str, str, str]]:
    return _found(visible_datasets(actor), text, most, _("{project} · dataset"), "dataset-page")


def _find_volumes(actor: Actor, text: str, most: int) -> list[tuple[str, str, str]]:
    return _found(visible_volumes(actor), text, most, _("{project} · volume"), "volume")


def _found(rows: QuerySet[Any], text: str, most: int, words: str, page: str) -> list[tuple[str, str, str]]:
    named = rows.filter(name__icontains=text).order_by("name").values_list("name", "project__name", "pk")
    return [
        (name, words.format(project=project), reverse(page, args=[pk])) for name, project, pk in named[:most]
    ]


DATA = gettext_noop("Data")
ENTRIES = (
    NavigationEntry(
        "dataset-list",
        gettext_noop("Datasets"),
        70,
        _datasets,
        gettext_noop("datasets that you may see"),
        heading=DATA,
        find=_find_datasets,
    ),
    NavigationEntry(
        "volumes",
        gettext_noop("Volumes"),
        72,
        _volumes,
        gettext_noop("volumes that you may see"),
        heading=DATA,
        find=_find_volumes,
    ),
    # Without a count, which is a query of every page, and there are few.
    NavigationEntry("cache-locations", gettext_noop("Cache locations"), 74, heading=DATA),
)
