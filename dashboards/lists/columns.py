"""Columns of kinds that several lists have. The first click on their header sorts descending."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from dashboards.lists import cells
from dashboards.lists.table import Column, Text


def number_column(
    key: str,
    label: Text,
    name: str,
    sort: str | Callable[[datetime], Any],
    css: str = "num",
    *,
    is_nullable: bool = False,
) -> Column:
    """Return a column of numbers. `key` names the column in URLs, `name` the number in a row. `sort`, `css`,
    `is_nullable`: as in Column."""
    return Column(key, label, cells.number(name), sort, css, is_nullable, falls=True)


def time_column(
    key: str, label: Text, name: str, css: str = "quiet nowrap", *, never: Text | None = None
) -> Column:
    """Return a column of ages. `key` names the column in URLs, `name` the time in a row and in the database.
    `never`: shown for None; None if every row has a time."""
    cell = cells.ago(name) if never is None else cells.ago(name, never)
    return Column(key, label, cell, name, css, is_nullable=never is not None, falls=True)
