"""Template tags that format sizes and caches."""

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_noop

from controlplane.unsafe_text import visible
from dashboards import formats
from datasets.models import Cache
from datasets.storage.contents import Sharing

register = template.Library()
LOOKS = {
    Cache.QUEUED: (gettext_noop("Queued"), "warning"),
    Cache.FILLING: (gettext_noop("Filling"), "accent"),
    Cache.READY: (gettext_noop("Ready"), "good"),
    Cache.FAILED: (gettext_noop("Failed"), "bad"),
    Cache.EVICTING: (gettext_noop("Being removed"), "second"),
}
SHARING = {
    Sharing.REFLINK: gettext_noop("shared by reflink"),
    Sharing.HARD_LINK: gettext_noop("shared by hard link"),
    Sharing.COPY: gettext_noop("copied"),
}


register.filter("size", formats.size)
register.filter("visible", visible)


@register.simple_tag
def cache_badge(state: str) -> SafeString:
    """Return the coloured badge of a cache's state, as HTML."""
    label, colour = LOOKS[state]
    return format_html('<span class="badge {}">{}</span>', colour, gettext(label))


@register.filter
def sharing_words(sharing: str | None) -> str:
    """Return how a cache got its files from the lake, as text; "" before the first file. `sharing`: the value of
    a Sharing."""
    return gettext(SHARING[Sharing(sharing)]) if sharing else ""


@register.filter
def done_share(progress: dict[str, Any]) -> float:
    """Return the share of a version's bytes that are copied, 0 to 1. `progress`: the cache's in REST form."""
    total: int = progress["total_bytes"]
    return 1.0 if not total else float(progress["bytes"]) / total
