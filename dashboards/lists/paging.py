"""Keyset pagination of a queryset in any order: each page is one range query, and none repeats or skips a
row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.db.models import F, Q, QuerySet
from django.db.models.expressions import OrderBy

# Signed, so that a cursor can only hold values of its columns' types.
SIGNER = Signer(salt="dashboards.lists.paging")


@dataclass(frozen=True, slots=True)
class Term:
    """One column of an order, by its name in the queryset. Nulls sort last in both directions."""

    name: str
    is_descending: bool = False
    is_nullable: bool = False

    def ordering(self, *, is_backward: bool) -> OrderBy:
        """Return the term for order_by, reversed if `is_backward`."""
        descending = self.is_descending != is_backward
        # Named only for nullable columns: PostgreSQL uses an index only with the index's own order of nulls.
        first, last = (is_backward or None, not is_backward or None) if self.is_nullable else (None, None)
        return OrderBy(F(self.name), descending=descending, nulls_first=first, nulls_last=last)

    def beyond(self, value: Any, *, is_backward: bool) -> Q:
        """Return a filter for rows that sort after `value` by this term, or before it if `is_backward`."""
        if value is None:
            return Q(**{f"{self.name}__isnull": False}) if is_backward else Q(pk__in=())
        lookup = "lt" if self.is_descending != is_backward else "gt"
        found = Q(**{f"{self.name}__{lookup}": value})
        has_nulls_after = self.is_nullable and not is_backward
        return found | Q(**{f"{self.name}__isnull": True}) if has_nulls_after else found


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a list. The last term must be unique. `key`: the order's name in the URL. `at`: the time
    at which durations that still grow are measured, the same on every page."""

    key: str
    terms: tuple[Term, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Keys:
    """Primary keys of one page, and the cursors of the neighbouring pages, None at the ends."""

    pks: list[Any]
    before: str | None
    after: str | None


def read_page(rows: QuerySet[Any], order: Order, asked: Mapping[str, str], limit: int) -> Keys:
    """Return the keys of at most `limit` rows, after `?after=<cursor>` or before `?before=<cursor>`; of the first
    page without a valid cursor. `asked`: the query parameters."""
    is_backward = bool(asked.get("before"))
    position = _position(rows, order, asked.get("before") or asked.get("after") or "")
    is_backward = is_backward and position is not None
    if position is not None:
        rows = rows.filter(_beyond(order.terms, position, is_backward=is_backward))
    ordering = [term.ordering(is_backward=is_backward) for term in order.terms]
    names = [term.name for term in order.terms]
    # Read one row more than shown, to find out whether there is another page.
    found = list(rows.order_by(*ordering).values_list("pk", *names)[: limit + 1])
    has_more, shown = len(found) > limit, found[:limit]
    if is_backward:
        shown.reverse()
    if not shown:
        return Keys([], None, None)
    has_before = has_more if is_backward else position is not None
    # Read backwards: the page from which the user came is the next one.
    has_after = is_backward or has_more
    return Keys(
        [row[0] for row in shown],
        _cursor(order, shown[0][1:]) if has_before else None,
        _cursor(order, shown[-1][1:]) if has_after else None,
    )


def moment_of(cursor: str) -> datetime | None:
    """Return the time up to which the rows' ages were measured on the first page, so that all pages order them alike;
    None without a valid cursor."""
    try:
        return datetime.fromisoformat(SIGNER.unsign_object(cursor)[1]) if cursor else None
    except (BadSignature, ValueError):
        return None


def _beyond(terms: Sequence[Term], values: Sequence[Any], *, is_backward: bool) -> Q:
    """Return a filter for rows after `values` in the order of the terms: a > x, or a = x and b > y. `is_backward`:
    for rows before them."""
    found, equal = Q(pk__in=()), Q()
    for term, value in zip(terms, values, strict=True):
        found |= equal & term.beyond(value, is_backward=is_backward)
        equal &= Q(**{term.name: value})
    return found


def _cursor(order: Order, values: Sequence[Any]) -> str:
    return SIGNER.sign_object([order.key, order.at.isoformat(), [_written(value) for value in values]])


def _written(value: Any) -> Any:
    if isinstance(value, timedelta | UUID):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _position(rows: QuerySet[Any], order: Order, cursor: str) -> list[Any] | None:
    """Return the column values that a cursor encodes; None if it is empty, invalid, or belongs to another list or
    order."""
    try:
        key, _at, values = SIGNER.unsign_object(cursor) if cursor else ("", "", [])
        if key != order.key or len(values) != len(order.terms):
            return None
        fields = [_field(rows, term.name) for term in order.terms]
        return [
            None if value is None else field.to_python(value)
            for field, value in zip(fields, values, strict=True)
        ]
    except (BadSignature, ValidationError, ValueError):
        return None


def _field(rows: QuerySet[Any], name: str) -> Any:
    annotation, meta = rows.query.annotations.get(name), rows.model._meta
    if annotation is not None:
        return annotation.output_field
    return meta.pk if name == "pk" else meta.get_field(name)
