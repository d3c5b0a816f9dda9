"""The list of cache locations."""

from collections.abc import Sequence
from typing import Any

from django.db.models import Count, F, Q, Sum
from django.db.models.expressions import Combinable
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor
from dashboards import formats
from dashboards.lists import cells
from dashboards.lists.columns import number_column
from dashboards.lists.filters import NAME_CONTAINS
from dashboards.lists.table import Column, ListView, Row, counted, in_order
from dashboards.templatetags.ui import meter
from datasets.models import Cache, CacheLocation
from datasets.queries.caches import holds_caches, location_shapes, with_relations

# The committed part of a location's size limit from which its bar is coloured: near the limit, fills wait until other
# caches are removed.
NEARLY_FULL = 0.9


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    locations = in_order(with_relations(CacheLocation.objects.all()), pks)
    return [
        row | {"key": row["name"], "is_admin": actor.is_admin, "holds": holds_caches(one)}
        for one, row in zip(locations, location_shapes(locations), strict=True)
    ]


def _name(row: Row) -> str:
    if not row["is_admin"]:
        return format_html("<b>{}</b>", row["name"])
    return cells.link(reverse("cache-location-edit", args=[row["name"]]), row["name"])


def _nodes(row: Row) -> str:
    """Return the nodes that read from the location, as text."""
    if row["project"] is not None:
        words = (
            gettext("volume of {project} for {location}") if row["parent"] else gettext("volume of {project}")
        )
        return words.format(project=row["project"], location=row["parent"])
    pools = ", ".join(row["node_pools"])
    labels = ", ".join(f"{name}={value}" for name, value in row["node_labels"].items())
    shown = [gettext("pool {names}").format(names=pools)] if pools else []
    return "; ".join([*shown, labels] if labels else shown) or gettext("all that no other location has")


def _room(row: Row) -> str:
    """Return the committed part of the location's size limit as HTML: a bar with both numbers. For a location of
    volumes, return the size of each project's volume as text."""
    if not row["holds"]:
        return gettext("{size} for each project").format(size=formats.size(row["room_bytes"]))
    committed, room = row["committed_bytes"], row["room_bytes"]
    total = committed + row["free_bytes"] if room is None else room
    share = committed / total if total else 0.0
    text = cells.of_total(formats.size(committed), formats.size(total))
    return format_html("{} {}", text, meter(share, "warning" if share > NEARLY_FULL else ""))


def _committed() -> Combinable:
    """Return an expression for `committed_bytes` of location_shapes, to sort by."""
    is_filling = Q(caches__state=Cache.FILLING)
    return F("used_bytes") + Sum("caches__reserved_bytes", filter=is_filling, default=0)


def _age_out(row: Row) -> str:
    days: int = row["unused_days"]
    return ngettext("{count} day unused", "{count} days unused", days).format(count=formats.number(days))


CACHE_LOCATIONS = ListView(
    name="cache-locations",
    rows=_rows,
    summary=counted(
        ngettext_lazy("{count} location, holding {used}", "{count} locations, holding {used}"),
        used=("used_bytes", formats.size),
    ),
    live="caches",
    empty="datasets/empty/cache_locations.html",
    filters=(NAME_CONTAINS,),
    columns=(
        Column("name", _("Location"), _name, "name"),
        Column("cluster", _("Cluster"), cells.text("cluster"), "cluster__name", "quiet"),
        Column("nodes", _("Nodes"), lambda row: format_html("{}", _nodes(row))),
        Column("room", _("Committed"), _room, lambda at: _committed(), "num", falls=True),
        Column("fits", _("More fits"), lambda row: formats.size(row["free_bytes"]), css="num nowrap"),
        Column("age", _("Removed after"), _age_out, "unused_days", "num nowrap", falls=True),
        number_column("caches", _("Caches"), "caches", lambda at: Count("caches")),
        number_column(
            "hits", _("Hits"), "hits", lambda at: Sum("caches__hits"), "num aside", is_nullable=True
        ),
    ),
)
