"""A job from submission to its end, through the rows, the scheduler and the memory engine."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.access import SYSTEM, Actor
from controlplane.actions.errors import Conflict
from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.memory import MemoryEngine
from controlplane.loop.cycle import run_cycle
from controlplane.loop.inventory import sync_nodes
from controlplane.loop.reconcile import _write
from controlplane.loop.telemetry_step import collect_once
from controlplane.models import Cluster, Command, Device, Event, Lease, Node
from jobs.actions import delete_job, resume_job, stop_job, suspend_job
from jobs.models import Allocation, Job, Pod
from jobs.node_actions import drain_node
from jobs.queries import job_detail
from jobs.transitions import LATE_START_SECONDS
from tests.builders import make_cluster, make_job, make_project, make_user
from tests.engines import give_engine


def actor() -> Actor:
    return Actor(user=make_user())


def kinds(job: Job) -> list[str]:
    return list(Event.objects.filter(job_id=job.pk).order_by("seq").values_list("kind", flat=True))


def test_a_job_runs_to_its_end(plant):
    job = make_job(make_project(), command=["sleep", "5"])
    plant.tick()
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.allocated_milli) == ("running", 1, 1000)
    plant.tick(seconds=6)
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.allocated_milli) == ("succeeded", 0, 0)
    assert job.reason == "completed"
    assert not Allocation.objects.filter(released_at=None).exists()
    assert kinds(job) == [
        "job.submitted",
        "job.starting",
        "pod.running",
        "job.running",
        "pod.released",
        "job.succeeded",
    ]
    plant.settle()
    assert plant.engine.pods() == ()  # forgotten once its end was recorded


def test_a_job_that_was_over_before_it_was_seen_to_run_ran_all_the_same(plant):
    job = make_job(make_project(), command=["sleep", "5"])
    plant.tick()  # starts the pod
    plant.tick(seconds=8)
    job.refresh_from_db()
    assert kinds(job) == ["job.submitted", "job.starting", "pod.released", "job.succeeded"]
    (pod,), (attempt,) = job.pods.all(), job.attempts.all()
    assert pod.started_at is not None
    assert job.started_at == attempt.started_at == pod.started_at
    assert job_detail(job)["status"]["runtime_seconds"] is not None


def test_stop_releases_the_gpu_only_when_the_pod_is_gone(plant):
    plant.engine.faults.stop_delay_seconds = 4
    job = make_job(make_project())
    plant.settle()
    stop_job(job, actor=actor())
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.next_state) == ("stopping", "stopped")
    assert plant.allocated() == {"team-a": 1}
    plant.in_seconds(5)
    job.refresh_from_db()
    assert job.state == "stopped"
    assert plant.allocated() == {}


def test_a_failed_job_is_retried_with_back_off_and_then_fails(plant):
    job = make_job(make_project(), retries=1)
    plant.settle()
    plant.engine.finish(Pod.objects.get().name, 3)
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.reason, job.failures) == ("queued", "backing_off", 1)
    plant.tick(seconds=5)
    job.refresh_from_db()
    assert job.state == "queued"
    plant.in_seconds(7)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)
    plant.engine.finish(Pod.objects.get(released_at=None).name, 4)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.reason) == ("failed", 4, "exit_code")


def test_a_gang_fails_whole(plant):
    job = make_job(make_project(quota=8), gpus=2, workers=4)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    assert plant.allocated() == {"team-a": 8}
    plant.engine.finish(Pod.objects.get(rank=2).name, 1)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.exit_code) == ("failed", 1)
    assert plant.allocated() == {}


def test_suspend_gives_back_and_resume_queues_at_the_first_rank(plant):
    job = make_job(make_project())
    plant.settle()
    suspend_job(job, actor=actor())
    plant.settle()
    job.refresh_from_db()
    assert job.state == "suspended"
    assert plant.allocated() == {}
    rank = job.submit_rank
    resume_job(job, actor=actor())
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.submit_rank) == ("running", 2, rank)


def test_delete_stops_first_and_leaves_nothing(plant):
    job = make_job(make_project())
    plant.settle()
    delete_job(job, actor=actor())
    assert Job.objects.filter(pk=job.pk).exists()
    plant.settle()
    assert not Job.objects.filter(pk=job.pk).exists()
    assert plant.allocated() == {}
    assert plant.engine.pods() == ()


def test_a_refused_start_fails_the_job_with_the_engines_reason(plant):
    plant.engine.faults.start_refusal = ("image_unknown", "There is no image 'x'.")
    job = make_job(make_project())
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason, job.message) == ("failed", "image_unknown", "There is no image 'x'.")
    assert plant.allocated() == {}


def test_a_lost_answer_starts_nothing_twice(plant):
    plant.engine.faults.loses_answers = True
    job = make_job(make_project())
    plant.tick()
    plant.engine.faults.loses_answers = False
    Command.objects.update(not_before=job.created_at)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    assert len(plant.engine.pods()) == 1


def test_a_poison_command_is_given_up_and_others_flow(plant, monkeypatch):
    start, poisoned = plant.engine.start, make_job(make_project(), "poison")

    def fail_on_poison(spec):
        if spec.job_name == "poison":
            raise OSError("disk on fire")
        start(spec)

    monkeypatch.setattr(plant.engine, "start", fail_on_poison)
    other = make_job(poisoned.project, "other")
    for _ in range(Command.MOST_TRIES + 1):
        plant.tick()
        Command.objects.update(not_before=poisoned.created_at)
    plant.settle()
    poisoned.refresh_from_db()
    other.refresh_from_db()
    assert (poisoned.state, poisoned.reason) == ("failed", "engine_error")
    assert "disk on fire" in poisoned.message
    assert other.state == "running"
    assert plant.allocated() == {"team-a": 1}


def test_an_unreachable_engine_changes_no_job(plant):
    job = make_job(make_project())
    plant.settle()
    plant.engine.faults.is_unreachable = True
    waiting = make_job(job.project, "late")
    plant.in_seconds(20)
    job.refresh_from_db()
    waiting.refresh_from_db()
    assert job.state == "running"
    assert (waiting.state, waiting.reason) == ("queued", "engine_unreachable")
    plant.engine.faults.is_unreachable = False
    plant.settle()
    waiting.refresh_from_db()
    assert waiting.state == "running"


@pytest.mark.parametrize("has_order", [True, False])
def test_a_pod_that_vanished_sends_its_job_back_and_frees_its_gpu(plant, has_order):
    job = make_job(make_project())
    plant.settle()
    lost = Pod.objects.get()
    plant.engine.lose(lost.name)
    if not has_order:  # that of its start is cleared away after a week
        Command.objects.all().delete()
        plant.clock.advance(LATE_START_SECONDS)
    plant.in_seconds(10)
    job.refresh_from_db()
    lost.refresh_from_db()
    assert (lost.reason, lost.released_at is not None) == ("pod_lost", True)
    assert (job.state, job.attempt, job.failures) == ("running", 2, 0)
    assert plant.allocated() == {"team-a": 1}


def test_a_pod_that_only_an_old_view_does_not_show_keeps_its_gpu(plant, monkeypatch):
    """The view of the worker that has the loop is behind: another one has started the pod."""
    job = make_job(make_project())
    plant.settle()
    with monkeypatch.context() as patch:
        patch.setattr(plant.engine, "pods", tuple)
        plant.in_seconds(10)
    plant.settle()
    pod = Pod.objects.get()
    job.refresh_from_db()
    assert (job.state, pod.state, pod.released_at) == ("running", "running", None)


@pytest.mark.parametrize("trouble", [EngineUnreachable("away"), EngineRefused("not_permitted", "No.")])
def test_a_pod_that_nothing_certain_is_known_of_keeps_its_gpu(plant, monkeypatch, trouble):
    job = make_job(make_project())
    plant.settle()
    plant.engine.lose(Pod.objects.get().name)

    def look(*_arguments) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(plant.engine, "find", look)
        plant.in_seconds(10)
        job.refresh_from_db()
        assert (job.state, plant.allocated()) == ("running", {"team-a": 1})
    plant.settle()
    job.refresh_from_db()
    assert job.attempt == 2


def test_a_start_that_was_given_up_and_came_true_keeps_its_gpu_until_it_is_stopped(plant, monkeypatch):
    """Its answers were lost, and the view has not shown it yet."""
    job = make_job(make_project())
    plant.tick()
    plant.settle()
    Pod.objects.update(state="failed", reason="cluster_failed")
    with monkeypatch.context() as patch:
        patch.setattr(plant.engine, "pods", tuple)
        run_cycle(plant.clock())
        assert Pod.objects.get().released_at is None
    plant.settle()
    assert Pod.objects.filter(released_at=None).count() == 1
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)


def test_the_name_of_a_pod_that_was_stopped_before_its_start_is_held_until_no_start_can_be_on_its_way(plant):
    job = make_job(make_project())
    run_cycle(plant.clock())
    stop_job(job, actor=SYSTEM)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "stopped"
    held = Command.objects.get(kind="forget_pod")
    assert (held.state, held.not_before - held.created_at > timedelta(seconds=50)) == ("pending", True)
    assert [pod.reason for pod in plant.engine.pods()] == ["stopped"]
    Command.objects.update(not_before=job.created_at)
    plant.settle()
    assert not plant.engine.pods()


def test_a_stray_pod_is_stopped_and_forgotten(plant):
    job = make_job(make_project())
    plant.settle()
    Job.objects.filter(pk=job.pk).delete()  # somebody restored an old database
    plant.settle()
    assert plant.engine.pods() == ()


def test_time_limits_end_jobs_by_name(plant):
    project = make_project(interactive_max_seconds=30)
    short = make_job(project, "short", max_runtime_seconds=10)
    notebook = make_job(project, "notebook", kind="interactive")
    plant.settle()
    plant.in_seconds(12)
    short.refresh_from_db()
    assert (short.state, short.reason) == ("timed_out", "max_runtime")
    plant.in_seconds(20)
    notebook.refresh_from_db()
    assert (notebook.state, notebook.reason) == ("timed_out", "interactive_time_limit")


def test_a_finished_job_is_removed_after_its_time_to_live(plant):
    job = make_job(make_project(), command=["sleep", "1"], ttl_seconds_after_finished=60)
    plant.settle()
    plant.tick(seconds=2)
    assert plant.states() == {"job": "succeeded"}
    plant.tick(seconds=70)
    assert not Job.objects.filter(pk=job.pk).exists()


def test_a_second_cycle_on_an_unchanged_cluster_changes_nothing(plant):
    project = make_project(quota=2)
    for number in range(20):
        make_job(project, f"job-{number}")
    plant.settle()
    before = Event.objects.last_seq()
    plant.settle()
    assert Event.objects.last_seq() == before
    assert list(plant.states().values()).count("running") == 16


def notebook_with_idle_limit(plant, seconds=20):
    project = make_project(interactive_idle_seconds=seconds)
    job = make_job(project, "notebook", kind="interactive")
    plant.settle()
    return job, Pod.objects.get().name


def test_the_idle_limit_counts_from_the_last_use(plant):
    notebook, pod = notebook_with_idle_limit(plant)
    plant.engine.set_usage(pod, 0.5, 1000)
    for _ in range(3):
        plant.in_seconds(10)
        collect_once(plant.clock())
    notebook.refresh_from_db()
    assert notebook.state == "running"
    plant.engine.set_usage(pod, 0.0, 1000)
    collect_once(plant.clock())
    plant.in_seconds(25)
    notebook.refresh_from_db()
    assert (notebook.state, notebook.reason) == ("timed_out", "interactive_idle")


def test_nobody_is_called_idle_for_an_outage_of_ours(plant):
    notebook, _ = notebook_with_idle_limit(plant)
    collect_once(plant.clock())
    plant.clock.advance(600)  # the control plane is away
    Lease.objects.filter(name="collect").update(completed_at=plant.cluster.created_at - timedelta(hours=1))
    plant.settle()  # the loop is back before the collector has looked
    notebook.refresh_from_db()
    assert notebook.state == "running"
    collect_once(plant.clock())
    plant.in_seconds(15)
    notebook.refresh_from_db()
    assert notebook.state == "running"
    plant.in_seconds(10)
    notebook.refresh_from_db()
    assert notebook.state == "timed_out"


def test_a_given_up_start_that_the_engine_still_shows_as_starting_ends(plant, monkeypatch):
    job = make_job(make_project())
    plant.tick()
    pod = Pod.objects.get()
    Pod.objects.filter(pk=pod.pk).update(
        state="failed", reason="engine_error", message="The engine failed 5 times."
    )
    report = replace(next(iter(plant.engine.pods())), state="starting")
    monkeypatch.setattr(plant.engine, "pods", lambda: (report,))
    plant.tick()
    job.refresh_from_db()
    assert (job.state, job.next_state) == ("stopping", "failed")
    monkeypatch.undo()
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("failed", "engine_error")
    assert plant.allocated() == {}


def test_a_paused_process_cannot_unrelease_a_pod(plant):
    job = make_job(make_project(), command=["sleep", "1"])
    plant.settle()
    stale = Pod.objects.get()
    seen = next(iter(plant.engine.pods()))
    plant.tick(seconds=2)
    job.refresh_from_db()
    assert job.state == "succeeded"
    stale.ports = {"1": ["x", 1]}
    _write([stale], {stale.pk: "running"}, plant.clock())  # what a process writes that was stopped in between
    assert seen.state == "running"
    pod = Pod.objects.get()
    assert (pod.state, pod.ports) == ("succeeded", {})
    assert pod.released_at is not None


def test_one_clusters_trouble_neither_stops_others_nor_passes_for_ready(plant, monkeypatch):
    broken = make_cluster("broken", nodes=0)
    engine = MemoryEngine({"nodes": {}})
    give_engine(broken, engine)
    monkeypatch.setattr(engine, "pods", lambda: json.loads(""))
    job = make_job(make_project())
    Lease.objects.update(completed_at=None)
    plant.settle()
    job.refresh_from_db()
    give_engine(broken, None)
    assert job.state == "running"
    assert Lease.objects.get(name="loop").completed_at is None


def test_a_job_that_ends_while_it_is_deleted_is_removed(plant):
    job = make_job(make_project(), command=["sleep", "1"])
    plant.settle()
    stale = Job.objects.get(pk=job.pk)
    plant.tick(seconds=2)
    delete_job(stale, actor=actor())  # the caller still sees it running
    assert not Job.objects.filter(pk=job.pk).exists()


def test_suspending_a_job_on_its_way_to_the_queue_holds(plant):
    plant.engine.faults.stop_delay_seconds = 3
    job = make_job(make_project())
    plant.settle()
    drain_node(Node.objects.get(name="dgx1-1"), actor=Actor(user=make_user("root", is_admin=True)))
    drain_node(Node.objects.get(name="dgx1-2"), actor=Actor(user=make_user("root", is_admin=True)))
    job.refresh_from_db()
    assert (job.state, job.next_state, job.reason) == ("stopping", "queued", "node_drained")
    suspend_job(job, actor=actor())
    plant.in_seconds(5)
    job.refresh_from_db()
    assert job.state == "suspended"
    stop_job(job, actor=actor())
    with pytest.raises(Conflict):
        suspend_job(job, actor=actor())


def test_devices_follow_the_engine(plant):
    plant.tick()
    smaller = {"nodes": {"dgx1-1": {"devices": 2, "memory_mib": 16384, "pool": "default"}}}
    sync_nodes(plant.cluster, MemoryEngine(smaller), plant.clock())
    rows = Device.objects.order_by("node__name", "index")
    assert list(rows.values_list("node__name", "index", "memory_mib")) == [
        *[("dgx1-1", index, 16384) for index in range(2)],
        *[("dgx1-2", index, 32768) for index in range(8)],
    ]
    assert not Node.objects.get(name="dgx1-2").is_ready
    sync_nodes(plant.cluster, plant.engine, plant.clock())
    assert Device.objects.count() == 16


def test_a_node_name_of_another_cluster_is_left_out(plant):
    other = Cluster.objects.create(name="other", engine="memory", settings={})
    nodes = {name: {"devices": 1, "memory_mib": 1000, "pool": "default"} for name in ("dgx1-1", "own")}
    sync_nodes(other, MemoryEngine({"nodes": nodes}), plant.clock())
    assert list(Node.objects.filter(cluster=other).values_list("name", flat=True)) == ["own"]


def test_a_drained_node_is_named_among_the_reasons(plant):
    root = Actor(user=make_user("root", is_admin=True))
    drain_node(Node.objects.get(name="dgx1-1"), actor=root)
    project = make_project(quota=0)
    for number in range(9):
        make_job(project, f"job-{number}")
    plant.settle()
    (waiting,) = Job.objects.filter(state="queued")
    assert "8 more on cordoned or unready nodes" in waiting.message


def test_what_is_never_preempted_is_never_said_to_be_borrowed(plant):
    project = make_project(quota=1)
    make_job(project, "train", gpus=1)
    plant.settle()
    make_job(project, "notebook", kind="interactive", gpus=1)
    plant.settle()
    assert Job.objects.get(name="notebook").reason == "started_in_quota"


def test_who_saved_a_checkpoint_last_has_least_to_lose(plant):
    borrower = make_project("borrower", quota=0)
    early, late = make_job(borrower, "early", gpus=8), make_job(borrower, "late", gpus=8)
    plant.settle()
    saved = int(plant.clock().timestamp()) + 3000
    plant.engine.print_line(
        Pod.objects.get(job=early).name, json.dumps({"trainyard": 1, "checkpoint_at": saved})
    )
    plant.clock.advance(3600)
    collect_once(plant.clock())
    early.refresh_from_db()
    assert early.progress == {"checkpoint_at": saved}
    make_job(make_project("owner", quota=8), "mine", gpus=8)
    plant.settle()
    late.refresh_from_db()
    early.refresh_from_db()
    assert (early.state, late.state) == ("queued", "running")  # newest first would have taken the other
