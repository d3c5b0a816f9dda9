"""Lists: one mechanism sorts, filters and pages all of them; what is shown in all is exact."""

from collections.abc import Callable

import pytest
from django.test import Client

from controlplane.models import User
from dashboards.lists.jobs import JOBS, shortened
from dashboards.lists.table import ListView, Page, list_page
from jobs.models import Job
from tests.app.pages.conftest import Yard
from tests.builders import make_job

Visit = Callable[[User | None], Client]
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


@pytest.fixture
def many(yard: Yard) -> Yard:
    """Ten more jobs in several states, some with equal and some without values in every column."""
    for number in range(10):
        job = make_job(yard.cast.project, f"j{number}", yard.cast.ben, gpus=number % 3)
        use = None if number % 2 else number % 4 / 4
        Job.objects.filter(pk=job.pk).update(
            gpu_utilization=use, started_at=job.created_at if number % 3 else None
        )
    yard.plant.settle()
    return yard


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


def test_the_head_says_how_the_list_is_sorted_and_turns_it(yard: Yard, visit: Visit):
    client = visit(yard.cast.ana)
    page = client.get("/jobs?state=unfinished&sort=-gpus").content.decode()
    assert 'aria-sort="descending"><a href="?state=unfinished&amp;sort=gpus">GPUs</a>' in page
    assert '<a href="?state=unfinished&amp;sort=name">Job</a>' in page
    assert '<input type="hidden" name="sort" value="-gpus">' in page  # a filter keeps the order
    assert (
        'aria-sort="descending"><a href="?sort=submitted">Submitted</a>'
        in client.get("/jobs").content.decode()
    )


@pytest.mark.parametrize(
    "asked", ["?sort=nonsense", "?after=abc", "?before=abc&after=-1", "?sort=-use&after=WzFd:x"]
)
def test_an_unknown_sort_or_cursor_is_that_of_the_first_page(yard: Yard, visit: Visit, asked: str):
    page = visit(yard.cast.ana).get(f"/jobs{asked}")
    assert page.status_code == 200
    assert len(page.context["page"].table.rows) == 3


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


def test_memory_counts_as_its_share_of_the_largest_gpu(yard: Yard):
    make_job(yard.cast.project, "shared", gpus=None, gpu_memory_mib=8192)
    assert jobs_page(yard, JOBS, {"q": "shared"}).summary.startswith("1 job, GPUs: 0.25 asked for")


def test_node_and_gpu_use_are_shown(yard: Yard, visit: Visit):
    Job.objects.filter(pk=yard.running.pk).update(gpu_utilization=0.42)
    page = visit(yard.cast.ana).get("/jobs?state=running").content.decode()
    assert '<a href="/nodes/dgx1-1" title="dgx1-1">dgx1-1</a>' in page
    assert "42\N{NO-BREAK SPACE}%" in page


@pytest.mark.parametrize(
    ("code", "message", "short"),
    [
        ("cluster_full", "All 16 GPUs are in use.", "All 16 GPUs are in use."),
        (
            "over_gpu_limit",
            "team-a holds 4 GPUs and may hold at most 4; this job asks for 2. Wait for one of its jobs to end.",
            "team-a holds 4 GPUs and may hold at most 4; this job asks for 2. …",
        ),
        (
            "interactive_over_quota",
            "Jobs that cannot be preempted stay inside the quota: a has 4, 3 of them used by them, and it asks for 2.",
            "Jobs that cannot be preempted stay inside … 4, 3 of them used by them, and it asks for 2.",
        ),
        (
            "failed",
            "The command ended with exit code 1 after 3 hours and 12 minutes. Its last line was: CUDA out of memory.",
            "The command ended with exit code 1 after 3 … Its last line was: CUDA out of memory.",
        ),
        ("failed", "x" * 200, "x" * 43 + " … " + "x" * 44),
    ],
)
def test_a_reason_keeps_its_useful_half(code: str, message: str, short: str):
    assert shortened(code, message) == short
    assert len(short) <= 98
