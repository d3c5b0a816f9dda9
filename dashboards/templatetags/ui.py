"""Template tags and filters that format values: numbers, times, badges, bars."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from django import template
from django.template.base import Variable
from django.template.context import RequestContext
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, json_script
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from dashboards import formats
from dashboards.gpu_use import LOOKS as USE_LOOKS
from dashboards.gpu_use import SAID_ALOUD, use_of
from dashboards.pages.js_messages import words_of
from jobs.kinds.registry import KINDS
from jobs.lifecycle import LOOKS

register = template.Library()

register.filter("number", formats.number)
register.filter("measured", formats.measured)
register.filter("percent", formats.percent)
register.filter("mebibytes", formats.mebibytes)
register.filter("binary_size", formats.binary_size)
register.filter("duration", formats.duration)
register.filter("figure", formats.figure)
register.filter("fraction", formats.fraction)


@register.filter
def gpus(milli: int | None) -> str:
    """Format milli-GPUs as GPUs: 1500 -> "1.5"; a dash for None."""
    return formats.NOTHING if milli is None else formats.number(milli / 1000)


@register.filter
def get(mapping: Any, key: str) -> Any:
    """Return a mapping's value by key, None if the key or the mapping is missing; templates cannot index by a
    variable."""
    return mapping.get(key) if mapping else None


@register.filter
def refusal(errors: dict[str, str], member: str) -> str:
    """Return why the role of `member` was not changed, from the page's errors; "" if there was no error."""
    return errors.get(f"role of {member}", "")


@register.filter
def indented(value: Any) -> str:
    """Format a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@register.simple_tag
def words(part: str) -> SafeString:
    """Return the texts of scripts that only some pages have, for say() in static/js/dom.js. `part`: see words_of."""
    return json_script(words_of(part), f"words-{part}")


@register.simple_tag
def since(moment: datetime | str | None, style: str = "") -> SafeString | str:
    """Return the time since a moment, updated in the browser, with the absolute time on hover; a dash for None.
    `style`: "ago" for "3 m ago", "until" for "in 3 m", "" for a duration."""
    at = parse_datetime(moment) if isinstance(moment, str) else moment
    if at is None:
        return formats.NOTHING
    seconds = (timezone.now() - at).total_seconds()
    if style == "until":
        text = formats.until(-seconds)
    else:
        text = formats.ago(seconds) if style == "ago" else formats.duration(seconds)
    iso = at.isoformat().replace("+00:00", "Z")
    return format_html('<time datetime="{}" data-since="{}">{}</time>', iso, style, text)


@register.simple_tag
def moment(at: datetime | None) -> SafeString | str:
    """Return an absolute time as HTML, a dash for None; the browser converts it to the user's time zone and
    language."""
    if at is None:
        return formats.NOTHING
    iso = at.isoformat().replace("+00:00", "Z")
    return format_html('<time datetime="{}" data-absolute>{}</time>', iso, at.strftime("%Y-%m-%d %H:%M UTC"))


@register.simple_tag
def badge(state: str) -> SafeString:
    """Return the badge of a job's state, with its colour and icon, as HTML."""
    look = LOOKS[state]
    return format_html(
        '<span class="badge {}" data-state="{}">{}</span>', look.colour, state, gettext(look.label)
    )


@register.simple_tag
def meter(share: float | None, tone: str = "") -> SafeString:
    """Return a bar for a share from 0 to 1, empty for None, as HTML. `tone`: the bar's CSS class."""
    bar = format_html('<rect class="fill" height="100%" width="{}%" rx="3"/>', _filled(share))
    return format_html(
        '<svg class="meter {}" role="img" aria-label="{}">{}</svg>', tone, formats.percent(share), bar
    )


def _filled(share: float | None) -> int:
    return int(max(0.0, min(1.0, share or 0.0)) * 100 + 0.5)


@register.simple_tag
def gpu_use(share: float | None, is_held: bool = True) -> SafeString | str:
    """Return a GPU's utilisation as a bar with its number and, if idle or low, a label. `share`: 0 to 1, None if not
    measured; `is_held`: a job holds the GPU (see dashboards/gpu_use.py)."""
    use = use_of(share, is_held=is_held)
    if share is None:
        return formats.NOTHING
    colour = USE_LOOKS[use].colour
    bar = format_html(
        '<svg class="meter short {} {}" aria-hidden="true"><rect class="fill" height="100%" width="{}%" rx="3"/></svg>',
        colour,
        use,
        _filled(share),
    )
    word = (
        format_html(' <span class="{}">{}</span>', colour, gettext(USE_LOOKS[use].word))
        if use in SAID_ALOUD
        else ""
    )
    return format_html(
        '<span class="meter-cell">{}<span class="value">{}</span>{}</span>', bar, formats.percent(share), word
    )


@register.simple_tag
def decimals(rows: Iterable[Any], path: str) -> int:
    """Return how many decimals a column needs for the values at `path`, such as "status.gpus", of its rows."""
    return formats.decimals(Variable(f"row.{path}").resolve({"row": row}) for row in rows)


@register.simple_tag(takes_context=True)
def query(context: RequestContext, **changes: Any) -> str:
    """Return the page's query string with some fields changed; None or "" removes a field."""
    fields = context["request"].GET.copy()
    for name, value in changes.items():
        fields.pop(name, None)
        if value not in (None, ""):
            fields[name] = str(value)
    return f"?{urlencode(list(fields.items()))}" if fields else "?"


@register.simple_tag
def asked(job: dict[str, Any]) -> str:
    """Return the GPUs that all workers of a job request together, as text; for a request of GPU memory, the
    memory of each worker."""
    if job.get("gpu_memory_mib"):
        return formats.mebibytes(job["gpu_memory_mib"])
    return formats.number((job.get("gpus") or 0) * job.get("workers", 1))


@register.simple_tag
def ran(status: dict[str, Any]) -> SafeString | str:
    """Return how long a job has run: a duration that the browser updates while it runs, a dash if it has not
    started, or waits for its next start. `status`: in REST form."""
    if status["runtime_seconds"] is None:
        return formats.NOTHING
    return (
        since(status["started_at"])
        if status["finished_at"] is None
        else formats.duration(status["runtime_seconds"])
    )


@register.inclusion_tag("dashboards/parts/input.html", takes_context=True)
def input(context: RequestContext, name: str, label: str, about: str = "", **options: Any) -> dict[str, Any]:  # noqa: A001 - the template word
    """Return the context of a text field of the submit form, with its error. `about`: its help text; `options`:
    further variables of the template."""
    return _text_field(context, name, label, about) | options


@register.inclusion_tag("dashboards/parts/textarea.html", takes_context=True)
def textarea(context: RequestContext, name: str, label: str, about: str = "") -> dict[str, Any]:
    """Return the context of a multi-line field of the submit form, with its error."""
    return _text_field(context, name, label, about)


def _text_field(context: RequestContext, name: str, label: str, about: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "help": about,
        "value": _raw(context, name),
        "error": _error(context, name),
    }


def _raw(context: RequestContext, name: str) -> str:
    return str(context["raw"].get(name, ""))


def _error(context: RequestContext, name: str) -> str:
    return str(context["errors"].get(name, ""))


@register.filter
def reports_progress(kind: str) -> bool:
    """Return whether programs of this kind usually print their progress."""
    return KINDS[kind].reports_progress


@register.filter
def happened(kind: str) -> str:
    """Format an event kind: "job.shell_opened" -> "shell opened"."""
    return kind.partition(".")[2].replace("_", " ")


# Labels for names in rows, by the template tag that shows them.
_WORDS = {
    "tab_label": {
        "overview": gettext_lazy("Overview"),
        "logs": gettext_lazy("Logs"),
        "metrics": gettext_lazy("Metrics"),
        "events": gettext_lazy("Events"),
        "pods": gettext_lazy("Pods"),
        "spec": gettext_lazy("Spec"),
        "terminal": gettext_lazy("Terminal"),
        "workers": gettext_lazy("Workers"),
    },
    "scale_cause": {
        "user": gettext_lazy("asked for"),
        "recovery": gettext_lazy("grows back after a loss"),
        "growth": gettext_lazy("grows into idle GPUs"),
        "reclaim": gettext_lazy("its GPUs are reclaimed"),
        "spot": gettext_lazy("its provider withdraws the node"),
        "balance": gettext_lazy("for others of its project"),
        "start": gettext_lazy("all are ready"),
        "loss": gettext_lazy("a worker was lost"),
        "reform": gettext_lazy("workers lost contact"),
        "grow": gettext_lazy("newcomers join"),
        "shrink": gettext_lazy("workers leave"),
        "roll_back": gettext_lazy("rolled back"),
    },
    "scale_state": {
        "pending": gettext_lazy("Preparing"),
        "running": gettext_lazy("Switching"),
        "succeeded": gettext_lazy("Done"),
        "rolled_back": gettext_lazy("Taken back"),
        "failed": gettext_lazy("Failed"),
    },
}


def _word_tag(tag: str) -> None:
    """Register a tag that returns the label for a name."""

    def word(name: str) -> str:
        return str(_WORDS[tag][name])

    register.simple_tag(word, name=tag)


for _tag in _WORDS:
    _word_tag(_tag)


@register.simple_tag
def port_of(url: str) -> str:
    """Return the port from a service URL: <job>-<port>.<services host>, or .../services/<job>/<port>/."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return path.rpartition("/")[2] if path else parts.netloc.partition(".")[0].rpartition("-")[2]


@register.simple_tag
def node_link(names: str) -> str:
    """Return the URL of the first of several nodes, whose names are comma-separated."""
    return reverse("node", args=[names.partition(",")[0]])


@register.simple_tag
def count_gpus(gpus: float | None) -> str:
    """Format a number of GPUs: "1 GPU", "0.5 GPUs"."""
    one, many = gettext("{gpus} GPU"), gettext("{gpus} GPUs")
    return (one if gpus == 1 else many).format(gpus=formats.number(gpus))
