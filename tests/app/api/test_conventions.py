"""What every route has in common: paging, fields, ETags, idempotency, dry runs, problems, request ids."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import IntegrityError, OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.api import idempotency
from controlplane.models import AuditEntry, Event, IdempotencyRecord, Project, User
from jobs.models import Job
from tests.app.api.client import Api, Reply
from tests.app.api.placing import place
from tests.builders import make_job
from tests.cast import Cast
from tests.datasets import make_dataset

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
SPEC = {"name": "hyper2", "kind": "train", "gpus": 1, "command": ["sleep", "1"]}


def names(reply: Reply) -> list[str]:
    return [row["name"] for row in reply.body["results"]]


def local(url: str) -> str:
    return url.removeprefix("http://testserver")


def test_pages_join_to_the_whole_list_both_ways(api: AsPerson, cast: Cast):
    for number in range(7):
        make_job(cast.project, f"job-{number}", cast.ben)
    ben, pages = api("ben"), []
    reply = ben.get("jobs?limit=3")
    pages.append(names(reply))
    assert reply.body["previous"] is None
    while reply.body["next"]:
        reply = ben.get(local(reply.body["next"]))
        pages.append(names(reply))
    assert pages == [["job-6", "job-5", "job-4"], ["job-3", "job-2", "job-1"], ["job-0"]]
    back = ben.get(local(reply.body["previous"]))
    assert names(back) == pages[1]
    first = ben.get(local(back.body["previous"]))
    assert names(first) == pages[0]
    assert first.body["previous"] is None
    assert names(ben.get(local(first.body["next"]))) == pages[1]


def test_rows_that_come_meanwhile_neither_repeat_nor_hide_others(api: AsPerson, cast: Cast):
    for number in range(4):
        make_job(cast.project, f"job-{number}", cast.ben)
    reply = api("ben").get("jobs?limit=2")
    make_job(cast.project, "late", cast.ben)
    assert names(api("ben").get(local(reply.body["next"]))) == ["job-1", "job-0"]


@pytest.mark.parametrize("ordering", ["name", "-name", "state", "created_at", "-priority"])
def test_every_ordering_pages_without_gaps(ordering: str, api: AsPerson, cast: Cast):
    for name in ("b", "a", "d", "c"):
        make_job(cast.project, name, cast.ben)
    ben, seen = api("ben"), []
    path = f"/api/v1/jobs?limit=1&ordering={ordering}"
    while path:
        reply = ben.get(path)
        seen += names(reply)
        path = local(reply.body["next"] or "")
    whole = names(ben.get(f"jobs?ordering={ordering}"))
    assert seen == whole
    assert sorted(seen) == ["a", "b", "c", "d"]
    if "name" in ordering:
        assert whole == sorted(whole, reverse=ordering.startswith("-"))


def test_a_cursor_is_only_good_where_it_was_made(api: AsPerson, cast: Cast):
    for number in range(3):
        make_job(cast.project, f"job-{number}", cast.ben)
    root = api("root")
    link = local(root.get("jobs?limit=1").body["next"])
    cursor = link.partition("cursor=")[2].partition("&")[0]
    assert root.get(f"jobs?limit=1&cursor={cursor}").status == 200
    for other in ("projects/team-a/jobs", "projects", "events"):
        assert root.get(f"{other}?cursor={cursor}").code == "bad_cursor"
    assert root.get(f"jobs?cursor={cursor}&ordering=name").code == "bad_cursor"
    for index in range(len(cursor)):
        wrong = cursor[:index] + ("A" if cursor[index] != "A" else "B") + cursor[index + 1 :]
        assert root.get(f"jobs?cursor={wrong}").code == "bad_cursor"
    for wrong in (cursor + "=", cursor[:5] + "!" + cursor[5:], cursor + "AAAA", cursor[:-1], "%F0%9F%98%80"):
        assert root.get(f"jobs?cursor={wrong}").code == "bad_cursor"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "bad_limit"),
        ("limit=501", "bad_limit"),
        ("limit=ten", "bad_limit"),
        ("limit=-1", "bad_limit"),
        ("limit=1e3", "bad_limit"),
        ("limit=" + "9" * 40, "bad_limit"),
        ("limit=1&limit=2", "repeated_query_field"),
        ("ordering=spec", "bad_ordering"),
        ("ordering=--name", "bad_ordering"),
        ("ordering=project__name", "bad_ordering"),
        ("nope=1", "unknown_query_field"),
        ("project__name=team-a", "unknown_query_field"),
        ("state=flying", "bad_state"),
        ("state=", "bad_state"),
        ("created_after=yesterday", "bad_created_after"),
        ("cursor=", "bad_cursor"),
        ("cursor=%00", "contains_nul"),
        ("name=a%00b", "contains_nul"),
        ("fields=name,nope", "bad_fields"),
        ("fields=", "bad_fields"),
        ("dry_run=true", "unknown_query_field"),
    ],
)
def test_a_query_field_that_cannot_be_meant_is_refused(query: str, code: str, api: AsPerson):
    reply = api("ben").get(f"jobs?{query}")
    assert (reply.status, reply.code) == (400, code)
    assert reply.pointers[0].startswith("?")


def test_filters_take_several_values_and_narrow_together(api: AsPerson, cast: Cast):
    make_job(cast.project, "one", cast.ben)
    make_job(cast.project, "two", cast.ana)
    make_job(cast.other, "three", cast.chi)
    root = api("root")
    assert names(root.get("jobs?name=one,three")) == ["three", "one"]
    assert names(root.get("jobs?project=team-a&user=ana")) == ["two"]
    assert names(root.get("jobs?state=running,queued&kind=train")) == ["three", "two", "one"]
    assert names(root.get("jobs?state=running")) == []


def test_fields_trims_lists_and_details(api: AsPerson, job: Job):
    ben = api("ben")
    assert ben.get("jobs?fields=id,name").body["results"] == [{"id": str(job.pk), "name": "hyper1"}]
    assert ben.get(f"jobs/{job.pk}?fields=name").body == {"name": "hyper1"}
    assert ben.get("projects?fields=name").body["results"] == [{"name": "team-a"}]


def test_a_list_takes_as_many_queries_for_many_rows_as_for_one(api: AsPerson, cast: Cast):
    ben, counts = api("ben"), {}
    ben.get("whoami")  # the token's first use is noted with a write
    paths = (
        "jobs",
        "projects/team-a/jobs",
        "projects",
        "events",
        "nodes",
        "clusters",
        "node-pools",
        "tokens",
    )
    for size in (1, 12):
        for number in range(size):
            place(make_job(cast.project, f"job-{size}-{number}", cast.ben))
        for path in paths:
            with CaptureQueriesContext(
                connection,
            ) as captured:
                assert ben.get(path).status == 200
            counts.setdefault(path, []).append(len(captured))
    assert all(few == many for few, many in counts.values()), counts
    assert max(many for _, many in counts.values()) <= 6, counts


def test_an_unchanged_object_answers_304(api: AsPerson, cast: Cast, job: Job):
    ben = api("ben")
    for path in (
        f"jobs/{job.pk}",
        "projects/team-a",
        "nodes/dgx1-1",
        "whoami",
        "users/ben",
        "clusters/memory",
    ):
        tag = ben.get(path).headers["ETag"]
        again = ben.get(path, if_none_match=tag)
        assert (again.status, again.body) == (304, b""), path
        assert ben.get(path, if_none_match='"other"').status == 200


def test_if_match_guards_changes_and_deletions(api: AsPerson, cast: Cast, job: Job):
    ana = api("ana")
    path = f"jobs/{job.pk}"
    tag = ana.get(path).headers["ETag"]
    changed = ana.patch(path, {"priority": 7}, if_match=tag)
    assert changed.status == 200
    assert ana.patch(path, {"priority": 8}, if_match=tag).code == "changed_meanwhile"
    assert ana.delete(path, if_match=tag).status == 412
    assert ana.get(path).body["priority"] == 7
    assert ana.patch(path, {"priority": 8}, if_match=changed.headers["ETag"]).status == 200
    assert ana.delete(path, if_match="*").status == 204
    tag = ana.get("projects/team-a").headers["ETag"]
    assert api("root").patch("projects/team-a", {"gpu_quota": 6}).status == 200
    assert ana.patch("projects/team-a", {"description": "mine"}, if_match=tag).status == 412
    assert Project.objects.get(name="team-a").description == ""


@pytest.mark.parametrize(
    ("path", "person"),
    [
        ("projects/team-a/members/ben", "ana"),
        ("users/ben", "root"),
        ("clusters/memory", "root"),
        ("nodes/dgx1-1", "root"),
    ],
)
def test_if_match_is_honoured_by_every_kind_of_object(path: str, person: str, api: AsPerson):
    changes = {"users/ben": {"is_active": False}, "nodes/dgx1-1": {"node_pool": None}}
    body = changes.get(path, {"role": "viewer"} if "members" in path else {"settings": {"nodes": "nvml"}})
    caller = api(person)
    tag = caller.get(path).headers["ETag"]
    assert caller.patch(path, body, if_match='"stale"').status == 412
    assert caller.get(path).headers["ETag"] == tag
    assert caller.patch(path, body, if_match=tag).status == 200


def test_a_key_gives_the_first_answer_again(api: AsPerson, cast: Cast):
    ben = api("ben")
    first = ben.post("projects/team-a/jobs", SPEC, idempotency_key="k1")
    again = ben.post("projects/team-a/jobs", SPEC, idempotency_key="k1")
    assert (first.status, again.status) == (201, 201)
    assert again.body == first.body
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert Job.objects.count() == 1
    spaced = b'{ "command": ["sleep", "1"], "gpus":1, "kind":"train",\n "name":"hyper2"}'
    assert ben.post("projects/team-a/jobs", spaced, idempotency_key="k1").body == first.body


def test_a_repeated_change_tells_the_first_answers_etag(api: AsPerson, job: Job):
    ben = api("ben")
    first = ben.patch(f"jobs/{job.pk}", {"priority": 60}, idempotency_key="k1")
    again = ben.patch(f"jobs/{job.pk}", {"priority": 60}, idempotency_key="k1")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert first.headers["ETag"].startswith('"')
    assert again.headers.get("ETag") == first.headers["ETag"]
    assert again.body == first.body
    assert ben.patch(f"jobs/{job.pk}", {"priority": 61}, if_match=again.headers["ETag"]).status == 200


def test_a_key_with_another_body_route_or_person(api: AsPerson, cast: Cast):
    ben = api("ben")
    assert ben.post("projects/team-a/jobs", SPEC, idempotency_key="k1").status == 201
    other = ben.post("projects/team-a/jobs", SPEC | {"name": "other"}, idempotency_key="k1")
    assert (other.status, other.code) == (422, "idempotency_key_reused")
    assert ben.post("tokens", {"name": "x"}, idempotency_key="k1").status == 422
    assert (
        api("ana").post("projects/team-a/jobs", SPEC | {"name": "anas"}, idempotency_key="k1").status == 201
    )
    assert sorted(Job.objects.values_list("name", flat=True)) == ["anas", "hyper2"]


def test_a_refusal_is_remembered_too_and_leaves_nothing(api: AsPerson, job: Job):
    ben = api("ben")
    events = Event.objects.count()
    first = ben.post("projects/team-a/jobs", SPEC | {"name": "hyper1"}, idempotency_key="k1")
    assert (first.status, first.code) == (409, "name_in_use")
    ben.delete(f"jobs/{job.pk}")
    again = ben.post("projects/team-a/jobs", SPEC | {"name": "hyper1"}, idempotency_key="k1")
    assert (again.status, again.body) == (409, first.body)
    assert again.headers["Content-Type"] == "application/problem+json"
    assert Event.objects.filter(kind="job.submitted").count() == 1
    assert Event.objects.count() == events + 1  # job.deleted


def test_keys_are_forgotten_after_a_day_and_bad_ones_refused(api: AsPerson, cast: Cast):
    ben = api("ben")
    assert ben.post("projects/team-a/jobs", SPEC, idempotency_key="k1").status == 201
    IdempotencyRecord.objects.update(created_at=timezone.now() - idempotency.KEPT - timedelta(seconds=1))
    assert ben.post("projects/team-a/jobs", SPEC | {"name": "later"}, idempotency_key="k1").status == 201
    for key in ("", "x" * 256, "caf\u00e9"):
        assert ben.post("projects/team-a/jobs", SPEC, idempotency_key=key).code == "bad_idempotency_key"


def test_what_is_remembered_cannot_be_read_in_the_database(api: AsPerson):
    reply = api("ben").post("tokens", {"name": "ci"}, idempotency_key="k1")
    kept = bytes(IdempotencyRecord.objects.get().body)
    assert reply.body["token"].encode() not in kept
    assert api("ben").post("tokens", {"name": "ci"}, idempotency_key="k1").body == reply.body


WRITES = [
    (
        "root",
        "POST",
        "projects",
        {"name": "team-c", "gpu_quota": 2, "members": [{"user": "ben", "role": "owner"}]},
    ),
    (
        "ana",
        "PATCH",
        "projects/team-a",
        {"description": "new", "members": [{"user": "ana", "role": "owner"}]},
    ),
    ("ana", "POST", "projects/team-a/members", {"user": "chi", "role": "viewer"}),
    ("ana", "DELETE", "projects/team-a/members/ben", None),
    ("ben", "POST", "projects/team-a/jobs", SPEC),
    ("ben", "PATCH", "jobs/{job}", {"priority": 9}),
    ("ben", "POST", "jobs/{job}/stop", None),
    ("ben", "POST", "jobs/{job}/suspend", None),
    ("ben", "POST", "jobs/{job}/clone", {"name": "again"}),
    ("ben", "DELETE", "jobs/{job}", None),
    ("root", "POST", "nodes/dgx1-1/cordon", None),
    ("root", "POST", "nodes/dgx1-1/drain", None),
    ("root", "PATCH", "nodes/dgx1-1", {"node_pool": None}),
    ("root", "POST", "node-pools", {"name": "dgx"}),
    ("root", "POST", "users", {"username": "dan"}),
    ("root", "PATCH", "users/ben", {"is_active": False}),
    ("ben", "POST", "tokens", {"name": "ci"}),
    ("root", "DELETE", "projects/team-b", None),
]


@pytest.mark.parametrize(("person", "verb", "path", "body"), WRITES)
def test_a_dry_run_writes_nothing_and_the_real_one_does(person, verb, path, body, api: AsPerson, job: Job):
    caller, where = api(person), path.format(job=job.pk)
    before = everything()
    dry = caller.send(verb, where + "?dry_run=true", body, idempotency_key="dry")
    assert dry.status == 200, dry.body
    assert everything() == before
    real = caller.send(verb, where, body)
    assert real.status in (200, 201, 202, 204), real.body
    assert everything() != before
    if isinstance(real.body, dict) and isinstance(dry.body, dict):
        assert set(real.body) == set(dry.body)


def everything() -> list[object]:
    """What a write could have changed. The audit row of a look-up stays after a dry run too (test_directory.py)."""
    tables = (Project, Job, User, Event, IdempotencyRecord)
    rows: list[object] = [list(table.objects.order_by("pk").values()) for table in tables]
    rows.append(list(AuditEntry.objects.exclude(verb="user.look_up").order_by("pk").values()))
    nodes = Project.objects.model._meta.apps.get_model("controlplane", "Node")
    return [*rows, list(nodes.objects.order_by("pk").values()), Event.objects.last_seq()]


def test_a_dry_run_wakes_nobody(api: AsPerson, cast: Cast, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks() as callbacks:
        api("ben").post("projects/team-a/jobs?dry_run=true", SPEC)
    assert callbacks == []
    with django_capture_on_commit_callbacks() as callbacks:
        api("ben").post("projects/team-a/jobs", SPEC)
    assert callbacks != []


def test_request_ids_are_echoed_made_and_kept_in_the_audit(api: AsPerson, cast: Cast):
    ben = api("ben")
    assert ben.get("whoami", x_request_id="abc-1").headers["X-Request-ID"] == "abc-1"
    assert len(ben.get("whoami").headers["X-Request-ID"]) == 32
    assert ben.get("whoami", x_request_id="a b\tc").headers["X-Request-ID"] != "a b\tc"
    assert ben.get("jobs/none", x_request_id="abc-2").headers["X-Request-ID"] == "abc-2"
    ben.post("projects/team-a/jobs", SPEC, x_request_id="abc-3")
    entry = AuditEntry.objects.get(verb="job.submitted")
    assert (entry.request_id, entry.actor, entry.address) == ("abc-3", "ben", "127.0.0.1")
    assert entry.token_prefix.startswith("yard_")


@pytest.mark.parametrize(
    ("method", "path", "taken"),
    [
        ("POST", "projects/team-a/jobs", "application/json, in UTF-8"),
        ("PUT", "datasets/{dataset}/content/packs", "application/octet-stream"),
        ("PUT", "projects/team-a/code/sha256:" + "0" * 64 + "/content", "application/x-tar"),
    ],
)
def test_a_body_of_another_type_is_answered_with_the_one_that_the_route_takes(
    api: AsPerson, cast: Cast, method: str, path: str, taken: str
):
    dataset = make_dataset(cast.project)
    refused = api("ben").send(method, path.format(dataset=dataset.pk), b"{}", content_type="text/plain")
    assert (refused.status, refused.code) == (415, "unsupported_media_type")
    assert refused.body["detail"] == f"Send the body as {taken}."


def test_http_says_what_http_means(api: AsPerson, job: Job):
    ben = api("ben")
    wrong_verb = ben.send("PUT", "jobs", {})
    assert (wrong_verb.status, wrong_verb.code, wrong_verb.headers["Allow"]) == (
        405,
        "method_not_allowed",
        "GET, HEAD, OPTIONS",
    )
    assert ben.get("jobs", accept="text/html").status == 406
    assert ben.get("jobs", accept="application/json;q=0").status == 406
    for accept in ("*/*", "application/*", "text/html, application/json;q=0.1", ""):
        assert ben.get("jobs", accept=accept).status == 200
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"):
        assert ben.post("projects/team-a/jobs", b"{}", content_type=media).status == 415, media
    assert ben.post("projects/team-a/jobs", b" " * ((1 << 20) + 1)).code == "body_too_large"
    assert ben.send("OPTIONS", "jobs").status == 204
    assert ben.send("HEAD", "jobs").status == 200
    unknown = ben.get("nonsense/route")
    assert (unknown.status, unknown.code) == (404, "not_found")
    assert unknown.headers["Content-Type"] == "application/problem+json"


def test_a_busy_database_is_503_with_retry_after(api: AsPerson, monkeypatch: pytest.MonkeyPatch):
    ben = api("ben")

    def locked(*args: object, **kwargs: object) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr("jobs.api.jobs.submit_job", locked)
    reply = ben.post("projects/team-a/jobs", SPEC, idempotency_key="k1")
    assert (reply.status, reply.code, reply.headers["Retry-After"]) == (503, "database_unavailable", "1")
    monkeypatch.undo()
    assert ben.post("projects/team-a/jobs", SPEC, idempotency_key="k1").status == 201


def test_a_rule_of_the_database_that_no_action_named_is_a_conflict(
    api: AsPerson, monkeypatch: pytest.MonkeyPatch
):
    def refused(*args: object, **kwargs: object) -> None:
        raise IntegrityError("UNIQUE constraint failed")

    monkeypatch.setattr("jobs.api.jobs.submit_job", refused)
    for headers in ({}, {"idempotency_key": "k1"}):
        reply = api("ben").post("projects/team-a/jobs", SPEC, **headers)
        assert (reply.status, reply.code) == (409, "conflict")


def test_a_fault_of_ours_is_a_500_without_details(api: AsPerson, monkeypatch: pytest.MonkeyPatch):
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the secret is 1234")

    monkeypatch.setattr("jobs.api.jobs.submit_job", broken)
    reply = api("ben").post("projects/team-a/jobs", SPEC)
    assert (reply.status, reply.code) == (500, "internal_error")
    assert "1234" not in str(reply.body)
