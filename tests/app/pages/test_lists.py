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


def jobs_page(yard: Yard, view: ListView, asked: dict[str, str]) -> Page:
    return list_page(view, yard.cast.actor("root"), Job.objects.all(), asked)


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
