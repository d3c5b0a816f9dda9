"""The hub: what clients hold is what the database says, whoever they are and whatever happens."""

import json
from dataclasses import replace
from itertools import count

import pytest
from django.db import IntegrityError, OperationalError

from controlplane.access import SYSTEM
from controlplane.actions import accounts, nodes, projects
from controlplane.live.database_changes import database_changes
from controlplane.live.feeds import Reader
from controlplane.loop.reconcile import note_reachable
from controlplane.models import Event, Membership, Node, Role, Token
from jobs import actions, node_actions
from jobs.models import Allocation, Attempt, Job, Pod
from tests.builders import make_job
from tests.cast import Cast
from tests.live.harness import QUICK, FakeClient, LiveHub, fresh, is_in_step
from tests.waiting import wait_until


def token_of(cast: Cast, name: str) -> str:
    user = getattr(cast, name)
    return accounts.issue_token(user, "test", actor=cast.actor(name))[1]


def joined(live: LiveHub, cast: Cast, name: str, *topics: str) -> FakeClient:
    client = live.connect(token_of(cast, name))
    for topic in topics:
        live.follow(client, topic)
    return client


def start(job: Job, node: str = "dgx1-1", index: int = 0) -> Pod:
    """What the loop would write when it starts a job, with its event."""
    Job.objects.filter(pk=job.pk).update(state="running", attempt=1, allocated_milli=1000)
    attempt = Attempt.objects.create(job=job, number=1)
    where = Node.objects.get(name=node)
    pod = Pod.objects.create(
        job=job, attempt=attempt, node=where, rank=0, name=f"{job.pk}-1-0", state="running"
    )
    Allocation.objects.create(pod=pod, device=where.devices.get(index=index), milli_gpus=1000)
    Event.objects.append([Event(kind="job.running", job_id=job.pk, project_id=job.project_id)])
    return pod


def ids_of(user) -> frozenset[int]:
    return frozenset(Membership.objects.filter(user=user).values_list("project_id", flat=True))


def wait_for_step(client: FakeClient, cast: Cast) -> None:
    """Wait until a member's overview is what the database says."""
    wait_until(lambda: is_in_step(client, "overview", ids_of(cast.ben)), what="the same view")


def submit(cast: Cast, name: str = "one", **body) -> Job:
    return make_job(cast.project, name, cast.ben, **body)


def test_an_idle_instance_is_not_read_and_a_change_is_found_at_once(people: Cast, live_db, monkeypatch):
    asked, looks, kind = count(), count(), type(database_changes())
    has_any, look = kind.has_any, Reader.look
    monkeypatch.setattr(kind, "has_any", lambda changes: (next(asked), has_any(changes))[1])
    monkeypatch.setattr(Reader, "look", lambda *given, **more: (next(looks), look(*given, **more))[1])
    with LiveHub(replace(QUICK, recheck=3600.0)) as live:
        client = joined(live, people, "ben", "overview")
        wait_for_step(client, people)
        before, until = next(looks), next(asked) + 30
        wait_until(lambda: next(asked) > until, what="thirty ticks")
        assert next(looks) - before <= 3
        submit(people)
        wait_for_step(client, people)


ACTIONS = {
    "submit": lambda cast, job: submit(cast, "another"),
    "stop": lambda cast, job: actions.stop_job(job, actor=cast.actor("ben")),
    "suspend": lambda cast, job: actions.suspend_job(job, actor=cast.actor("ben")),
    "resume": lambda cast, job: actions.resume_job(
        actions.suspend_job(job, actor=cast.actor("ben")), actor=cast.actor("ben")
    ),
    "edit": lambda cast, job: actions.edit_job(job, {"priority": 70}, actor=cast.actor("ben")),
    "delete": lambda cast, job: actions.delete_job(
        actions.stop_job(submit(cast, "gone"), actor=cast.actor("ben")), actor=cast.actor("ben")
    ),
    "start": lambda cast, job: start(job),
    "cordon": lambda cast, job: nodes.cordon_node(Node.objects.get(name="dgx1-1"), actor=SYSTEM),
    "drain": lambda cast, job: (
        start(job),
        node_actions.drain_node(Node.objects.get(name="dgx1-1"), actor=SYSTEM),
    ),
    "uncordon": lambda cast, job: nodes.uncordon_node(
        nodes.cordon_node(Node.objects.get(name="dgx1-2"), actor=SYSTEM), actor=SYSTEM
    ),
    "new project": lambda cast, job: projects.create_project(
        {"name": "team-c", "cluster": cast.project.cluster, "gpu_quota_milli": 2000}, actor=SYSTEM
    ),
    "edit project": lambda cast, job: projects.edit_project(
        cast.project, {"gpu_quota_milli": 6000}, actor=SYSTEM
    ),
    "new member": lambda cast, job: projects.set_member(cast.project, cast.root, Role.MEMBER, actor=SYSTEM),
    "member leaves": lambda cast, job: projects.remove_member(cast.project, cast.vera, actor=SYSTEM),
    "delete project": lambda cast, job: projects.delete_project(cast.other, actor=SYSTEM),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_after_an_action_states_plus_changes_are_the_fresh_states(live, people, name):
    job = submit(people)
    topics = ("overview", "queue", "project:team-a", f"job:{job.pk}")
    member = joined(live, people, "ben", *topics)
    admin = joined(live, people, "root", "overview", "queue")
    ACTIONS[name](people, job)
    seq = Event.objects.last_seq()
    assert seq > max(member.seqs.values())

    def all_in_step() -> bool:
        return all(is_in_step(member, topic, ids_of(people.ben)) for topic in topics) and all(
            is_in_step(admin, topic, None) for topic in ("overview", "queue")
        )

    wait_until(all_in_step, what="the clients' states to be the database's")
    assert member.seqs["overview"] == seq
    assert [frame["type"] for frame in member.frames[:4]] == ["state"] * 4
    assert {frame["type"] for frame in member.frames[4:]} <= {"change"}


def test_a_stranger_never_hears_of_others_jobs(live, people):
    chi = joined(live, people, "chi", "overview", "queue", "project:team-b")
    job = submit(people, "secretive")
    start(job)
    own = make_job(people.other, "own", people.chi)
    for topic in ("project:team-a", f"job:{job.pk}", f"job:{job.pk}:logs:0"):
        live.subscribe(chi, topic)
    wait_until(lambda: len(chi.errors()) == 3, what="three refusals")
    wait_until(lambda: str(own.pk) in chi.states["overview"]["queued"], what="the own job")
    assert chi.errors() == ["forbidden"] * 3
    self_reported = json.dumps(chi.frames)
    assert "secretive" not in self_reported
    assert "ben" not in self_reported
    shown = [frame for frame in chi.frames if frame["type"] != "error"]
    assert str(job.pk) not in json.dumps(shown)
    share = chi.states["overview"]["nodes"]["dgx1-1"]["devices"][0]["shares"][0]
    assert share == {"project": "team-a", "job": None, "milli_gpus": 1000}
    assert chi.states["overview"]["projects"]["team-a"]["allocated_gpus"] == 1
    assert chi.states["overview"]["totals"]["all"]["jobs_running"] == 1
    assert is_in_step(chi, "overview", ids_of(people.chi))


def test_a_job_that_does_not_exist_is_refused_like_one_that_is_hidden(live, people):
    root = joined(live, people, "root")
    live.subscribe(root, "job:00000000-0000-4000-8000-000000000000")
    live.subscribe(root, "dataset:1")
    wait_until(lambda: root.errors() == ["unknown_topic", "forbidden"], what="both refusals")


def test_a_member_who_is_removed_is_refused_and_sees_less(live, people):
    job = submit(people)
    ben = joined(live, people, "ben", "overview", "project:team-a", f"job:{job.pk}")
    assert str(job.pk) in ben.states["overview"]["queued"]
    projects.remove_member(people.project, people.ben, actor=SYSTEM)
    submit(people, "later")
    wait_until(lambda: ben.errors() == ["forbidden", "forbidden"], what="the refusals")
    wait_until(lambda: not ben.states["overview"].get("queued"), what="the smaller overview")
    assert "later" not in json.dumps(ben.frames)
    assert is_in_step(ben, "overview", ids_of(people.ben))


def test_a_new_member_sees_more_at_once(live, people):
    job = submit(people)
    chi = joined(live, people, "chi", "overview")
    assert "queued" not in chi.states["overview"] or not chi.states["overview"]["queued"]
    projects.set_member(people.project, people.chi, Role.VIEWER, actor=SYSTEM)
    wait_until(lambda: str(job.pk) in chi.states["overview"].get("queued", {}), what="the job")


@pytest.mark.parametrize("how", ["revoked", "locked", "expired"])
def test_who_may_no_longer_listen_is_let_go(live, people, how):
    ana = joined(live, people, "ana", "overview")
    root = joined(live, people, "root", "overview")
    token = Token.objects.get(user=people.ana)
    if how == "revoked":
        accounts.revoke_token(token, actor=people.actor("ana"))
    elif how == "locked":
        accounts.edit_user(people.ana, actor=SYSTEM, is_active=False)
    else:
        Token.objects.filter(pk=token.pk).update(expires_at=token.created_at)
    wait_until(lambda: ana.ended is not None, what="the end")
    assert ana.ended == (4401, "signed out")
    count = len(ana.frames)
    submit(people)
    wait_until(lambda: root.states["overview"]["queued"], what="the change for the others")
    assert len(ana.frames) == count


def test_a_deleted_job_takes_its_topic_along(live, people):
    job = submit(people)
    topic = f"job:{job.pk}"
    ben = joined(live, people, "ben", topic)
    actions.delete_job(actions.stop_job(job, actor=people.actor("ben")), actor=people.actor("ben"))
    wait_until(lambda: ben.errors() == ["gone"], what="the notice")
    assert ben.states[topic]["job"] == {}


def test_a_hundred_reconnections_miss_nothing(live, people):
    secret = token_of(people, "ben")
    keeper = joined(live, people, "root", "overview")
    client = live.connect(secret)
    live.follow(client, "overview")
    resumed = 0
    for number in range(100):
        live.disconnect(client)
        for extra in range(number % 3):
            submit(people, f"job-{number}-{extra}")
        again = live.connect(secret)
        again.states, again.seqs = client.states, client.seqs
        live.subscribe(again, "overview", client.seqs["overview"])
        resumed += not any(frame["type"] == "state" for frame in again.frames)
        client = again
        if number % 10 == 0:
            wait_for_step(client, people)
    wait_for_step(client, people)
    assert len(client.states["overview"]["queued"]) == 99
    wait_until(lambda: is_in_step(keeper, "overview", None), what="the same view")
    assert resumed > 50


def test_a_number_from_elsewhere_gets_a_fresh_state(live, people):
    submit(people)
    ben = joined(live, people, "ben", "overview")
    submit(people, "two")
    wait_until(lambda: len(ben.states["overview"]["queued"]) == 2, what="the second job")
    other = live.connect(token_of(people, "ben"))
    live.subscribe(other, "overview", 10_000)
    wait_until(lambda: "overview" in other.states, what="a state")
    assert other.frames[0]["type"] == "state"


def test_a_slow_reader_delays_nobody_and_catches_up_with_one_state(people, live_db):
    # the submissions take as long as this machine needs
    with LiveHub(replace(QUICK, blocked=3600.0)) as live:
        slow = live.connect(token_of(people, "ben"), is_slow=True)
        live.subscribe(slow, "overview")
        quick = joined(live, people, "ben", "overview")
        for number in range(60):
            submit(people, f"job-{number}")
            wait_for_step(quick, people)
        assert slow.frames == []
        live.open(slow)
        wait_until(
            lambda: is_in_step(slow, "overview", ids_of(people.ben)), what="the slow reader to catch up"
        )
        assert len(slow.frames) < 5
        assert [frame["type"] for frame in slow.frames][:2] == ["state", "state"]
        submit(people, "last")
        wait_until(lambda: is_in_step(slow, "overview", ids_of(people.ben)), what="the slow reader to go on")


def test_a_reader_that_takes_nothing_is_let_go(live, people):
    slow = live.connect(token_of(people, "ben"), is_slow=True)
    live.subscribe(slow, "overview")
    wait_until(lambda: slow.ended is not None, what="the end")
    assert slow.ended == (4408, "too slow")


def test_everybody_who_sees_the_same_gets_the_same_bytes(live, people):
    ana, ben = live.connect(token_of(people, "ana")), live.connect(token_of(people, "ben"))
    for client in (ana, ben):
        live.follow(client, "overview")
    assert len(live.hub._feeds) == 1
    submit(people)
    wait_until(lambda: len(ana.frames) == 2 and len(ben.frames) == 2, what="the change")
    assert ana.frames[1] == ben.frames[1]


def test_state_is_deterministic(people):
    submit(people)
    assert fresh("overview", None) == fresh("overview", None)


def test_an_event_that_cannot_be_written_takes_no_number(people):
    before = Event.objects.last_seq()
    with pytest.raises(IntegrityError):
        Event.objects.append([Event(kind=None)])
    assert Event.objects.last_seq() == before


def test_a_database_that_is_away_costs_nothing_but_time(live, people, monkeypatch):
    ben = joined(live, people, "ben", "overview")
    look, failures = live.hub._reader.look, []

    def fail(*arguments, **options):
        failures.append(1)
        raise OperationalError("the database is away")

    monkeypatch.setattr(live.hub._reader, "look", fail)
    submit(people)
    live.subscribe(ben, "queue")
    wait_until(lambda: len(failures) >= 2, what="looks that fail")
    monkeypatch.setattr(live.hub._reader, "look", look)
    wait_for_step(ben, people)
    wait_until(lambda: "queue" in ben.states, what="the state that was asked for meanwhile")
    assert ben.ended is None


def test_two_web_processes_show_the_same_and_take_over_from_each_other(live, people):
    secret = token_of(people, "ben")
    with LiveHub() as other:
        client = live.connect(secret)
        live.follow(client, "overview")
        second = other.connect(secret)
        other.follow(second, "overview")
        here, there = live, other
        for number in range(12):
            submit(people, f"job-{number}")
            wait_for_step(second, people)
            here.disconnect(client)
            here, there = there, here
            moved = here.connect(secret)
            moved.states, moved.seqs = client.states, client.seqs
            here.subscribe(moved, "overview", client.seqs["overview"])
            client = moved
            wait_for_step(client, people)
        assert client.states == second.states


@pytest.mark.parametrize("is_final", [False, True])
def test_jobs_hear_when_their_cluster_is_lost_and_comes_back(live, people, is_final):
    job = submit(people)
    if is_final:
        actions.stop_job(job, actor=people.actor("ben"))
    topic, cluster = f"job:{job.pk}", people.project.cluster
    member = joined(live, people, "ben", topic)
    for is_reachable in (False, True):
        note_reachable(cluster, is_reachable, "")
        wait_until(
            lambda told=is_reachable: (
                member.states[topic]["job"][str(job.pk)]["status"]["is_reachable"] is told
            ),
            what="what the job's page is told",
        )
    assert is_in_step(member, topic, ids_of(people.ben))


def test_what_was_taken_back_costs_no_look(live, people, monkeypatch):
    client = live.connect(token_of(people, "ben"))
    looked: list[int] = []
    look = live.hub._reader.look

    def counting(feeds, requests, identities, **options):
        looked.append(len(requests))
        return look(feeds, requests, identities, **options)

    monkeypatch.setattr(live.hub._reader, "look", counting)

    def churn() -> None:
        for _ in range(200):
            live.hub.subscribe(client.listener, "overview", None)
            live.hub.unsubscribe(client.listener, "overview")
        live.hub.subscribe(client.listener, "queue", None)
        live.hub.subscribe(client.listener, "queue", None)

    live.call(churn)
    wait_until(lambda: "queue" in client.states, what="the state of queue")
    assert sum(looked) <= 2
    assert [frame["topic"] for frame in client.frames if frame["type"] == "state"] == ["queue"]
