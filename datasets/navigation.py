"""Navigation entries of the pages of data."""

from django.utils.translation import gettext_noop

from controlplane.access import Actor
from dashboards.pages.navigation import NavigationEntry
from datasets.access import visible_datasets, visible_volumes


def _datasets(actor: Actor) -> int:
    return visible_datasets(actor).count()


def _volumes(actor: Actor) -> int:
    return visible_volumes(actor).count()


DATA = gettext_noop("Data")
ENTRIES = (
    NavigationEntry(
        "dataset-list",
        gettext_noop("Datasets"),
        70,
        _datasets,
        gettext_noop("datasets that you may see"),
        heading=DATA,
    ),
    NavigationEntry(
        "volumes",
        gettext_noop("Volumes"),
        72,
        _volumes,
        gettext_noop("volumes that you may see"),
        heading=DATA,
    ),
    # Without a count, which is a query of every page, and there are few.
    NavigationEntry("cache-locations", gettext_noop("Cache locations"), 74, heading=DATA),
)
