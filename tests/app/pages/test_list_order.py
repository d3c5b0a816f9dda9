"""The order of a list and its pages: every column sorts, and the pages together hold every row once."""

from collections.abc import Iterator
from typing import Any

import pytest

from dashboards.lists.jobs import JOBS
from dashboards.lists.table import ListView, Page, list_page
from jobs.models import Job
from tests.app.pages.conftest import Yard, make_yard
from tests.builders import make_job
from tests.worlds import standing

pytestmark = pytest.mark.django_db

SORTED = [column.key for column in JOBS.columns]


def walk(view: ListView, yard: Yard, sort: str, forward: bool = True, limit: int = 3) -> list[list[str]]:
    """The keys of all pages of jobs, read by their links."""
    small = ListView(**{name: getattr(view, name) for name in view.__slots__} | {"size": limit})
    pages: list[Page] = [jobs_page(yard, small, {"sort": sort})]
    while (cursor := pages[-1].after) is not None:
        pages.append(jobs_page(yard, small, {"sort": sort, "after": cursor}))
    if not forward:
        pages = [pages[-1]]
        while (cursor := pages[0].before) is not None:
            pages.insert(0, jobs_page(yard, small, {"sort": sort, "before": cursor}))
    return [[str(row["key"]) for row, _cells in page.table.rows] for page in pages]


def jobs_page(yard: Yard, view: ListView, asked: dict[str, str]) -> Page:
    return list_page(view, yard.cast.actor("root"), Job.objects.all(), asked)


@pytest.fixture(scope="module")
def many(django_db_setup: None, django_db_blocker: Any) -> Iterator[Yard]:
    """Ten more jobs in several states, some with equal and some without values in every column."""
    with standing(django_db_blocker):
        yard = make_yard()
        for number in range(10):
            job = make_job(yard.cast.project, f"j{number}", yard.cast.ben, gpus=number % 3)
            use = None if number % 2 else number % 4 / 4
            Job.objects.filter(pk=job.pk).update(
                gpu_utilization=use, started_at=job.created_at if number % 3 else None
            )
        yard.plant.settle()
        yield yard
        yard.plant.close()


@pytest.mark.parametrize("direction", ["", "-"])
@pytest.mark.parametrize("key", SORTED)
def test_every_column_sorts_and_its_pages_hold_every_job_once(many: Yard, key: str, direction: str):
    pages = walk(JOBS, many, direction + key)
    keys = [key for page in pages for key in page]
    assert len(keys) == len(set(keys)) == Job.objects.count()
    assert [len(page) for page in pages] == [3, 3, 3, 3, 1]
    whole = walk(JOBS, many, direction + key, limit=100)
    assert [keys] == whole
    back = walk(JOBS, many, direction + key, forward=False)
    assert [key for page in back for key in page] == keys


def test_the_order_is_that_of_the_column_and_rows_without_a_value_come_last(many: Yard):
    def use(sort: str) -> list[float | None]:
        [keys] = walk(JOBS, many, sort, limit=100)
        found = dict(Job.objects.values_list("pk", "gpu_utilization"))
        return [{str(pk): value for pk, value in found.items()}[key] for key in keys]

    rising, falling = use("use"), use("-use")
    measured = [value for value in rising if value is not None]
    assert measured == sorted(measured)
    assert falling[: len(measured)] == sorted(measured, reverse=True)
    assert set(rising[len(measured) :]) == set(falling[len(measured) :]) == {None}


def test_a_cursor_of_another_order_is_not_taken(many: Yard):
    small = ListView(**{name: getattr(JOBS, name) for name in JOBS.__slots__} | {"size": 3})
    by_name = jobs_page(many, small, {"sort": "name"})
    by_use = jobs_page(many, small, {"sort": "use", "after": by_name.after or ""})
    assert by_use.before is None


def test_totals_are_of_all_that_is_filtered_not_of_the_page(many: Yard):
    small = ListView(**{name: getattr(JOBS, name) for name in JOBS.__slots__} | {"size": 1})
    held = sum(Job.objects.values_list("allocated_milli", flat=True)) / 1000
    page = jobs_page(many, small, {})
    assert page.summary == f"13 jobs, GPUs: 27 asked for, {held:g} held"
    assert (
        jobs_page(many, small, {"state": "queued", "q": "queued"}).summary
        == "1 job, GPUs: 16 asked for, 0 held"
    )
