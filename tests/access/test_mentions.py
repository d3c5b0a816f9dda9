"""After a reclaim neither side reads the other's job names or ids, on any face; who may see both reads them."""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import pytest
from django.test import Client

from controlplane.access import visible_project_ids, visible_project_names
from controlplane.models import Event, Membership, Role, User
from controlplane.scheduling.mentions import named_projects, public, seen_by, sentence
from controlplane.scheduling.reasons import PREEMPTED, RESERVED_FOR_OLDER_GANG
from jobs.live_topics import read_job, read_project
from jobs.models import Attempt, Job
from tests.builders import make_job
from tests.cast import Cast, make_cast
from tests.live.harness import fresh
from tests.loop.plant import Plant

VICTIM, TAKER = "alpha-of-a", "omega-of-b"
TABS = ("", "/events", "/pods", "/spec", "/logs")


@dataclass
class Reclaim:
    """team-a held everything; chi's job of team-b got four GPUs of it."""

    cast: Cast
    plant: Plant
    victims: list[Job]
    taker: Job


@pytest.fixture
def reclaim(db: None) -> Iterator[Reclaim]:
    plant, cast = Plant(), make_cast()
    victims = [make_job(cast.project, f"{VICTIM}-{n}", cast.ana, gpus=4) for n in range(4)]
    plant.settle()
    plant.engine.faults.stop_delay_seconds = 3
    taker = make_job(cast.other, TAKER, cast.chi, gpus=4)
    plant.tick()
    yield Reclaim(cast, plant, victims, taker)
    plant.close()


def test_while_the_gpus_are_on_their_way(reclaim: Reclaim):
    reclaim.plant.tick()
    reclaim.taker.refresh_from_db()
    assert reclaim.taker.reason == "waiting_for_reclaim"
    _nothing_of_the_other(reclaim)


def test_when_the_gpus_have_changed_hands(reclaim: Reclaim):
    reclaim.plant.in_seconds(5)
    reclaim.taker.refresh_from_db()
    assert (reclaim.taker.state, _victim(reclaim).state) == ("running", "queued")
    _nothing_of_the_other(reclaim)
    assert "team-b" in Attempt.objects.exclude(ended_at=None).get().message


def test_those_who_may_see_both_are_told_the_job(reclaim: Reclaim):
    Membership.objects.create(project=reclaim.cast.other, user=reclaim.cast.ben, role=Role.VIEWER)
    reclaim.plant.in_seconds(5)
    for user in (reclaim.cast.root, reclaim.cast.ben):
        for path in _paths(_victim(reclaim)):
            if path.endswith(("/explain", "/events", f"jobs/{_victim(reclaim).pk}")):
                assert TAKER in _text(user, path), path
        assert TAKER in _feeds(user, _victim(reclaim)), user


def test_an_event_of_an_earlier_version_is_not_believed(reclaim: Reclaim):
    reclaim.plant.in_seconds(5)
    text = f"Its room went to job {TAKER}-0 of team-b, which reclaimed it."
    Event.objects.filter(reason="preempted").update(message=text, data={"state": "queued"})
    _nothing_of_the_other(reclaim)


@pytest.mark.parametrize(
    ("code", "project", "job", "name"),
    [
        (PREEMPTED, "by_project", "by_job", "by_name"),
        (RESERVED_FOR_OLDER_GANG, "reserved_for_project", "reserved_for", "reserved_for_name"),
    ],
)
def test_the_rule(code: str, project: str, job: str, name: str):
    details = {
        project: "b",
        job: "id-1",
        name: "n-1",
        "stopping": [{"project": "c", "job": "id-2", "name": "n-2"}],
    }
    assert seen_by(details, None) == details
    assert named_projects(details) == {"b", "c"}
    hidden = seen_by(details, frozenset({"a"}))
    assert hidden == {project: "b", "stopping": [{"project": "c", "job": None, "name": None}]}
    assert "n-1" not in public(code, details)
    assert "b" in public(code, details)
    assert "n-1" in sentence(code, "stored", details, frozenset({"b"}))
    assert "n-1" not in sentence(code, "n-1", details, frozenset({"a"}))


def test_rows_of_an_earlier_version_name_no_job():
    old = {"by_job": "id-1", "reserved_for_name": "n-1", "stopping": ["id-2"]}
    shown = orjson.dumps(seen_by(old, frozenset({"a"}))).decode()
    assert not any(word in shown for word in ("id-1", "n-1", "id-2"))


def _victim(reclaim: Reclaim) -> Job:
    return (
        Job.objects.select_related("project").filter(project=reclaim.cast.project, reason="preempted").get()
    )


def _nothing_of_the_other(reclaim: Reclaim) -> None:
    """ben sees nothing of team-b's job, chi nothing of team-a's, wherever they look."""
    victim = _victim(reclaim)
    of_taker, of_victims = [TAKER, str(reclaim.taker.pk)], [VICTIM, *(str(job.pk) for job in reclaim.victims)]
    for user, own, secrets in (
        (reclaim.cast.ben, victim, of_taker),
        (reclaim.cast.vera, victim, of_taker),
        (reclaim.cast.chi, reclaim.taker, of_victims),
    ):
        shown = {path: _text(user, path) for path in _paths(own)} | {"feeds": _feeds(user, own)}
        leaks = [(path, word) for path, text in shown.items() for word in secrets if word in text]
        assert not leaks, (user.username, leaks)


def _paths(job: Job) -> list[str]:
    own = f"/api/v1/jobs/{job.pk}"
    project = job.project.name
    return [
        "/api/v1/jobs", f"/api/v1/projects/{project}/jobs", "/api/v1/events", "/api/v1/telemetry/overview",
        own, *(f"{own}/{part}" for part in ("explain", "events", "pods", "spec", "metrics", "logs")),
        "/api/v1/nodes/dgx1-1", "/api/v1/nodes/dgx1-2", "/api/v1/telemetry/series?metric=gpus_allocated&by=project",
        "/", "/jobs", f"/projects/{project}", "/nodes/dgx1-1", "/nodes/dgx1-2", f"/users/{job.user.username}",
        *(f"/jobs/{job.pk}{tab}" for tab in TABS),
    ]  # fmt: skip


def _text(user: User, path: str) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


def _feeds(user: User, job: Job) -> str:
    """What the live topics that the user may follow hold."""
    from tests.cast import Actor

    actor = Actor(user=user)
    ids, names = visible_project_ids(actor), visible_project_names(actor)
    readings = [read_project("", job.project_id), read_job(str(job.pk), job.project_id)]
    states = [reading.seen_by(names) for reading in readings if reading is not None]
    states += [fresh(topic, ids) for topic in ("overview", "queue")]
    return orjson.dumps(states).decode()
