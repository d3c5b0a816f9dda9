"""The first page of a large cluster: sums are exact, lists are bounded, and it is drawn once for many readers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.models import Event, User
from dashboards.pages import overview as pages
from tests.builders import make_user
from tests.crowd import LONG_NAME, make_crowd
from tests.worlds import standing

pytestmark = pytest.mark.django_db

Visit = Callable[[User | None], Client]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings of other tests are forgotten."""
    monkeypatch.setattr(pages, "_kept", {})


@pytest.fixture(scope="module")
def crowd(django_db_setup: None, django_db_blocker: Any) -> Iterator[User]:
    """The admin of a cluster with 2,000 jobs on 128 nodes."""
    with standing(django_db_blocker):
        make_crowd(128, 2000, running=448)
        yield make_user("root", is_admin=True)


@pytest.fixture
def large(crowd: User, db: None, visit: Visit) -> str:
    """The page of that cluster, as its admin sees it."""
    return visit(crowd).get("/").content.decode()


def test_above_200_jobs_sums_are_exact_and_lists_link_to_all(large: str):
    assert ">448, see all</a>" in large
    assert ">1,552, see all</a>" in large
    assert "269 train, 90 interactive, 89 elastic" in large
    assert large.count("<tr data-key=") == 20
    assert large.count("<li data-key=") == 20
    assert "1,532 more" in large


def test_the_links_to_all_lead_to_as_many_jobs(large: str, visit: Visit):
    client = visit(make_user("root"))
    for state, count in (("active", "448 jobs"), ("queued", "1,552 jobs")):
        assert f'href="/jobs?state={state}"' in large
        assert count in client.get(f"/jobs?state={state}").content.decode()


def test_the_job_that_was_submitted_last_is_shown_however_long_the_queue_is(large: str):
    assert ">job-01999</a>" in large


def test_a_large_page_is_drawn_once_for_all_readers_with_the_same_rights(large: str, visit: Visit):
    root, ana = visit(make_user("root")), visit(make_user("ana"))

    def drawing(client: Client, least: int | None = None) -> tuple[str, int]:
        headers = {} if least is None else {"X-Live-Seq": str(least)}
        with CaptureQueriesContext(connection) as queries:
            page = client.get("/", headers=headers).content.decode()
        return page.split("<main")[1].split("</main>")[0], len(queries)

    first, kept_queries = drawing(root)
    latest = Event.objects.append([Event(kind="queue.changed")])
    newer, queries = drawing(root, latest)
    assert queries > kept_queries  # it was drawn again for the event that was asked for
    assert f'data-live-seq="{latest}"' in newer
    assert drawing(root, latest) == (newer, kept_queries)
    assert f'data-live-seq="{latest}"' not in first
    # other rights, another drawing
    assert ">448, see all</a>" in newer
    assert ">448, see all</a>" not in drawing(ana)[0]


def test_a_large_page_is_small(large: str):
    assert len(large.encode()) <= 150_000
    assert large.count("<path") < 400
    assert 'data-nodes="crowd-0000 crowd-0001' in large


def test_long_names_are_whole_on_hover(large: str):
    assert large.count(f'title="{LONG_NAME}"') == 2  # the newest of the running, and the first of the queue
