"""Declaration of a list: its columns, sorting, filters, and how a page of it is read.

The declarations are in the other modules of this package; parts/list.html renders all of them. Filters and
sorting of a page are in its URL: `?state=queued&sort=-gpus`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count, F, QuerySet, Sum
from django.utils import timezone
from django.utils.functional import Promise

from controlplane.access import Actor
from dashboards.formats import lined_up, number
from dashboards.lists.paging import Keys, Order, Term, moment_of, read_page

Row = dict[str, Any]
Text = str | Promise
# Name of the annotation with the sort expression.
SORTED_BY = "sort_value"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `key`: its name in URLs; `cell` returns its text or HTML for a row. `sort`: the field path to sort
    by, or a function from the current time to an expression; None if not sortable. `css`: classes of its cells.
    `is_nullable`: `sort` may be null; such rows come last. `falls`: the first click on the header sorts descending."""

    key: str
    label: Text
    cell: Callable[[Row], str]
    sort: str | Callable[[datetime], Any] | None = None
    css: str = ""
    is_nullable: bool = False
    falls: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter by `?<key>=`. `narrow` applies a value to a queryset. `choices` returns (value, label) pairs; None
    makes it a text field."""

    key: str
    label: Text
    narrow: Callable[[QuerySet[Any], str], QuerySet[Any]]
    choices: Callable[[Actor], Sequence[tuple[str, Text]]] | None = None


@dataclass(frozen=True, slots=True)
class ListView:
    """A list. `rows` returns the data of a page's primary keys, in their order, each with its `key`. `summary` returns
    a sentence about the filtered rows. `order`: the column to sort by; `unique`: the field that makes it unique."""

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Actor, Sequence[Any]], list[Row]]
    summary: Callable[[QuerySet[Any]], str]
    order: str = "name"
    unique: str = "pk"
    filters: tuple[Filter, ...] = ()
    size: int = 100
    # Parts of the topic `activity` that trigger a redraw; "" for a list that is not live.
    live: str = ""
    # Actions on selected rows: (verb, label of its button).
    verbs: tuple[tuple[str, Text], ...] = ()
    # Template shown when there are no rows.
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """A column header: its link and the current sorting."""

    label: Text
    css: str
    sort: str = ""  # the `?sort=` of a click
    is_sorted: str = ""  # aria-sort


@dataclass(frozen=True, slots=True)
class Field:
    """A filter with its current value, as the form shows it. `choices`: (value, label) pairs, None for a text field."""

    key: str
    label: Text
    value: str
    choices: Sequence[tuple[str, Text]] | None


@dataclass(frozen=True, slots=True)
class Table:
    """A rendered table. `rows`: each with its cells as (css, label, HTML); the label is shown where the headers are
    hidden. Headers without links cannot be sorted by."""

    id: str
    heads: list[Head]
    rows: list[tuple[Row, list[tuple[str, Text, str]]]]
    can_select: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: its table, filters, sorting, summary, and cursors of the neighbouring pages."""

    view: ListView
    table: Table
    fields: list[Field]
    sort: str
    summary: str
    before: str | None
    after: str | None
    # The active filters.
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_filtered(self) -> bool:
        return bool(self.asked)


def list_page(
    view: ListView, actor: Actor, rows: QuerySet[Any], asked: Mapping[str, str], *, can_select: bool = False
) -> Page:
    """Return the page of the list `view` that the query parameters `asked` request: `rows`, filtered and sorted.
    An unknown sort or cursor is ignored. `can_select`: rows get checkboxes."""
    narrowed = {item.key: text for item in view.filters if (text := asked.get(item.key, "").strip())}
    for item in view.filters:
        if item.key in narrowed:
            rows = item.narrow(rows, narrowed[item.key])
    column, is_descending = _sorted_by(view, asked.get("sort", ""))
    ordered, order = _ordered(view, rows, column, is_descending, asked)
    keys: Keys = read_page(ordered, order, asked, view.size)
    return Page(
        view=view,
        table=table(view, view.rows(actor, keys.pks), order.key, can_select=can_select),
        fields=[_field(item, actor, narrowed) for item in view.filters],
        sort="" if order.key == view.order else order.key,
        summary=view.summary(rows),
        before=keys.before,
        after=keys.after,
        asked=narrowed,
    )


def table(
    view: ListView,
    rows: Sequence[Row],
    order: str = "",
    *,
    without: Sequence[str] = (),
    can_select: bool = False,
) -> Table:
    """Return these rows as a table with the columns of `view`. `order`: the key of its current order, "" for
    headers that are not links. `without`: keys of columns to omit. `can_select`: rows get checkboxes."""
    columns = [column for column in view.columns if column.key not in without]
    written = [(column, lined_up([column.cell(row) for row in rows])) for column in columns]
    return Table(
        id=f"{view.name}-table",
        heads=[_head(column, order) for column in columns],
        rows=[
            (row, [(column.css, _beside(column), cells[at]) for column, cells in written])
            for at, row in enumerate(rows)
        ],
        can_select=can_select,
    )


def by(lookup: str) -> Callable[[QuerySet[Any], str], QuerySet[Any]]:
    """Return a function for `Filter.narrow`, which keeps the rows with the value by a Django lookup."""
    return lambda rows, value: rows.filter(**{lookup: value})


def counted(text: Any, **sums: tuple[str, Callable[[int], str]]) -> Callable[[QuerySet[Any]], str]:
    """Return a function for `ListView.summary`. `text`: by `ngettext_lazy`, with {count} for the number of rows, and
    the names of `sums`: for each the column to add up, and how its sum is formatted."""

    def summary(rows: QuerySet[Any]) -> str:
        totals = {name: Sum(column, default=0) for name, (column, _form) in sums.items()}
        found = rows.order_by().aggregate(count=Count("*"), **totals)
        shown = {name: form(found[name]) for name, (_column, form) in sums.items()}
        return str(text.format(found["count"], count=number(found["count"]), **shown))

    return summary


def named(rows: Callable[[Actor], QuerySet[Any]]) -> Callable[[Actor], list[tuple[str, Text]]]:
    """Return a function for `Filter.choices`: the names of the rows that `rows` returns for an actor, as (value,
    label)."""
    return lambda actor: [
        (name, name) for name in rows(actor).order_by("name").values_list("name", flat=True).distinct()
    ]


def in_order(rows: QuerySet[Any], pks: Sequence[Any]) -> list[Any]:
    """Return the rows with the primary keys `pks`, in the order of the keys; omits rows deleted meanwhile."""
    found = rows.in_bulk(pks)
    return [found[pk] for pk in pks if pk in found]


def _sorted_by(view: ListView, asked: str) -> tuple[Column, bool]:
    for text in (asked, view.order):
        for column in view.columns:
            if column.sort is not None and text.removeprefix("-") == column.key:
                return column, text.startswith("-")
    raise LookupError(f"The list {view.name} has no column {view.order!r}.")


def _ordered(
    view: ListView, rows: QuerySet[Any], column: Column, is_descending: bool, asked: Mapping[str, str]
) -> tuple[QuerySet[Any], Order]:
    at = moment_of(asked.get("after") or asked.get("before") or "") or timezone.now()
    unique = Term(view.unique.removeprefix("-"), view.unique.startswith("-"))
    key = f"-{column.key}" if is_descending else column.key
    if column.sort == unique.name:
        return rows, Order(key, (Term(unique.name, is_descending),), at)
    expression = F(column.sort) if isinstance(column.sort, str) else column.sort and column.sort(at)
    term = Term(SORTED_BY, is_descending, column.is_nullable)
    return rows.annotate(**{SORTED_BY: expression}), Order(key, (term, unique), at)


def _beside(column: Column) -> Text:
    """Return the label that a cell of this column shows on narrow screens, where headers are hidden, "" for none."""
    # Numbers need a label to be understood, words do not.
    return column.label if "num" in column.css.split() else ""


def _head(column: Column, order: str) -> Head:
    if column.sort is None or not order:
        return Head(column.label, column.css)
    if order.removeprefix("-") != column.key:
        return Head(column.label, column.css, f"-{column.key}" if column.falls else column.key)
    is_descending = order.startswith("-")
    turned = column.key if is_descending else f"-{column.key}"
    return Head(column.label, column.css, turned, "descending" if is_descending else "ascending")


def _field(item: Filter, actor: Actor, narrowed: Mapping[str, str]) -> Field:
    choices = None if item.choices is None else item.choices(actor)
    return Field(item.key, item.label, narrowed.get(item.key, ""), choices)
