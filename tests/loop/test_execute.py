"""Commands: what is tried again and what is given up, pools that do not wait for one another, looks at clusters."""

import os
import threading
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.db import connections
from django.utils import timezone

from controlplane import command_handlers
from controlplane.access import SYSTEM
from controlplane.engines import registry
from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.memory import MemoryEngine
from controlplane.loop import execute
from controlplane.loop.cluster_warnings import warn_of_leftovers
from controlplane.loop.execute import AHEAD, ENDS, STARTS, WorkerPool, execute_due
from controlplane.models import Cluster, Command, Event
from jobs.actions import stop_job
from jobs.command_handlers import STARTING_SECONDS
from jobs.command_kinds import FORGET_JOB, FORGET_POD
from jobs.models import Attempt, Pod
from jobs.transitions import LATE_START_SECONDS
from tests.builders import make_cluster, make_job, make_project
from tests.engines import give_engine
from tests.waiting import patience, wait_until


def make_due() -> None:
    """Let every back-off be over."""
    Command.objects.update(not_before=Cluster.objects.earliest("pk").created_at)


# Refusals


def test_a_refusal_that_passes_is_tried_again_and_its_pod_says_so_meanwhile(plant):
    faults = plant.engine.faults
    faults.start_refusal, faults.is_passing = (
        ("quota_refused", "The quota of the namespace is used up."),
        True,
    )
    job = make_job(make_project())
    plant.tick()
    pod = Pod.objects.get()
    assert (pod.state, pod.reason, pod.message) == ("pending", *faults.start_refusal)
    faults.start_refusal = None
    make_due()
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"


def try_often(plant) -> None:
    for _ in range(2 * Command.MOST_TRIES):
        plant.tick()
        make_due()


def try_to_the_end(plant) -> None:
    """The cluster has put the start off for as long as one is tried."""
    try_often(plant)
    starts = Command.objects.filter(kind="start_pod")
    starts.update(created_at=timezone.now() - timedelta(seconds=STARTING_SECONDS + 1))
    plant.tick()


def test_what_passes_is_tried_for_minutes_while_the_job_says_what_it_waits_for(plant):
    faults = plant.engine.faults
    faults.start_refusal, faults.is_passing = (("quota_refused", "The quota is used up."), True)
    job = make_job(make_project())
    try_often(plant)
    job.refresh_from_db()
    assert (job.state, job.reason, job.message) == ("starting", *faults.start_refusal)
    assert Command.objects.get(kind="start_pod").tries == 2 * Command.MOST_TRIES
    plant.tick()
    wait = Command.objects.get(kind="start_pod").not_before - timezone.now()
    assert timedelta(seconds=20) < wait <= timedelta(seconds=30)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("quota_refused", "quota_refused"),
        ("credentials_refused", "credentials_refused"),
        ("namespace_not_ours", "cluster_failed"),
        ("admission_refused", "cluster_failed"),
    ],
)
def test_what_does_not_pass_in_time_sends_the_job_back_to_the_queue(plant, code, told):
    faults = plant.engine.faults
    faults.start_refusal, faults.is_passing = ((code, "No more of it."), True)
    job = make_job(make_project())
    try_to_the_end(plant)
    faults.start_refusal = None
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.failures) == ("running", 2, 0)
    first = Attempt.objects.get(number=1)
    assert (first.reason, "No more of it." in first.message) == (told, True)


@pytest.mark.parametrize("code", ["admission_refused", "invalid_pod"])
def test_a_refusal_for_good_fails_the_job_at_once(plant, code):
    plant.engine.faults.start_refusal = (code, "The policy says no.")
    job = make_job(make_project())
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason, job.message) == ("failed", code, "The policy says no.")
    assert Command.objects.get(kind="start_pod").tries == 1


def test_a_cluster_that_does_not_carry_out_a_start_keeps_the_job_waiting(plant, monkeypatch):
    def fail(_spec) -> None:
        raise EngineUnreachable("The API server answered 500: failed calling webhook guard.example")

    job = make_job(make_project())
    with monkeypatch.context() as patch:
        patch.setattr(plant.engine, "start", fail)
        try_often(plant)
        job.refresh_from_db()
        assert (job.state, job.reason) == ("starting", "cluster_failed")
        assert "failed calling webhook guard.example" in job.message
        try_to_the_end(plant)
        plant.settle()
        first = Attempt.objects.get(number=1)
        assert (first.outcome, first.reason) == ("disrupted", "cluster_failed")
        assert "failed calling webhook guard.example" in first.message
    make_due()
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.failures) == ("running", 0)


def test_a_start_that_was_given_up_and_comes_late_runs_nothing(plant, monkeypatch):
    """Its last call has no answer yet: nobody knows whether it will be carried out."""
    start, calls = plant.engine.start, []

    def without_an_answer(spec) -> None:
        calls.append(spec)
        raise EngineUnreachable("The API server did not answer in time.")

    job = make_job(make_project(quota=1), gpus=1)
    monkeypatch.setattr(plant.engine, "start", without_an_answer)
    try_to_the_end(plant)
    plant.tick()
    monkeypatch.undo()
    make_due_but_for(FORGET_POD)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)
    start(calls[0])
    running = {report.name for report in plant.engine.pods() if not report.is_proven_gone}
    assert running == {f"{job.pk}-2-0"}


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_no_stop_can_reach_gives_its_devices_back_after_a_minute(plant, monkeypatch, is_taken):
    """As where a webhook takes no pod at all: no tombstone either."""

    def refused(*_args) -> None:
        raise EngineRefused("admission_refused", "No pod at all.", is_passing=is_taken)

    job = make_job(make_project())
    monkeypatch.setattr(plant.engine, "stop", refused)
    monkeypatch.setattr(plant.engine, "start", refused)
    try_to_the_end(plant)
    plant.settle()
    assert bool(plant.allocated()) is is_taken, "one refused for good at its first try was never made"
    plant.tick(seconds=LATE_START_SECONDS + 60)  # commands end by the true clock, which has gone on too
    assert not Pod.objects.filter(attempt__number=1, released_at=None).exists()
    job.refresh_from_db()
    # refused for good it is not tried again; put off it is, without a failure of its own
    expected = ("starting", 2, 0) if is_taken else ("failed", 1, 0)
    assert (job.state, job.attempt, job.failures) == expected


def make_due_but_for(kind: str) -> None:
    due = Command.objects.exclude(kind=kind)
    due.update(not_before=Cluster.objects.earliest("pk").created_at)


def test_a_stop_says_in_which_project(plant, monkeypatch):
    told = []
    monkeypatch.setattr(plant.engine, "stop", lambda *arguments: told.append(arguments))
    job = make_job(make_project())
    plant.settle()
    name = Pod.objects.get().name
    stop_job(job, actor=SYSTEM)
    execute_due()
    assert told == [(name, 10, "team-a")]


# Worker pools

transactional = pytest.mark.django_db(transaction=True)


def in_a_thread(work) -> threading.Thread:
    def run():
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def orders(cluster: Cluster, kind: str, names: list[str]) -> None:
    payloads = {"stop_pod": {"grace_seconds": 1}}
    Command.objects.bulk_create(
        Command(kind=kind, cluster=cluster, subject_id=name, payload=payloads.get(kind, {})) for name in names
    )


@transactional
def test_a_slow_cluster_holds_up_no_other_and_starts_hold_up_no_stop():
    slow, quick = make_cluster("slow", nodes=0), make_cluster("quick", nodes=0)
    engines = {cluster.pk: MemoryEngine({"nodes": {}}) for cluster in (slow, quick)}
    for cluster in (slow, quick):
        give_engine(cluster, engines[cluster.pk])
    hang, hangs = threading.Event(), threading.Semaphore(0)

    def start(spec):
        hangs.release()
        assert hang.wait(patience(60))

    engines[slow.pk].start = start
    payload = dict.fromkeys(("command", "args", "ports", "devices"), ())
    payload |= {"name": "x", "job_id": "x", "job_name": "x", "project": "x"}
    payload |= {"attempt": 1, "rank": 0, "node": "x"}
    Command.objects.bulk_create(
        Command(kind="start_pod", cluster=slow, subject_id=f"s-{number}", payload=payload)
        for number in range(2 * AHEAD * STARTS.width)
    )
    starts = WorkerPool(slow.pk, STARTS)
    thread = in_a_thread(starts.work)
    try:
        assert hangs.acquire(timeout=patience(10)), "nothing was started"
        orders(slow, "stop_pod", ["a"])
        orders(quick, "stop_pod", ["b"])
        for cluster in (slow, quick):
            pool = WorkerPool(cluster.pk, ENDS)
            assert pool.work() == 1
            pool.close()
        assert [pod.name for cluster in (slow, quick) for pod in engines[cluster.pk].pods()] == ["a", "b"]
        assert Command.objects.filter(kind="stop_pod", state="done").count() == 2
    finally:
        starts.close()
        hang.set()
        thread.join()
        give_engine(slow, None)
        give_engine(quick, None)
    # what a closed pool had begun is recorded, what it had not is left to its claim's expiry
    done = Command.objects.filter(kind="start_pod", state="done").count()
    assert 1 <= done <= STARTS.width
    assert Command.objects.filter(kind="start_pod", state="pending").exists()


@transactional
def test_stops_go_before_what_only_cleans_up():
    cluster = make_cluster(nodes=0)
    engine = MemoryEngine({"nodes": {}})
    give_engine(cluster, engine)
    told: list[str] = []
    engine.forget = lambda name: told.append("forget")
    engine.stop = lambda *arguments: told.append("stop")
    orders(cluster, "forget_pod", [f"old-{number}" for number in range(100)])
    orders(cluster, "stop_pod", ["young"])
    assert execute_due() == 101
    give_engine(cluster, None)
    assert "stop" in told[: 2 * ENDS.width]


@transactional
def test_two_processes_carry_out_each_command_once():
    cluster = make_cluster(nodes=0)
    engine = MemoryEngine({"nodes": {}})
    give_engine(cluster, engine)
    told: list[str] = []
    engine.forget = told.append
    names = [f"p-{number}" for number in range(200)]
    orders(cluster, "forget_pod", names)
    pools = [WorkerPool(cluster.pk, ENDS) for _ in range(2)]
    threads = [in_a_thread(pool.work) for pool in pools]
    for thread in threads:
        thread.join(patience(20))
    give_engine(cluster, None)
    assert sorted(told) == sorted(names)
    assert set(Command.objects.values_list("state", flat=True)) == {"done"}


@transactional
def test_commands_flow_though_each_takes_its_time():
    cluster = make_cluster(nodes=0)
    engine = MemoryEngine({"nodes": {}})
    together, stop = threading.Barrier(4), engine.stop

    def stop_four_at_once(*arguments: object) -> None:
        together.wait(patience(30))
        stop(*arguments)

    engine.stop = stop_four_at_once
    give_engine(cluster, engine)
    orders(cluster, "stop_pod", [f"p-{number}" for number in range(80)])
    assert execute_due() == 80
    give_engine(cluster, None)
    assert not together.broken
    assert Command.objects.filter(state="done").count() == 80


# Looks at clusters


@dataclass
class Found:
    name: str
    outcome: str
    message: str = ""
    without_it: str = ""


def look_at(monkeypatch, state: str, found) -> Cluster:
    """A cluster with an order to look at it, carried out."""

    def check(kind, settings):
        if isinstance(found, Exception):
            raise found
        assert settings["cluster"] == "prod"
        return found

    monkeypatch.setattr(registry, "check_cluster", check, raising=False)
    cluster = Cluster.objects.create(name="prod", engine="kubernetes", settings={}, state=state)
    Command.objects.create(
        kind="check_cluster", cluster=cluster, subject_id="prod", payload={"scheduler": "planner"}
    )
    for _ in range(Command.MOST_TRIES):
        execute_due()
        make_due()
    cluster.refresh_from_db()
    assert Command.objects.get().payload == {}  # what was looked at is kept nowhere but on its cluster
    return cluster


@pytest.mark.parametrize(("outcome", "state"), [("warning", "attached"), ("failed", "refused")])
def test_a_look_decides_whether_the_cluster_is_attached(db, monkeypatch, outcome, state):
    cluster = look_at(
        monkeypatch, "checking", [Found("api", "ok"), Found("gpus", outcome, "No GPU.", "CPU only")]
    )
    assert cluster.state == state
    assert cluster.checked_at is not None
    second = {"name": "gpus", "outcome": outcome, "message": "No GPU.", "without_it": "CPU only"}
    assert cluster.checks[1] == second
    event = Event.objects.get()
    assert (event.kind, event.message) == (f"cluster.{state}", "prod: gpus" if state == "refused" else "prod")


def test_another_look_at_an_attached_cluster_does_not_let_its_jobs_down(db, monkeypatch):
    cluster = look_at(monkeypatch, "attached", [Found("api", "failed", "No answer.")])
    assert (cluster.state, cluster.checks[0]["message"]) == ("attached", "No answer.")
    assert Event.objects.get().kind == "cluster.checked"


@pytest.mark.parametrize(
    "error", [EngineUnreachable("no route"), EngineRefused("not_permitted", "Forbidden.")]
)
def test_a_look_that_cannot_be_had_refuses_the_cluster_in_words(db, monkeypatch, error):
    cluster = look_at(monkeypatch, "checking", error)
    assert cluster.state == "refused"
    assert str(error) in cluster.checks[0]["message"]


def test_an_end_that_cannot_be_written_keeps_no_other_and_is_given_up_in_time(plant, monkeypatch):
    def settle(command, checks, now):
        if all(check["outcome"] == "ok" for check in checks):
            raise ZeroDivisionError("poison")
        told.append(checks[0]["message"])

    told: list[str] = []
    monkeypatch.setattr(command_handlers, "settle_check", settle)
    monkeypatch.setattr(registry, "check_cluster", lambda kind, settings: [Found("api", "ok")])
    monkeypatch.setattr(plant.engine, "forget_project", lambda name: None)
    ours = {"cluster": plant.cluster}
    poison = Command.objects.create(kind="check_cluster", **ours)
    others = [
        Command.objects.create(kind="forget_project", subject_id=name, **ours)
        for name in ("team-a", "team-b")
    ]
    execute_due()
    assert {Command.objects.get(pk=other.pk).state for other in others} == {"done"}
    poison.refresh_from_db()
    assert (poison.state, "poison" in poison.error, poison.not_before > timezone.now()) == (
        "pending",
        True,
        True,
    )
    for _ in range(Command.MOST_TRIES):
        make_due()
        execute_due()
    poison.refresh_from_db()
    assert (poison.state, len(told)) == ("failed", 1)
    assert "poison" in told[0]


def test_a_deleted_project_is_forgotten(plant, monkeypatch):
    told = []
    monkeypatch.setattr(plant.engine, "forget_project", told.append)
    Command.objects.create(kind="forget_project", cluster=plant.cluster, subject_id="team-a")
    plant.tick()
    assert told == ["team-a"]
    assert Command.objects.get().state == "done"


@pytest.mark.parametrize(
    "error",
    [
        EngineUnreachable("no route"),
        EngineRefused("not_permitted", "Forbidden."),
        RuntimeError("a fault of ours"),
    ],
    ids=["unreachable", "forbidden", "fault"],
)
def test_what_a_project_left_is_removed_in_time_and_told_of_until_then(plant, monkeypatch, error):
    told, faults = [], [error]

    def forget(project):
        if faults:
            raise faults[0]
        told.append(project)

    monkeypatch.setattr(plant.engine, "forget_project", forget)
    order = Command.objects.create(kind="forget_project", cluster=plant.cluster, subject_id="team-a")
    try_often(plant)
    order.refresh_from_db()
    assert order.state == "pending"
    warn_of_leftovers(plant.cluster)
    (check,) = Cluster.objects.get(pk=plant.cluster.pk).checks
    assert (check["name"], check["outcome"]) == ("leftovers", "warning")
    assert "team-a" in check["message"]
    assert str(error) in check["message"]
    faults.clear()
    plant.tick()
    warn_of_leftovers(plant.cluster)
    assert told == ["team-a"]
    assert Cluster.objects.get(pk=plant.cluster.pk).checks == []


def test_what_waited_too_long_for_its_turn_is_not_begun_but_given_back(plant, monkeypatch):
    """Its claim may have ended meanwhile, and another process be at it, or done."""
    told = []
    monkeypatch.setattr(plant.engine, "forget_project", told.append)
    order = Command.objects.create(kind="forget_project", cluster=plant.cluster, subject_id="team-a")
    with monkeypatch.context() as patched:
        patched.setattr(execute, "BEGIN_SECONDS", -1)
        pool = WorkerPool(plant.cluster.pk, ENDS)
        pool._take()
        wait_until(lambda: all(future.done() for future in pool._under_way), what="the call's turn")
        pool._write(list(pool._under_way))
        pool.close()
    order.refresh_from_db()
    assert (told, order.state, order.tries) == ([], "pending", 0)
    plant.tick()
    assert told == ["team-a"]


def test_two_orders_to_forget_a_job_at_the_same_time_fail_neither(plant, settings, monkeypatch):
    logs, unlink = settings.LOG_DIR / "job", os.unlink

    def after_the_other(path, **where):
        unlink(path, **where)
        if str(path).endswith("-0.log"):  # other threads remove files too
            unlink(path, **where)

    logs.mkdir(parents=True)
    for number in range(3):
        (logs / f"{number}-0.log").touch()
    monkeypatch.setattr(os, "unlink", after_the_other)
    Command.objects.create(kind=FORGET_JOB, cluster=plant.cluster, subject_id="job")
    plant.tick()
    assert Command.objects.get().state == Command.DONE
    assert not logs.exists()
