"""Requests at the same moment: one key makes one job, one If-Match lets one change through, one name is taken once."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.actions.errors import Conflict
from controlplane.actions.projects import edit_project
from controlplane.models import Cluster, Project
from jobs.actions import edit_job
from jobs.models import Job
from jobs.scaling import scale_job
from tests.app.api.client import Api, Reply
from tests.builders import make_cluster, make_counters, make_job
from tests.cast import Cast, make_cast
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
AT_ONCE = 4


@pytest.fixture
def people(transactional_db: None) -> Cast:
    """The cast; the flush after an earlier test of this kind took the counters along."""
    make_counters()
    return make_cast()


def at_once(work: Callable[[int], Reply]) -> list[Reply]:
    """Do the work on several threads that start together."""
    barrier = threading.Barrier(AT_ONCE)

    def one(number: int) -> Reply:
        try:
            barrier.wait(patience(10))
            return work(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(AT_ONCE)))


def test_one_key_makes_one_job(people: Cast):
    apis = [Api(people.ben) for _ in range(AT_ONCE)]
    spec = {"name": "hyper1", "kind": "train", "command": ["true"]}
    replies = at_once(lambda number: apis[number].post("projects/team-a/jobs", spec, idempotency_key="k1"))
    assert [reply.status for reply in replies] == [201] * AT_ONCE
    assert len({reply.body["id"] for reply in replies}) == 1
    assert sum("Idempotency-Replayed" not in reply.headers for reply in replies) == 1
    assert Job.objects.count() == 1


def test_one_change_passes_under_one_etag(people: Cast):
    apis = [Api(people.root) for _ in range(AT_ONCE)]
    tag = apis[0].get("projects/team-a").headers["ETag"]
    replies = at_once(
        lambda number: apis[number].patch("projects/team-a", {"gpu_quota": number + 10}, if_match=tag)
    )
    assert sorted(reply.status for reply in replies) == [200, 412, 412, 412]
    winner = next(reply for reply in replies if reply.status == 200)
    assert Project.objects.get(name="team-a").gpu_quota_milli == winner.body["gpu_quota"] * 1000


def test_one_of_several_equal_names_is_taken(people: Cast):
    apis = [Api(people.ben) for _ in range(AT_ONCE)]
    spec = {"name": "hyper1", "kind": "train", "command": ["true"]}
    replies = at_once(lambda number: apis[number].post("projects/team-a/jobs", spec))
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409]
    assert {reply.code for reply in replies if reply.status == 409} == {"name_in_use"}


def test_of_batches_that_share_names_one_is_taken_whole(people: Cast):
    """Each wants the names in another order."""
    apis = [Api(people.ben) for _ in range(AT_ONCE)]
    names = [f"sweep-{number}" for number in range(40)]

    def submit(number: int) -> Reply:
        own = [f"own-{number}-{count}" for count in range(3)]
        turned = names[10 * number :] + names[: 10 * number]
        wanted = [*own, *(turned if number % 2 else reversed(turned))]
        return apis[number].post(
            "projects/team-a/jobs/batch", {"jobs": [{"name": name, "kind": "train"} for name in wanted]}
        )

    replies = at_once(submit)
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409]
    [made] = [reply.body["results"] for reply in replies if reply.status == 201]
    assert set(Job.objects.values_list("name", flat=True)) == {job["name"] for job in made}
    assert {reply.code for reply in replies if reply.status == 409} == {"name_in_use"}
    ranks = list(Job.objects.order_by("submit_rank").values_list("name", flat=True))
    assert ranks == [job["name"] for job in made]


def change(job: Job, changes: Mapping[str, Any], people: Cast) -> None:
    """Scale or edit a job in this thread, whose connection is closed."""
    try:
        if "workers" in changes:
            scale_job(job, changes["workers"], actor=people.actor("ben"))
        else:
            edit_job(job, changes, actor=people.actor("ben"))
    finally:
        if not connection.in_atomic_block:
            connection.close()


def waiting_for_locks() -> int:
    """How many wait for a lock that somebody holds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
@pytest.mark.parametrize(
    ("first", "second"), list(permutations([{"priority": 90}, {"labels": {"a": "b"}}, {"workers": 5}], 2))
)
def test_two_changes_of_one_job_lose_nothing(people: Cast, first: dict[str, Any], second: dict[str, Any]):
    bounds = {"min_workers": 1, "workers": 3, "max_workers": 8}
    job = make_job(people.project, "el", people.ben, kind="elastic", **bounds)
    read = Job.objects.get()  # before anything changes
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            change(job, first, people)
            later = pool.submit(change, read, second, people)
            wait_until(waiting_for_locks, what="the second change")
        later.result(patience(10))
    job.refresh_from_db()
    told = {"priority": 50, "labels": {}, "workers": 3} | first | second
    assert {name: job.spec[name] for name in told} == told
    assert {"priority": job.priority, "labels": job.labels, "workers": job.pods_wanted} == told


def move(people: Cast, cluster: Cluster) -> None:
    """Move a project in this thread, whose connection is closed."""
    try:
        edit_project(people.project, {"cluster": cluster}, actor=people.actor("root"))
    finally:
        connection.close()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_project_does_not_move_away_from_a_job_that_is_being_submitted(people: Cast):
    second = make_cluster("second", nodes=0)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            make_job(people.project, "late", people.ben)
            later = pool.submit(move, people, second)
            wait_until(waiting_for_locks, what="the move")
        with pytest.raises(Conflict, match="1 unfinished jobs"):
            later.result(patience(10))
    assert Project.objects.get(name="team-a").cluster.name == "memory"


def submit_batch(api: Api, names: list[str]) -> Reply:
    """Submit jobs of these names in this thread, whose connection is closed."""
    try:
        jobs = [{"name": name, "kind": "train"} for name in names]
        return api.post("projects/team-a/jobs/batch", {"jobs": jobs})
    finally:
        connection.close()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_batches_with_the_same_names_in_other_orders_do_not_wait_for_each_other(people: Cast):
    """One is held up in the middle of its names; were the other in the middle of its own, neither could go on."""
    first, second = Api(people.ben), Api(people.ana)
    held_up = {"project": people.project, "user": people.ben, "name": "gate", "spec": {}, "submit_rank": 0}
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            Job.objects.create(kind="train", **held_up)
            one = pool.submit(submit_batch, first, ["a", "gate", "b"])
            wait_until(lambda: waiting_for_locks() == 1, what="the first batch")
            other = pool.submit(submit_batch, second, ["b", "a"])
            wait_until(lambda: waiting_for_locks() == 2, what="the second batch")
            transaction.set_rollback(True)
        assert (one.result(patience(10)).status, other.result(patience(10)).code) == (201, "name_in_use")
    assert set(Job.objects.values_list("name", flat=True)) == {"a", "gate", "b"}
