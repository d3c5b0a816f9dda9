"""Template tags that format sizes and caches."""

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_noop

from dashboards import formats
from datasets.models import Cache

register = template.Library()
LOOKS = {
    Cache.QUEUED: (gettext_noop("Queued"), "warning"),
    Cache.FILLING: (gettext_noop("Filling"), "accent"),
    Cache.READY: (gettext_noop("Ready"), "good"),
    Cache.FAILED: (gettext_noop("Failed"), "bad"),
    Cache.EVICTING: (gettext_noop("Being removed"), "second"),
}


register.filter("size", formats.size)


@register.simple_tag
def cache_badge(state: str) -> SafeString:
    """Return the coloured badge of a cache's state, as HTML."""
    label, colour = LOOKS[state]
    return format_html('<span class="badge {}">{}</span>', colour, gettext(label))


@register.filter
def done_share(progress: dict[str, Any]) -> float:
    """Return the share of a version's bytes that are copied, 0 to 1."""
    total: int = progress["total_bytes"]
    return 1.0 if not total else float(progress["bytes"]) / total
