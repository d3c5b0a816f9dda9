"""Cells shared by several lists: functions from a row to HTML. Values are escaped here."""

from collections.abc import Callable, Mapping
from typing import Any

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboards import formats
from dashboards.templatetags.ui import meter, since

Cell = Callable[[Mapping[str, Any]], str]
Text = str | Promise


def text(key: str) -> Cell:
    """Return a cell function that shows the row's value `key` as text."""
    return lambda row: format_html("{}", formats.NOTHING if row[key] in (None, "") else row[key])


def number(key: str) -> Cell:
    """Return a cell function that shows the row's value `key` with thousands separators."""
    return lambda row: formats.number(row[key])


def ago(key: str, otherwise: Text = formats.NOTHING) -> Cell:
    """Return a cell function that shows the age of the row's time `key`, updated in the browser; `otherwise`
    if it is None."""
    return lambda row: str(otherwise) if row[key] is None else since(row[key], "ago")


def linked(page: str, key: str) -> Cell:
    """Return a cell function that shows the row's value `key` as a link to the `page` whose argument it is."""
    return lambda row: link(reverse(page, args=[row[key]]), row[key])


def part(template: str, **names: str) -> Cell:
    """Return a cell function that renders `template`. `names`: maps the template's variables to keys of the row."""
    return lambda row: render_to_string(template, {name: row[key] for name, key in names.items()})


def link(url: str, label: str) -> SafeString:
    """Return the row's link to its own page, as HTML."""
    return format_html('<a class="main" href="{}" title="{}">{}</a>', url, label, label)


def badge(tone: str, label: Text) -> SafeString:
    """Return a badge as HTML. `tone`: its CSS class, such as "good"."""
    return format_html('<span class="badge {}">{}</span>', tone, label)


def chip(palette_index: int | None, name: str, *, is_link: bool = True) -> SafeString:
    """Return a project's chip in its colour as HTML, by default a link to its page. `palette_index`: None for the
    first colour."""
    colour = palette_index or 0
    if not is_link:
        return format_html('<span class="chip p-{}">{}</span>', colour, name)
    return format_html('<a class="chip p-{}" href="{}">{}</a>', colour, reverse("project", args=[name]), name)


def bar(share: float | None, tone: str = "") -> SafeString | str:
    """Return a bar with its percentage for a share from 0 to 1; a dash if unknown. `tone`: the bar's CSS class."""
    if share is None:
        return formats.NOTHING
    value = formats.percent(share)
    return format_html(
        '<span class="meter-cell">{}<span class="value">{}</span></span>', meter(share, tone), value
    )


def of_total(used: str, total: str) -> SafeString:
    """Return a number before its total as HTML: "6/8"."""
    return format_html('<b>{}</b><span class="second">/{}</span>', used, total)
