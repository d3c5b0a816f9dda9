"""The navigation of every page. Apps declare their entries as `ENTRIES` in their module `navigation`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.access import Actor
from controlplane.registration import app_modules


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A link to a list. `count`: returns the number that the actor sees beside it, None for no number. `for_admins`:
    shown to admins only. Texts are marked by gettext_noop and translated when rendered."""

    # Name of the URL route, and key of the count in counts.json.
    name: str
    label: str
    # Position among the entries.
    place: int
    count: Callable[[Actor], int] | None = None
    # What the count counts, for screen readers.
    count_means: str = ""
    # The count's unit, if the label does not say it.
    count_unit: str = ""
    # Heading of the entry's group, shown above the first entry of the group.
    heading: str = ""
    for_admins: bool = False
    # What the command palette finds: (name, what it is, URL) of objects whose name contains a text, at most so many.
    find: Callable[[Actor, str, int], list[tuple[str, str, str]]] | None = None


@cache
def declared_entries() -> Sequence[NavigationEntry]:
    """Return the entries of all apps, sorted by `place`."""
    entries = [entry for module in app_modules("navigation") for entry in module.ENTRIES]
    return sorted(entries, key=lambda entry: entry.place)


def counts(actor: Actor) -> dict[str, int]:
    """Return the count of each entry that has one, as the actor may see it. One query each."""
    return {entry.name: entry.count(actor) for entry in shown_entries(actor) if entry.count is not None}


def navigation(request: HttpRequest, actor: Actor) -> list[dict[str, Any]]:
    """Return the entries that the actor may see, in the form that the page template needs."""
    numbers, shown = counts(actor), shown_entries(actor)
    above = ["", *(entry.heading for entry in shown)]
    return [
        {
            "url": reverse(entry.name),
            "label": _(entry.label),
            "count": numbers.get(entry.name),
            "count_name": entry.name,
            "count_means": _(entry.count_means) if entry.count_means else "",
            "count_unit": _(entry.count_unit) if entry.count_unit else "",
            "heading": _(entry.heading) if entry.heading != heading_above else "",
            "is_current": _is_at(request, entry.name),
        }
        for entry, heading_above in zip(shown, above, strict=False)
    ]


def shown_entries(actor: Actor) -> list[NavigationEntry]:
    """Return the entries that the actor may see, sorted by `place`."""
    return [entry for entry in declared_entries() if actor.is_admin or not entry.for_admins]


def _is_at(request: HttpRequest, name: str) -> bool:
    place = reverse(name)
    return request.path == place if place == "/" else request.path.startswith(place)
