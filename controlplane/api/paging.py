"""Lists with signed keyset cursors: page 1,000 costs as much as page 1."""

import base64
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from django.conf import settings
from django.db.models import Q, QuerySet
from django.http.response import HttpResponseBase
from django.utils.crypto import salted_hmac

from controlplane.api.operations import Answer, Call, Method, operation
from controlplane.api.problems import bad_request
from controlplane.api.query import Parameter, Schema, Unreadable, text, texts, whole
from controlplane.api.renderers import render_json

DEFAULT_LIMIT, MAX_LIMIT = 50, 500
# A page of large items ends early, with a valid `next`, so that no response takes much memory.
PAGE_MOST_BYTES = 2 << 20
# 72 bits suffice: even a forged cursor shows only rows that the caller may see.
_SIGNATURE_BYTES = 9


@dataclass(frozen=True, slots=True)
class Filter:
    """A query field that filters a list by a Django lookup such as `name__in`."""

    lookup: str
    parameter: Parameter


@dataclass(frozen=True, slots=True)
class Listing:
    """The options of a list route. `item`: schema of an item, whose properties `?fields=` accepts. `orderings`:
    public name -> columns, of which the last is unique and none is nullable; `ordering`: the default."""

    item: Schema
    orderings: Mapping[str, tuple[str, ...]]
    ordering: str
    filters: Mapping[str, Filter] = field(default_factory=dict)

    def _parameters(self) -> dict[str, Parameter]:
        return {
            "limit": whole(
                1,
                MAX_LIMIT,
                "Maximum number of items; a page of large items has fewer.",
                default=DEFAULT_LIMIT,
            ),
            "cursor": text("A cursor from `next` or `previous` of another page."),
            "ordering": _ordering(tuple(self.orderings), self.ordering),
            "fields": _fields(tuple(self.item["properties"])),
        } | {name: one.parameter for name, one in self.filters.items()}

    def of_all_projects(self) -> "Listing":
        """Return the listing with a filter `project`, for a route that lists rows of all visible projects."""
        return replace(self, filters={**self.filters, "project": OF_PROJECTS})

    def operation(
        self, about: str, component: str, also: Mapping[str, Parameter] | None = None
    ) -> Callable[[Method], Callable[..., HttpResponseBase]]:
        """Return `@operation` for a method that answers with a page of the list. `component`: the OpenAPI component of
        an item. `also`: query fields besides those of all lists and the filters."""
        return operation(about, answer=_page_of(component), query=self._parameters() | dict(also or {}))


def _page_of(component: str) -> Schema:
    link = {"type": ["string", "null"], "format": "uri"}
    results = {"type": "array", "items": {"$ref": f"#/components/schemas/{component}"}}
    return {
        "type": "object",
        "required": ["results", "next", "previous"],
        "properties": {"results": results, "next": link, "previous": link},
    }


OF_PROJECTS = Filter("project__name__in", texts("Of these projects."))
WITH_NAMES = Filter("name__in", texts("With these names."))
IN_STATES = Filter("state__in", texts("In these states."))


@dataclass(frozen=True, slots=True)
class _Position:
    ordering: str
    is_backward: bool
    values: tuple[Any, ...]


def paged(
    call: Call,
    rows: QuerySet[Any],
    listing: Listing,
    *,
    fetch: Callable[[QuerySet[Any]], Sequence[Any]],
    shape: Callable[[Sequence[Any]], list[dict[str, Any]]],
) -> Answer:
    """Return one page of `rows`, filtered and ordered by the query fields. `fetch` reads a sliced queryset into dicts
    or models that have the ordering's columns; `shape` turns them into JSON objects. Raise Problem (400) for a cursor
    that is not from this list."""
    rows = _filtered(call, rows, listing)
    ordering, limit = call.query["ordering"], call.query["limit"]
    position = _position(call, listing)
    is_backward = position is not None and position.is_backward
    columns, is_descending = _columns(listing, ordering)
    if position is not None:
        rows = rows.filter(_beyond(columns, position.values, is_descending != is_backward))
    sign = "-" if is_descending != is_backward else ""
    # One row more than requested shows whether there is another page, without a count.
    found = list(fetch(rows.order_by(*(sign + column for column in columns))[: limit + 1]))
    has_more = len(found) > limit
    del found[limit:]
    if is_backward:
        found.reverse()
    items = _trimmed(call, shape(found))
    count = _that_fit(items[::-1] if is_backward else items)
    if count < len(items):
        has_more = True
        kept = slice(len(items) - count, None) if is_backward else slice(count)
        items, found = items[kept], found[kept]
    return Answer(
        {
            "results": items,
            "next": _link(call, ordering, found[-1:], columns, False) if has_more or is_backward else None,
            "previous": _link(call, ordering, found[:1], columns, True)
            if (has_more if is_backward else position is not None)
            else None,
        }
    )


def _that_fit(items: Sequence[Mapping[str, Any]]) -> int:
    """Return how many items from the first on fit into PAGE_MOST_BYTES; at least one if there is one."""
    size = 0
    for count, item in enumerate(items):
        size += len(render_json(item))
        if size > PAGE_MOST_BYTES:
            # At least one item, because a client could never get past an item that is larger than a page.
            return max(1, count)
    return len(items)


def _ordering(names: tuple[str, ...], default: str) -> Parameter:
    allowed = tuple(sign + name for name in names for sign in ("", "-"))

    def read(value: str) -> str:
        if value not in allowed:
            raise Unreadable(f"Order by one of: {', '.join(names)}; a minus sign in front reverses it.")
        return value

    return Parameter(
        read,
        {"type": "string", "enum": list(allowed)},
        "The field to sort by; a minus sign in front reverses the order.",
        default,
    )


def _fields(names: tuple[str, ...]) -> Parameter:
    def read(value: str) -> frozenset[str]:
        wanted = frozenset(part for part in value.split(",") if part)
        unknown = sorted(wanted - set(names))
        if unknown or not wanted:
            named = f"There is no field {unknown[0][:40]!r}" if unknown else "Name at least one field"
            raise Unreadable(f"{named}; the known ones are: {', '.join(names)}.")
        return wanted

    return Parameter(read, {"type": "string"}, "Only these fields, separated by commas.")


def fields_parameter(item: Schema) -> Parameter:
    """Return the query field `fields` of a route for one object, with the property names of `item`."""
    return _fields(tuple(item["properties"]))


def trimmed(call: Call, item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the object that the query field `fields` names; all if it is absent."""
    wanted = call.query.get("fields")
    return item if wanted is None else {name: value for name, value in item.items() if name in wanted}


def _trimmed(call: Call, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items if call.query["fields"] is None else [trimmed(call, item) for item in items]


def _filtered(call: Call, rows: QuerySet[Any], listing: Listing) -> QuerySet[Any]:
    for name, one in listing.filters.items():
        value = call.query[name]
        if value is not None:
            rows = rows.filter(**{one.lookup: value})
    return rows


def _columns(listing: Listing, ordering: str) -> tuple[tuple[str, ...], bool]:
    return listing.orderings[ordering.removeprefix("-")], ordering.startswith("-")


def _beyond(columns: Sequence[str], values: Sequence[Any], is_descending: bool) -> Q:
    """Return a filter for the rows that follow `values` in the order of the columns: a > x, or a = x and b > y, ..."""
    beyond, equal = Q(), Q()
    lookup = "lt" if is_descending else "gt"
    for column, value in zip(columns, values, strict=True):
        beyond |= equal & Q(**{f"{column}__{lookup}": value})
        equal &= Q(**{column: value})
    return beyond


def _position(call: Call, listing: Listing) -> _Position | None:
    cursor = call.query["cursor"]
    if cursor is None:
        return None
    position = _read_cursor(cursor, call.request.path)
    if position is None or position.ordering != call.query["ordering"]:
        raise bad_request(
            "?cursor", "bad_cursor", "This cursor is not from this list; take it from `next` or `previous`."
        )
    return position


def _link(
    call: Call, ordering: str, row: Sequence[Any], columns: Sequence[str], is_backward: bool
) -> str | None:
    if not row:
        return None
    values = [_value(row[0], column) for column in columns]
    arguments = call.request.query_params.copy()
    arguments["cursor"] = make_cursor([ordering, is_backward, values], call.request.path)
    path = f"{call.request.path}?{arguments.urlencode()}"
    # Relative, because behind a proxy that terminates TLS a request shows neither its scheme nor always its host.
    return (
        f"{settings.STATED_URL}{path}" if settings.STATED_URL else str(call.request.build_absolute_uri(path))
    )


def _value(row: Any, column: str) -> Any:
    return row[column] if isinstance(row, dict) else getattr(row, column)


def make_cursor(data: list[Any], path: str) -> str:
    """Return a signed cursor. `data`: [ordering, whether it leads backward, values of the ordering's columns]; it is
    valid only for the list at `path`."""
    payload = orjson.dumps(data, default=str)
    return _encoded(_signature(payload, path) + payload)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _read_cursor(cursor: str, path: str) -> _Position | None:
    """Return the position in a cursor; None if it was changed or this installation did not issue it for this path."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except ValueError:
        # Clients may have truncated or changed a cursor.
        return None
    if _encoded(raw) != cursor:
        # Base64 with spare bits or skipped characters can be decoded, but was not issued by us.
        return None
    signature, payload = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    # Without a signature, a client could compare columns with values of its choice.
    if not hmac.compare_digest(signature, _signature(payload, path)):
        return None
    ordering, is_backward, values = orjson.loads(payload)
    return _Position(ordering, is_backward, tuple(values))


def _signature(payload: bytes, path: str) -> bytes:
    # With the path, because the columns of another list have other types.
    digest: bytes = salted_hmac(
        "controlplane.api.paging", path.encode() + b"\n" + payload, algorithm="sha256"
    ).digest()
    return digest[:_SIGNATURE_BYTES]
