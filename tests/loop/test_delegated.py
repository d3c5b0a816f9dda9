"""Jobs on a cluster whose own scheduler decides: offered, taken over where they were placed, and sent back."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.access import Actor
from controlplane.engines.base import EngineRefused, Verdict
from controlplane.loop.project_sync import HELD_SECONDS, sync_projects_once, sync_requested
from controlplane.models import Command, Department, Event, Node, Project
from controlplane.queries.events import seen_event
from jobs.actions import edit_job, resume_job, stop_job, suspend_job
from jobs.models import Allocation, Attempt, Job, Pod
from jobs.queries import job_detail
from tests.builders import make_job, make_project, make_user
from tests.loop.deciding import DecidingPlant

NO_ROOM = Verdict("cluster_full", "no nodes with enough resources were found")


@pytest.fixture
def plant(db: None) -> Iterator[DecidingPlant]:
    plant = DecidingPlant()
    sync_requested.clear()
    yield plant
    plant.close()


def actor() -> Actor:
    return Actor(user=make_user())


def pod(job: Job, rank: int = 0, attempt: int = 1) -> str:
    return f"{job.pk}-{attempt}-{rank}"


def devices(job: Job) -> list[tuple[int, str, int, int]]:
    held = Allocation.objects.filter(pod__job=job, released_at=None).order_by("pod__rank", "device__index")
    return list(held.values_list("pod__rank", "device__node__name", "device__index", "milli_gpus"))


def run(plant: DecidingPlant, job: Job, node: str = "dgx1-1") -> None:
    plant.settle()
    for rank in range(job.pods_wanted):
        plant.engine.bind(pod(job, rank, job.attempt + 1), node)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"


def test_a_queued_job_stands_in_the_cluster_and_stays_queued(plant):
    job = make_job(make_project(), gpus=2, priority=70)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason, job.attempt, job.queue_position) == ("queued", "just_submitted", 0, 1)
    assert plant.engine.waiting() == [pod(job)]
    spec = plant.engine.spec_of(pod(job))
    assert (spec.node, spec.priority, spec.min_pods, len(spec.devices)) == ("", 70, 1, 2)
    assert not Pod.objects.exists()
    assert Command.objects.count() == 1  # neither offered twice nor taken for a stray


@pytest.mark.parametrize(
    "changed", ["limit", "quota", "weight", "priority", "department", "a department's limit"]
)
def test_nothing_is_offered_before_the_cluster_knows_the_projects_numbers(plant, changed):
    project = make_project(department=Department.objects.create(name="research"))
    make_job(make_project("team-b"), "other")
    plant.settle()
    sync_requested.clear()
    plant.is_slow_to_sync = True
    if changed == "a department's limit":
        Department.objects.update(gpu_limit_milli=6000)
    else:
        other = Department.objects.create(name="sales")
        fields = {
            "limit": {"gpu_limit_milli": 6000},
            "quota": {"gpu_quota_milli": 1000},
            "weight": {"over_quota_weight_milli": 0},
            "priority": {"priority": 3},
            "department": {"department": other},
        }
        Project.objects.filter(pk=project.pk).update(**fields[changed])
    job, elsewhere = make_job(project, gpus=7), make_job(Project.objects.get(name="team-b"), "elsewhere")
    plant.settle()
    assert plant.states()["job"] == "queued"
    assert pod(job) not in plant.engine.waiting()
    assert pod(elsewhere) in plant.engine.waiting()  # its project's numbers are known
    assert sync_requested.is_set()
    told: list[bool] = []
    assert sync_projects_once(lambda: told.append(pod(job) in plant.engine.waiting()))
    assert told == [False]  # the cycle is rung then
    plant.tick()
    assert pod(job) in plant.engine.waiting()
    assert sync_projects_once(lambda: told.append(True))
    assert told == [False]  # nobody waits any more


def test_a_change_while_the_cluster_is_being_told_waits_for_the_next_time(plant, monkeypatch):
    project, sync = make_project(), plant.engine.sync_projects
    plant.is_slow_to_sync = True

    def change_meanwhile(projects, departments) -> None:
        sync(projects, departments)
        Project.objects.update(gpu_limit_milli=6000)
        monkeypatch.undo()

    monkeypatch.setattr(plant.engine, "sync_projects", change_meanwhile)
    job = make_job(project, gpus=7)
    plant.tick()
    assert sync_projects_once()
    plant.settle()
    assert plant.engine.waiting() == []
    assert sync_projects_once()
    plant.settle()
    assert plant.engine.projects[0].limit_milli_gpus == 6000
    assert plant.engine.waiting() == [pod(job)]


def test_a_cycle_rings_once_for_what_it_waits_for(plant):
    plant.is_slow_to_sync = True
    project = make_project()
    for quota in (4000, 5000):
        Project.objects.filter(pk=project.pk).update(gpu_quota_milli=quota)
        plant.tick()
        assert sync_requested.is_set()
        sync_requested.clear()
        plant.settle()
        assert not sync_requested.is_set()  # who cannot tell is not asked twenty times a second


@pytest.mark.parametrize("memory", ["of a new engine", "of who edits members"])
def test_what_a_new_engine_was_told_is_not_known_and_members_bound_nothing(plant, memory):
    project = make_project()
    plant.settle()
    plant.is_slow_to_sync = True
    if memory == "of a new engine":
        plant.restart_engine()
    else:
        project.memberships.create(user=make_user("ana"), role="owner")
    make_job(project)
    plant.settle()
    assert bool(plant.engine.waiting()) is (memory == "of who edits members")


def test_a_cluster_that_refuses_its_projects_for_good_is_offered_as_before(plant):
    plant.engine.faults.project_refusal = ("not_permitted", "No right to patch queues.")
    job = make_job(make_project())
    plant.settle()
    assert plant.engine.waiting() == [pod(job)]


@pytest.mark.parametrize("trouble", ["refuses for now", "is broken", "nobody tells"])
def test_a_cluster_that_cannot_be_told_is_offered_after_a_while(plant, monkeypatch, trouble):
    def fail(*_: object) -> None:
        if trouble == "is broken":
            raise RuntimeError
        raise EngineRefused("definition_missing", "The cluster knows no Queue.", is_passing=True)

    monkeypatch.setattr(plant.engine, "sync_projects", fail)
    plant.is_slow_to_sync = trouble == "nobody tells"
    job = make_job(make_project())
    plant.in_seconds(HELD_SECONDS)
    assert plant.engine.waiting() == []
    plant.in_seconds(3)
    assert plant.engine.waiting() == [pod(job)]


def test_an_offer_that_the_cluster_does_not_take_for_now_says_so(plant):
    plant.engine.faults.start_refusal = ("definition_missing", "The cluster knows no PodGroup.")
    plant.engine.faults.is_passing = True
    job = make_job(make_project())
    plant.settle()
    in_a_minute = timezone.now() + timedelta(minutes=1)
    for state in ("pending", "claimed"):  # it waits for its next try, or somebody is at it
        Job.objects.update(reason="", message="")
        Command.objects.update(state=state, not_before=in_a_minute, claim_expires_at=in_a_minute)
        plant.tick()
        job.refresh_from_db()
        assert (job.state, job.reason) == ("queued", "cluster_refuses")
        assert job.message == "The cluster refuses its pods at present: The cluster knows no PodGroup."
        assert job.details["cluster_says"] == "The cluster knows no PodGroup."
    plant.engine.faults.start_refusal = None
    Command.objects.update(state="pending", not_before=job.created_at, claim_expires_at=None)
    run(plant, job)
    assert job.attempt == 1


def test_where_it_was_placed_becomes_its_attempt(plant):
    project = make_project()
    first, second = make_job(project, "first", gpus=2), make_job(project, "second", gpus=1)
    plant.settle()
    plant.engine.bind(pod(second), "dgx1-2")
    plant.settle()
    plant.engine.bind(pod(first), "dgx1-2")
    plant.settle()
    assert plant.states() == {"first": "running", "second": "running"}
    assert devices(second) == [(0, "dgx1-2", 0, 1000)]
    assert devices(first) == [(0, "dgx1-2", 1, 1000), (0, "dgx1-2", 2, 1000)]
    second.refresh_from_db()
    assert (second.attempt, second.reason, second.queue_position) == (1, "started_in_quota", None)
    assert plant.allocated() == {"team-a": 3}


def test_a_gang_starts_when_all_of_it_was_placed(plant):
    job = make_job(make_project(), workers=3, gpus=2)
    plant.settle()
    assert [plant.engine.spec_of(name).min_pods for name in plant.engine.waiting()] == [3, 3, 3]
    for rank, node in enumerate(["dgx1-1", "dgx1-1"]):
        plant.engine.bind(pod(job, rank), node)
    plant.settle()
    assert plant.states() == {"job": "queued"}
    plant.engine.bind(pod(job, 2), "dgx1-2")
    plant.settle()
    assert plant.states() == {"job": "running"}
    assert devices(job) == [
        (0, "dgx1-1", 0, 1000), (0, "dgx1-1", 1, 1000), (1, "dgx1-1", 2, 1000), (1, "dgx1-1", 3, 1000),
        (2, "dgx1-2", 0, 1000), (2, "dgx1-2", 1, 1000),
    ]  # fmt: skip


def test_what_the_clusters_scheduler_says_is_the_reason(plant):
    project = make_project(quota=1)
    job = make_job(project, "nb", kind="interactive", gpus=2)
    other = make_job(project, "big", gpus=8)
    plant.settle()
    over = Verdict(
        "interactive_over_quota", "Non-preemptible workload is over quota.", {"quota_milli_gpus": 1000}
    )
    plant.engine.say(pod(job), over)
    plant.engine.say(pod(other), NO_ROOM)
    plant.settle()
    job.refresh_from_db()
    assert job.reason == "interactive_over_quota"
    assert "has 1 GPU, 0 of them in use" in job.message
    assert job.details["cluster_says"] == "Non-preemptible workload is over quota."
    other.refresh_from_db()
    # nothing runs by our rows: the words are all that there is to tell
    assert (other.reason, other.details["cluster_says"]) == ("cluster_full", NO_ROOM.message)
    assert {job.queue_position, other.queue_position} == {1, 2}


def test_no_room_is_explained_by_our_own_numbers(plant):
    project, rival = make_project(quota=0), make_project("team-b", quota=16)
    for number in range(4):
        run(plant, make_job(rival, f"b-{number}", gpus=4), f"dgx1-{number % 2 + 1}")
    job = make_job(project, gpus=2)
    plant.settle()
    plant.engine.say(pod(job), NO_ROOM)
    plant.settle()
    job.refresh_from_db()
    assert job.reason == "over_fair_share"
    assert job.message.startswith("All 16 GPUs are in use")
    assert job.details["holders"][0]["project"] == "team-b"
    assert job.details["cluster_says"] == NO_ROOM.message


def test_a_stopped_job_leaves_the_cluster(plant):
    job = make_job(make_project())
    plant.settle()
    stop_job(job, actor=actor())
    plant.settle()
    assert plant.states() == {"job": "stopped"}
    assert plant.engine.pods() == ()


def test_a_resumed_job_is_offered_anew_under_another_number(plant):
    job = make_job(make_project())
    plant.settle()
    suspend_job(job, actor=actor())
    plant.tick()
    resume_job(job, actor=actor())
    plant.settle()
    assert plant.engine.waiting() == [pod(job, attempt=2)]
    plant.engine.bind(pod(job, attempt=2), "dgx1-1")
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)
    assert list(Attempt.objects.values_list("number", flat=True)) == [2]


def test_another_priority_is_another_offer(plant):
    job = make_job(make_project(), priority=50)
    plant.settle()
    edit_job(job, {"priority": 90}, actor=actor())
    plant.settle()
    assert plant.engine.waiting() == [pod(job, attempt=2)]
    assert plant.engine.spec_of(pod(job, attempt=2)).priority == 90


def test_a_pod_that_somebody_deletes_is_offered_again(plant):
    job = make_job(make_project())
    plant.settle()
    plant.engine.lose(pod(job))
    plant.in_seconds(8)
    assert plant.engine.waiting() == [pod(job, attempt=2)]


def test_an_eviction_sends_a_running_job_back_and_names_who_got_the_room(plant):
    victim = make_job(make_project(), "victim", gpus=2)
    run(plant, victim)
    taker = make_job(make_project("team-b"), "taker", gpus=2)
    plant.settle()
    plant.engine.faults.stop_delay_seconds = 3
    plant.engine.evict(pod(victim), str(taker.pk))
    plant.tick()
    victim.refresh_from_db()
    assert (victim.state, victim.next_state, victim.reason) == ("stopping", "queued", "preempted")
    assert victim.message.startswith("Its room went to project team-b, which reclaimed it.")
    shown = job_detail(victim, None)["status"]["reason"]["message"]
    assert shown.startswith("Its room went to job taker of team-b, which reclaimed it.")
    plant.in_seconds(4)
    victim.refresh_from_db()
    assert (victim.state, victim.reason, victim.failures) == ("queued", "preempted", 0)
    assert victim.details["by_job"] == str(taker.pk)
    assert victim.details["kind"] == "reclaim"
    assert pod(victim, attempt=2) in plant.engine.waiting()
    assert Attempt.objects.get(job=victim).outcome == "queued"


@pytest.mark.parametrize("taken_by", ["", "yard-x/their-group"])
def test_an_eviction_that_nobody_saw_costs_no_retry(plant, taken_by):
    victim = make_job(make_project(), retries=0)
    run(plant, victim)
    plant.engine.evict(pod(victim), taken_by, is_gone=True)
    plant.settle()
    victim.refresh_from_db()
    assert (victim.state, victim.failures, victim.attempt) == ("queued", 0, 1)
    assert plant.engine.waiting() == [pod(victim, attempt=2)]
    told = Event.objects.filter(job_id=victim.pk, kind="job.stopping").get()
    assert ("moved it" in told.message) is (taken_by == "")
    shown = seen_event(vars(told), None, "team-a")["message"]
    assert taken_by in shown


def test_a_refused_offer_fails_the_job(plant):
    plant.engine.faults.start_refusal = ("admission_refused", "The policy says no.")
    job = make_job(make_project())
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason, job.message) == ("failed", "admission_refused", "The policy says no.")


def test_an_offer_that_is_refused_for_nothing_of_the_jobs_own_is_made_again(plant):
    plant.engine.faults.start_refusal = ("credentials_refused", "Give it new ones.")
    job = make_job(make_project())
    plant.settle()
    job.refresh_from_db()
    assert job.state == "queued"
    plant.engine.faults.start_refusal = None
    plant.in_seconds(10)
    assert plant.engine.waiting() == [pod(job, attempt=2)]


def test_shares_stand_together_as_the_cluster_put_them(plant):
    project = make_project()
    jobs = [make_job(project, f"share-{milli}", gpus=milli / 1000) for milli in (500, 400, 300)]
    plant.settle()
    for job, group in zip(jobs, ["g1", "g2", "g1"], strict=True):
        plant.engine.bind(pod(job), "dgx1-1", group)
        plant.settle()
    assert [devices(job)[0][2:] for job in jobs] == [(0, 500), (1, 400), (0, 300)]


def test_a_pod_that_ended_before_anybody_looked_is_an_attempt(plant):
    job = make_job(make_project())
    plant.settle()
    plant.engine.bind(pod(job), "dgx1-1")
    plant.engine.finish(pod(job))
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.exit_code) == ("succeeded", 1, 0)
    assert plant.engine.pods() == ()


def test_a_failed_job_is_offered_again_only_when_its_time_has_come(plant):
    job = make_job(make_project(), retries=1)
    run(plant, job)
    plant.engine.finish(pod(job), exit_code=3)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("queued", "backing_off")
    assert plant.engine.waiting() == []
    plant.in_seconds(12)
    assert plant.engine.waiting() == [pod(job, attempt=2)]


def test_an_offer_is_for_the_pools_that_the_job_may_use(plant):
    project = make_project(node_pools={"train": ["default"]})
    job = make_job(project)
    plant.settle()
    assert plant.engine.spec_of(pod(job)).node_pools == ("default",)
    missing = make_job(project, "elsewhere", node_pool="spot")
    plant.settle()
    missing.refresh_from_db()
    assert missing.reason == "no_such_node_pool"
    assert plant.engine.waiting() == [pod(job)]


def test_nothing_is_offered_to_a_cluster_that_does_not_answer(plant):
    plant.engine.faults.is_unreachable = True
    job = make_job(make_project())
    plant.settle()
    job.refresh_from_db()
    assert job.reason == "engine_unreachable"
    plant.engine.faults.is_unreachable = False
    plant.settle()
    assert plant.engine.waiting() == [pod(job)]


def test_back_in_planner_mode_offers_are_withdrawn_and_the_planner_decides(plant):
    job = make_job(make_project())
    plant.settle()
    plant.cluster.scheduler = "planner"
    plant.cluster.save(update_fields=["scheduler"])
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)
    assert [report.name for report in plant.engine.pods()] == [pod(job, attempt=2)]


def test_a_node_that_is_cordoned_here_is_avoided_there(plant):
    job = make_job(make_project())
    plant.settle()
    Node.objects.filter(name="dgx1-2").update(is_cordoned=True)
    plant.settle()
    assert plant.engine.waiting() == [pod(job, attempt=2)]
    assert plant.engine.spec_of(pod(job, attempt=2)).avoid_nodes == ("dgx1-2",)


def test_shares_that_were_placed_at_once_stand_as_the_cluster_put_them(plant):
    project = make_project()
    jobs = [make_job(project, f"share-{milli}", gpus=milli / 1000) for milli in (500, 400, 300)]
    plant.settle()
    for job, group in zip(jobs, ["g1", "g2", "g1"], strict=True):
        plant.engine.bind(pod(job), "dgx1-1", group)
    plant.settle()
    assert [devices(job)[0][2:] for job in jobs] == [(0, 500), (1, 400), (0, 300)]


def test_a_gang_of_which_a_part_is_taken_away_is_offered_anew(plant):
    job = make_job(make_project(), workers=2)
    plant.settle()
    plant.engine.bind(pod(job), "dgx1-1")
    plant.engine.evict(pod(job), "")
    plant.engine.bind(pod(job, 1), "dgx1-1")
    plant.settle()
    assert plant.states() == {"job": "queued"}
    assert plant.engine.waiting() == [pod(job, attempt=2), pod(job, 1, attempt=2)]
    assert not Attempt.objects.exists()  # it never stood there whole
