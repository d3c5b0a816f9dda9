"""The page of an elastic job's workers, and its form."""

from __future__ import annotations

from controlplane.access import SYSTEM
from dashboards.reads.workers import generation_marks
from jobs.models import Attempt, Generation, Job, Pod, ScaleOperation
from jobs.scaling import scale_job
from tests.builders import make_job


def elastic(yard, workers: int = 3) -> Job:
    """A running job whose workers have formed two generations."""
    bounds = {"min_workers": 1, "workers": workers, "max_workers": 6}
    job = make_job(yard.cast.project, "grows", kind="elastic", gpus=0, **bounds)
    Job.objects.filter(pk=job.pk).update(state="running", attempt=1, pods_started=workers)
    job.refresh_from_db()
    attempt = Attempt.objects.create(job=job, number=1)
    node = Pod.objects.select_related("node").filter(job=yard.running).get().node
    members = [{"id": rank, "address": f"127.0.0.1:{5000 + rank}"} for rank in range(workers)]
    for rank in range(workers):
        Pod.objects.create(
            job=job, attempt=attempt, node=node, rank=rank, name=f"{job.pk}-1-{rank}", state="running",
            started_at=job.created_at,
        )  # fmt: skip
    cost = {"pause_seconds": 0.042, "lost_steps": 0, "repeated_steps": 0, "interrupted_steps": 0}
    start = {"attempt": attempt, "epochs_done": 7, "epochs_exact": 7}
    Generation.objects.create(number=1, cause="start", members=members[:2], step=0, **start, **cost)
    Generation.objects.create(number=2, cause="grow", members=members, step=120, **start, **cost)
    return job


def test_it_shows_generations_changes_and_their_proof(yard, visit):
    job = elastic(yard)
    ScaleOperation.objects.create(
        job=job, requested_by="ben", from_workers=2, to_workers=3, state="succeeded", attempt=1, generation=2,
        lost_steps=0, repeated_steps=0, pause_seconds=0.042, message="one more",
    )  # fmt: skip
    page = visit(yard.cast.ben).get(f"/jobs/{job.pk}/workers").content.decode()
    for text in (
        "from 1 to 6 possible",
        '<span>7</span><span class="unit">of 7</span>',
        "newcomers join",
        "0.042",
        "one more",
        "asked for",
    ):
        assert text in page
    charts = visit(yard.cast.ben)
    told = charts.get(f"/charts/jobs/{job.pk}/workers.json").json()
    assert told["summary"] == "3 workers now; 2 to 3 in 2 generations."
    assert [row[0] for row in told["table"]["rows"]] == [0, 1, 2]
    assert charts.get(f"/charts/jobs/{job.pk}/loss.json").status_code == 200
    assert [(mark.x, mark.text) for mark in generation_marks(job)] == [(120.0, "3 workers")]


def test_totals_are_of_all_attempts(yard, visit):
    job = elastic(yard)
    Generation.objects.filter(number=2).update(lost_steps=5, repeated_steps=3, pause_seconds=1.5)
    Job.objects.filter(pk=job.pk).update(attempt=2)
    second = Attempt.objects.create(job=job, number=2)
    cost = {"pause_seconds": 0.25, "lost_steps": 1, "repeated_steps": 1, "interrupted_steps": 0}
    Generation.objects.create(
        attempt=second, number=1, cause="start", members=[{"id": 0, "address": ""}], **cost
    )
    page = visit(yard.cast.ben).get(f"/jobs/{job.pk}/workers").content.decode()
    for name, total in (("Steps lost", "6"), ("Steps repeated", "4"), ("Paused", "1.79")):
        assert f'<span class="name">{name}</span><span class="value"><span>{total}</span>' in page


def test_what_served_a_waiting_job_is_not_said_to_serve_one_that_gains_more(yard, visit):
    job = elastic(yard)
    ScaleOperation.objects.create(
        job=job, requested_by="Trainyard", from_workers=3, to_workers=2, state="succeeded", attempt=1,
        cause="balance", message="A job of its project waits for them.",
    )  # fmt: skip
    page = visit(yard.cast.ben).get(f"/jobs/{job.pk}/workers").content.decode()
    assert "for others of its project" in page
    assert "gain more" not in page


def test_the_log_of_the_worker_that_speaks_for_the_job_is_shown_first(yard, visit):
    job = elastic(yard)
    assert '<option value="0" selected>' in visit(yard.cast.ben).get(f"/jobs/{job.pk}").content.decode()
    # Rank 0 has left.
    Generation.objects.filter(number=2).update(members=[{"id": 2, "address": ""}, {"id": 1, "address": ""}])
    for tab in ("", "/logs", "/terminal"):
        page = visit(yard.cast.ben).get(f"/jobs/{job.pk}{tab}").content.decode()
        assert '<option value="0">' in page, tab
        assert '<option value="2" selected>' in page, tab


def test_allowed_sizes_are_offered(yard, visit):
    job = elastic(yard)
    job.spec |= {"worker_sizes": [1, 3, 6]}
    job.save()
    page = visit(yard.cast.ben).get(f"/jobs/{job.pk}/workers").content.decode()
    assert "Allowed numbers of workers: 1, 3, 6" in page
    assert "<option>1</option><option selected>3</option><option>6</option>" in page


def test_only_elastic_jobs_have_it(yard, visit):
    client = visit(yard.cast.ben)
    assert client.get(f"/jobs/{yard.running.pk}/workers").status_code == 404
    assert client.get(f"/charts/jobs/{yard.running.pk}/workers.json").status_code == 404


def test_a_change_is_asked_first_and_then_begun(yard, visit):
    job, client = elastic(yard), visit(yard.cast.ben)
    asked = client.get(f"/jobs/{job.pk}/scale?workers=2&timeout=5m").content.decode()
    assert "From 3 to 2 workers?" in asked
    assert "Worker 2" in asked
    assert not ScaleOperation.objects.exists()
    answer = client.post(f"/jobs/{job.pk}/scale", {"workers": "2", "timeout": "5m"})
    assert answer.url == f"/jobs/{job.pk}/workers"
    operation = ScaleOperation.objects.get()
    assert (operation.to_workers, operation.leaving, operation.requested_by) == (2, [2], "ben")
    assert "A change from 3 to 2 workers is under way" in client.get(answer.url).content.decode()


def test_what_is_refused_is_said_in_words(yard, visit):
    job, client = elastic(yard), visit(yard.cast.ben)
    for query, said in (
        ("workers=9", "from 1 to 6 workers"),
        ("workers=3", "has 3 workers already"),
        ("workers=x", "Give a number of workers"),
        ("workers=2&timeout=0", "Give a number of workers"),
    ):
        assert said in client.get(f"/jobs/{job.pk}/scale?{query}").content.decode(), query
    scale_job(job, 2, actor=SYSTEM)
    client.post(f"/jobs/{job.pk}/scale", {"workers": "4"})
    assert ScaleOperation.objects.count() == 1


def test_others_may_not(yard, visit):
    job = elastic(yard)
    assert visit(yard.cast.chi).get(f"/jobs/{job.pk}/workers").status_code == 404
    assert visit(yard.cast.chi).post(f"/jobs/{job.pk}/scale", {"workers": "2"}).status_code == 404


def test_the_placement_is_that_of_the_workers_that_are_left(yard, visit):
    job = elastic(yard)
    Pod.objects.filter(job=job, rank=0).update(state="succeeded", exit_code=0, finished_at=job.created_at)
    page = visit(yard.cast.ben).get(f"/jobs/{job.pk}").content.decode()
    assert [f'data-key="where-{rank}"' in page for rank in range(3)] == [False, True, True]
    # Of a job that has ended it says where it was.
    Job.objects.filter(pk=job.pk).update(state="succeeded", finished_at=job.created_at)
    Pod.objects.filter(job=job).update(state="succeeded", exit_code=0, finished_at=job.created_at)
    page = visit(yard.cast.ben).get(f"/jobs/{job.pk}").content.decode()
    assert [f'data-key="where-{rank}"' in page for rank in range(3)] == [True, True, True]
