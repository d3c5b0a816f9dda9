"""Many jobs in one request: answered and refused as one job is, all or none, in a fixed number of statements."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.models import AuditEntry, Event, IdempotencyRecord
from jobs import admission
from jobs.models import Job
from tests.app.api.client import Api
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
JOBS, BATCH = "projects/team-a/jobs", "projects/team-a/jobs/batch"


def body(number: int, **fields: Any) -> dict[str, Any]:
    return {"name": f"sweep-{number}", "kind": "train", "gpus": 1, "env": {"SEED": str(number)}, **fields}


def bodies(count: int) -> dict[str, list[dict[str, Any]]]:
    return {"jobs": [body(number) for number in range(count)]}


def left() -> tuple[int, int, int]:
    """Jobs, their events, and their lines in the audit log."""
    audited = AuditEntry.objects.filter(object_type="job")
    return Job.objects.count(), Event.objects.filter(kind="job.submitted").count(), audited.count()


def same_but_for_identity(job: dict[str, Any]) -> dict[str, Any]:
    return job | {"id": "", "created_at": "", "name": "", "env": {}}


def test_a_batch_is_answered_as_its_jobs_would_be_one_by_one(api: AsPerson):
    ben = api("ben")
    alone = ben.post(JOBS, body(0)).body
    made = ben.post(BATCH, {"jobs": [body(number) for number in (3, 1, 2)]}, x_request_id="sweep")
    assert made.status == 201
    results = made.body["results"]
    assert [job["name"] for job in results] == ["sweep-3", "sweep-1", "sweep-2"]
    assert [job["env"]["SEED"] for job in results] == ["3", "1", "2"]
    assert all(same_but_for_identity(job) == same_but_for_identity(alone) for job in results)
    assert [ben.get(f"jobs/{job['id']}").body for job in results] == results
    newest_first = [job["name"] for job in ben.get(JOBS).body["results"]]
    assert newest_first == ["sweep-2", "sweep-1", "sweep-3", "sweep-0"]
    ranks = list(Job.objects.order_by("submit_rank").values_list("submit_rank", flat=True))
    assert ranks == list(range(ranks[0], ranks[0] + 4))


def test_each_job_of_a_batch_has_its_event_and_its_audit_line(api: AsPerson):
    made = api("ben").post(BATCH, bodies(3), x_request_id="sweep").body["results"]
    ids = [job["id"] for job in made]
    events = list(Event.objects.filter(kind="job.submitted").order_by("seq"))
    assert [str(event.job_id) for event in events] == ids
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + 3))
    assert {event.actor for event in events} == {"ben"}
    audited = AuditEntry.objects.filter(verb="job.submitted").order_by("pk")
    assert [entry.object_name for entry in audited] == ids
    assert {(entry.actor, entry.request_id) for entry in audited} == {("ben", "sweep")}
    assert {entry.after["state"] for entry in audited} == {"queued"}


def test_the_loop_is_woken_once(api: AsPerson, monkeypatch: pytest.MonkeyPatch):
    woken: list[None] = []
    monkeypatch.setattr("controlplane.actions.events.wake", lambda: woken.append(None))
    assert api("ben").post(BATCH, bodies(5)).status == 201
    assert len(woken) == 1


def test_every_refused_field_of_every_job_is_named_and_nothing_is_left(api: AsPerson):
    sent = bodies(5)
    sent["jobs"][1] |= {"gpus": 9}
    sent["jobs"][3] |= {"gpus": -1, "colour": "red", "env": {"1A": "x"}}
    del sent["jobs"][4]["kind"]
    reply = api("ben").post(BATCH, sent)
    assert (reply.status, reply.code) == (400, "invalid")
    assert [(error["pointer"], error["code"]) for error in reply.body["errors"]] == [
        ("/jobs/1/gpus", "spec_impossible"),
        ("/jobs/3/colour", "unknown_field"),
        ("/jobs/3/env/1A", "bad_name"),
        ("/jobs/3/gpus", "out_of_range"),
        ("/jobs/4/kind", "required"),
    ]
    assert left() == (0, 0, 0)
    assert api("ben").post(BATCH, bodies(5)).status == 201


def test_a_single_refusal_has_the_code_that_it_has_alone(api: AsPerson):
    sent = bodies(3)
    sent["jobs"][2]["gpus"] = 9
    reply = api("ben").post(BATCH, sent)
    alone = api("ben").post(JOBS, sent["jobs"][2])
    assert (reply.status, reply.code, reply.body["detail"]) == (400, alone.code, alone.body["detail"])
    assert (reply.pointers, alone.pointers) == (["/jobs/2/gpus"], ["/gpus"])


def test_no_more_refusals_are_told_than_one_can_read(api: AsPerson):
    sent = {"jobs": [body(number, gpus=-1) for number in range(150)]}
    errors = api("ben").post(BATCH, sent).body["errors"]
    assert [error["pointer"] for error in errors[:-1]] == [f"/jobs/{number}/gpus" for number in range(100)]
    assert (errors[-1]["code"], errors[-1]["detail"][:7]) == ("and_more", "50 more")


def test_a_name_twice_in_a_batch_is_refused_where_it_is_again(api: AsPerson):
    sent = bodies(8)
    sent["jobs"][5]["name"] = sent["jobs"][7]["name"] = "sweep-2"
    reply = api("ben").post(BATCH, sent)
    assert [(error["pointer"], error["code"]) for error in reply.body["errors"]] == [
        ("/jobs/5/name", "name_twice"),
        ("/jobs/7/name", "name_twice"),
    ]
    assert left() == (0, 0, 0)


def test_names_in_use_are_refused_as_that_of_one_job(api: AsPerson):
    ben = api("ben")
    assert ben.post(BATCH, {"jobs": [body(1), body(3)]}).status == 201
    reply, alone = ben.post(BATCH, bodies(5)), ben.post(JOBS, body(3))
    assert (reply.status, reply.code) == (alone.status, alone.code) == (409, "name_in_use")
    assert (reply.pointers, alone.pointers) == (["/jobs/1/name", "/jobs/3/name"], ["/name"])
    assert alone.body["detail"] in reply.body["detail"]
    assert left() == (2, 2, 2)
    Job.objects.update(state="stopped")  # of what has ended the name is free again
    assert ben.post(BATCH, bodies(5)).status == 201


@pytest.mark.parametrize(
    ("sent", "pointer", "code"),
    [
        ({}, "/jobs", "required"),
        ({"jobs": []}, "/jobs", "too_few"),
        ({"jobs": {}}, "/jobs", "not_a_list"),
        ({"jobs": [body(1), "sweep"]}, "/jobs/1", "not_an_object"),
        ({"jobs": [body(1)], "kind": "train"}, "/kind", "unknown_field"),
        (bodies(501), "/jobs", "too_many"),
    ],
)
def test_what_is_no_batch_is_refused_by_name(api: AsPerson, sent: Any, pointer: str, code: str):
    reply = api("ben").post(BATCH, sent)
    assert (reply.status, reply.code, reply.pointers) == (400, code, [pointer])
    assert left() == (0, 0, 0)


def test_as_many_jobs_as_there_may_be_go_into_one_body(api: AsPerson):
    """Of two thousand bytes each; beyond that the body is refused for its size."""
    sent = {"jobs": [body(number, args=["x" * 1900]) for number in range(500)]}
    assert api("ben").post(BATCH, sent).status == 201
    assert left() == (500, 500, 500)
    sent = {"jobs": [body(number, args=["x" * 2200]) for number in range(500, 1000)]}
    reply = api("ben").post(BATCH, sent)
    assert (reply.status, reply.code) == (413, "body_too_large")


def test_the_queue_has_room_for_all_of_them_or_takes_none(api: AsPerson, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "QUEUE_MOST", 6)
    monkeypatch.setattr(admission, "FAR_FROM_FULL", 0)
    ben = api("ben")
    assert ben.post(BATCH, bodies(4)).status == 201
    reply = ben.post(BATCH, {"jobs": [body(number) for number in (4, 5, 6)]})
    assert (reply.status, reply.code) == (409, "queue_full")
    assert "4 unfinished jobs of at most 6" in reply.body["detail"]
    assert left() == (4, 4, 4)
    assert ben.post(BATCH, {"jobs": [body(4), body(5)]}).status == 201
    assert ben.post(BATCH, {"jobs": [body(6)]}).code == "queue_full"


def test_a_repeated_batch_is_answered_again_and_made_once(api: AsPerson):
    ben = api("ben")
    first = ben.post(BATCH, bodies(3), idempotency_key="k1")
    again = ben.post(BATCH, bodies(3), idempotency_key="k1")
    assert (again.status, again.body) == (201, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert left() == (3, 3, 3)
    assert ben.post(BATCH, bodies(4), idempotency_key="k1").code == "idempotency_key_reused"
    refused = ben.post(BATCH, bodies(4), idempotency_key="k2")
    Job.objects.update(state="stopped")
    assert ben.post(BATCH, bodies(4), idempotency_key="k2").body == refused.body
    assert IdempotencyRecord.objects.count() == 2


def test_a_dry_run_answers_and_leaves_nothing(api: AsPerson):
    ben = api("ben")
    reply = ben.post(f"{BATCH}?dry_run=true", bodies(3))
    assert (reply.status, len(reply.body["results"])) == (200, 3)
    assert ben.post(f"{BATCH}?dry_run=true", {"jobs": [body(0, gpus=-1)]}).pointers == ["/jobs/0/gpus"]
    assert left() == (0, 0, 0)


def test_who_may_not_submit_one_job_submits_no_batch(api: AsPerson, cast: Cast):
    """Strangers hear nothing of the project, whatever they send."""
    for person, status in {"": 401, "chi": 404, "vera": 403}.items():
        assert api(person).post(BATCH, {"jobs": []}).status == status
    assert Api(cast.ben, is_read_only=True).post(BATCH, bodies(1)).status == 403
    assert api("ben").post("projects/none/jobs/batch", bodies(1)).status == 404
    assert left() == (0, 0, 0)


def test_a_warning_stands_at_the_job_that_it_is_about(api: AsPerson):
    images = {0: "quickstart", 1: "registry.example/mine:1", 2: ""}
    sent = {"jobs": [body(number, image=image, command=["true"]) for number, image in images.items()]}
    warned = [job.get("warnings", []) for job in api("ben").post(BATCH, sent).body["results"]]
    assert [len(texts) for texts in warned] == [0, 1, 0]


def test_many_jobs_take_as_many_statements_as_few(api: AsPerson):
    """SQLite takes rows in portions of 999 values: fewer jobs, so that they are one portion there too."""
    ben, counts = api("ben"), []
    most = 300 if connection.vendor == "postgresql" else 25
    ben.post(BATCH, {"jobs": [body(9999)]})  # what is read once for a while
    for count in (2, most):
        sent = {"jobs": [body(1000 * count + number) for number in range(count)]}
        with CaptureQueriesContext(connection) as captured:
            assert ben.post(BATCH, sent, idempotency_key=str(count)).status == 201
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 25, counts


@pytest.mark.parametrize("fields", [{}, {"gpus": 9}], ids=["names in use", "too large"])
def test_many_refused_jobs_take_as_many_statements_as_few(api: AsPerson, fields: dict[str, Any]):
    ben, counts = api("ben"), []
    assert ben.post(BATCH, bodies(25)).status == 201
    for count in (2, 25):
        sent = {"jobs": [one | fields for one in bodies(count)["jobs"]]}
        with CaptureQueriesContext(connection) as captured:
            assert len(ben.post(BATCH, sent).pointers) == count
        counts.append(len(captured))
    assert counts[0] == counts[1], counts
