"""Pages of what is sorted by name: keyset, forwards and backwards, one query each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Model, QuerySet

PAGE = 100
M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class NamePage(Generic[M]):
    """One page; `newer` and `older` are the names before and after which its neighbours lie, None at the ends."""

    items: list[M]
    newer: str | None
    older: str | None


def by_name(rows: QuerySet[M], field: str, asked: Mapping[str, str], limit: int = PAGE) -> NamePage[M]:
    """Return the page of `rows` that comes after `?before=<name>` or before `?after=<name>`; the first one otherwise.

    The words are those of lists that are newest first: "older" goes on, "newer" goes back.
    """
    if asked.get("after"):
        found = list(rows.filter(**{f"{field}__lt": asked["after"]}).order_by(f"-{field}")[: limit + 1])
        items, has_newer, has_older = found[:limit][::-1], len(found) > limit, True
    else:
        later = rows.filter(**{f"{field}__gt": asked["before"]}) if asked.get("before") else rows
        found = list(later.order_by(field)[: limit + 1])
        items, has_newer, has_older = found[:limit], bool(asked.get("before")), len(found) > limit
    names = [str(getattr(item, field)) for item in items]
    return NamePage(
        items, names[0] if names and has_newer else None, names[-1] if names and has_older else None
    )
