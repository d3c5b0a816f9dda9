"""Logs while they grow: the stream that ends with the job, and the topic that batches lines."""

import json
import threading
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions import accounts, projects
from controlplane.logstore.reader import log_path, read_page
from controlplane.logstore.writer import STDERR, STDOUT, LogWriter
from controlplane.models import Event
from dashboards.reads.job import log_text
from jobs import log_stream as logstream
from jobs import log_tail as logtail
from jobs.models import Attempt, Generation, Job
from tests.builders import make_job
from tests.live.server import Events
from tests.waiting import wait_until


@pytest.fixture
def job(people):
    """A running job of team-a at its first attempt."""
    job = make_job(people.project, "talker", people.ben)
    move(job, "running", attempt=1)
    return job


@pytest.fixture
def headers(people):
    token = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    return {"Authorization": f"Bearer {token}"}


def move(job: Job, state: str, **fields) -> None:
    Job.objects.filter(pk=job.pk).update(state=state, **fields)
    Event.objects.append([Event(kind=f"job.{state}", job_id=job.pk, project_id=job.project_id)])


def writer(job: Job, attempt: int = 1, rank: int = 0) -> LogWriter:
    return LogWriter(str(log_path(settings.LOG_DIR, str(job.pk), attempt, rank)))


def finish(job: Job, log: LogWriter) -> None:
    log.end("0")
    log.close()
    move(job, "succeeded", exit_code=0)


def test_a_followed_log_ends_with_the_job(server, job, headers):
    log = writer(job)
    log.feed(STDOUT, b"one\ntwo\n")
    stream = iter(Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true", headers))
    first, second = next(stream), next(stream)
    assert (first[0], first[2]["n"], first[2]["text"], first[2]["stream"]) == ("line", 1, "one", "stdout")
    assert second[2]["offset"] > first[2]["offset"]
    log.feed(STDERR, "naïve <b>\n".encode())
    assert next(stream)[2] | {"time": "", "offset": 0} == {
        "n": 3, "time": "", "stream": "stderr", "text": "naïve <b>", "partial": False, "offset": 0,
    }  # fmt: skip
    log.gap("10 lines are missing")
    name, _, gap = next(stream)
    assert (name, gap["after"], gap["message"]) == ("gap", 3, "10 lines are missing")
    finish(job, log)
    assert next(stream)[::2] == ("end", {"state": "succeeded", "exit_code": 0})
    assert next(stream, None) is None


def test_a_stream_goes_on_from_the_offset_of_any_line(server, job, headers):
    log = writer(job)
    log.feed(STDOUT, b"".join(b"line %d\n" % number for number in range(3000)))
    finish(job, log)
    path = f"/api/v1/jobs/{job.pk}/logs?follow=true"
    lines = [data for name, _, data in Events(server, path, headers) if name == "line"]
    assert [line["n"] for line in lines] == list(range(1, 3001))
    for line in (lines[0], lines[1234], lines[-1]):
        rest = [
            data["n"]
            for name, _, data in Events(server, f"{path}&offset={line['offset']}", headers)
            if name == "line"
        ]
        assert rest == list(range(line["n"] + 1, 3001))
    marked = headers | {"Last-Event-ID": f"1-{lines[2990]['offset']}"}
    assert len([name for name, _, _ in Events(server, path, marked) if name == "line"]) == 9


def test_tail_and_search_choose_lines(server, job, headers):
    log = writer(job)
    log.feed(STDOUT, b"".join(b"line %d\n" % number for number in range(100)))
    finish(job, log)
    path = f"/api/v1/jobs/{job.pk}/logs?follow=true"
    tailed = [data["text"] for name, _, data in Events(server, f"{path}&tail=2", headers) if name == "line"]
    assert tailed == ["line 98", "line 99"]
    found = [
        data["text"] for name, _, data in Events(server, f"{path}&search=LINE%207", headers) if name == "line"
    ]
    assert len(found) == 11


@pytest.fixture
def elastic(people):
    """A running elastic job whose rank 0 has left, with lines of ranks 0 and 2."""
    job = make_job(people.project, "el", people.ben, kind="elastic", workers=3, min_workers=1)
    move(job, "running", attempt=1)
    attempt = Attempt.objects.create(job=job, number=1)
    for number, ranks in enumerate(((0, 1, 2), (2, 1)), 1):
        members = [{"id": rank, "address": "127.0.0.1:1"} for rank in ranks]
        Generation.objects.create(attempt=attempt, number=number, members=members, created_at=timezone.now())
    for rank, text in ((0, b"before\n"), (2, b"after\n")):
        log = writer(job, rank=rank)
        log.feed(STDOUT, text)
        if rank == 0:
            log.end("0")
            log.close()
    return job


def test_the_pod_that_speaks_for_an_elastic_job_is_followed(server, elastic, headers):
    path = f"/api/v1/jobs/{elastic.pk}/logs?follow=true"
    name, mark, line = next(iter(Events(server, path, headers)))
    assert (name, line["text"]) == ("line", "after")
    # A stream that was at rank 0 when its connection broke goes on there, and then with rank 2.
    marked = headers | {"Last-Event-ID": "1-0-0"}
    stream = iter(Events(server, path, marked))
    assert [next(stream)[2]["text"] for _ in range(2)] == ["before", "after"]
    marked = headers | {"Last-Event-ID": mark}
    stream = iter(Events(server, path, marked))
    move(elastic, "succeeded", exit_code=0)
    assert next(stream)[0] == "end"
    assert next(iter(Events(server, f"{path}&rank=0", headers)))[2]["text"] == "before"


def test_the_last_lines_of_a_worker_that_leaves_are_followed(server, elastic, headers, monkeypatch):
    """They are written after the generation without it began."""
    looks, standing = [], logstream._log_state
    monkeypatch.setattr(logstream, "_log_state", lambda *job: looks.append(job) or standing(*job))
    path = log_path(settings.LOG_DIR, str(elastic.pk), 1, 0)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    marked = headers | {"Last-Event-ID": "1-0-0"}
    stream = iter(Events(server, f"/api/v1/jobs/{elastic.pk}/logs?follow=true", marked))
    assert next(stream)[2]["text"] == "before"
    log = writer(elastic)
    for text in ("more", "last words"):
        # By then the stream knows that rank 2 speaks for the job.
        enough = len(looks) + 3
        wait_until(lambda enough=enough: len(looks) >= enough, what="looks at the job")
        log.feed(STDOUT, f"{text}\n".encode())
        assert next(stream)[2]["text"] == text
    log.end("0")
    log.close()
    assert next(stream)[2]["text"] == "after"


def test_a_worker_whose_log_never_ends_is_left_after_a_while(server, elastic, headers, monkeypatch):
    monkeypatch.setattr(logstream, "LOG_END_SECONDS", 0.5)
    path = log_path(settings.LOG_DIR, str(elastic.pk), 1, 0)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    marked = headers | {"Last-Event-ID": "1-0-0"}
    stream = iter(Events(server, f"/api/v1/jobs/{elastic.pk}/logs?follow=true", marked))
    assert [next(stream)[2]["text"] for _ in range(2)] == ["before", "after"]


@pytest.mark.parametrize("between", ["it speaks again", "another attempt"])
def test_the_silence_of_a_worker_that_leaves_is_counted_anew(monkeypatch, between: str):
    now = 100.0
    monkeypatch.setattr(logstream, "time", SimpleNamespace(monotonic=lambda: now))
    follower = logstream.Follower(logstream.Wanted("none", None, None, 0, None, None))

    def rank_shown(attempt: int, rank: int) -> int:
        standing = logstream.LogState("running", attempt, None, rank)
        if follower._must_move_on(standing):
            follower._next_attempt(attempt)
        follower._choose_rank(standing)
        return follower._rank

    assert [rank_shown(1, 0), rank_shown(1, 1)] == [0, 0]
    attempt = 1 if between == "it speaks again" else 2
    assert rank_shown(attempt, 0) == 0
    now += logstream.LOG_END_SECONDS
    assert rank_shown(attempt, 1) == 0
    now += logstream.LOG_END_SECONDS
    assert rank_shown(attempt, 1) == 1


def test_a_job_that_starts_again_is_followed_into_its_next_attempt(server, job, headers):
    log = writer(job)
    log.feed(STDOUT, b"first\n")
    stream = iter(Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true", headers))
    assert next(stream)[2]["text"] == "first"
    log.end("143")
    log.close()
    move(job, "queued")
    again = writer(job, attempt=2)
    again.feed(STDOUT, b"second\n")
    move(job, "running", attempt=2)
    assert next(stream)[::2] == ("attempt", {"attempt": 2})
    name, mark, line = next(stream)
    assert (name, line["n"], line["text"], mark) == ("line", 1, "second", f"2-{line['offset']}")
    finish(job, again)
    assert next(stream)[0] == "end"
    first = [
        data["text"]
        for name, _, data in Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true&attempt=1", headers)
        if name == "line"
    ]
    assert first == ["first"]


def test_a_log_that_is_not_there_yet_is_waited_for(server, people, headers):
    job = make_job(people.project, "late", people.ben)
    stream = iter(Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true", headers))
    move(job, "running", attempt=1)
    log = writer(job)
    log.feed(STDOUT, b"here\n")
    assert next(stream)[2]["text"] == "here"
    finish(job, log)
    assert next(stream)[0] == "end"


def test_who_loses_the_right_to_read_is_cut_off(server, people, job, headers):
    log = writer(job)
    log.feed(STDOUT, b"one\n")
    stream = iter(Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true", headers))
    next(stream)
    projects.remove_member(people.project, people.ben, actor=SYSTEM)
    assert next(stream, None) is None
    log.close()


@pytest.mark.parametrize(
    "bad", ["rank=x", "offset=-1", "attempt=1.5", "tail=1e9", "offset=99999999999999999999", "colour=red"]
)
def test_bad_fields_of_a_log_stream_are_named(server, job, headers, bad):
    response = server.request("GET", f"/api/v1/jobs/{job.pk}/logs?follow=true&{bad}", headers=headers)
    assert response.status == 400
    assert bad.partition("=")[0] in json.loads(response.read())["detail"]


def test_a_log_topic_brings_lines_in_batches_and_resumes(live, people, job):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    log = writer(job)
    log.feed(STDOUT, b"one\n")
    topic = f"job:{job.pk}:logs:0"
    client = live.connect(secret)
    live.follow(client, topic)
    assert client.states[topic]["lines"]["1"]["text"] == "one"
    log.feed(STDOUT, b"two\nthree\n")
    wait_until(lambda: "3" in client.states[topic]["lines"], what="the lines")
    live.disconnect(client)
    log.feed(STDOUT, b"four\n")
    again = live.connect(secret)
    again.states, again.seqs = client.states, client.seqs
    live.subscribe(again, topic, client.seqs[topic])
    wait_until(lambda: "4" in again.states[topic]["lines"], what="the missed line")
    assert [frame["type"] for frame in again.frames] == ["change"]
    log.end("0")
    wait_until(lambda: again.states[topic]["log"]["all"]["complete"], what="the end of the log")
    log.close()


def test_a_log_topic_of_a_job_that_never_ran_says_that_nothing_comes(live, people):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    job = make_job(people.project, "never", people.ben)
    topic = f"job:{job.pk}:logs:0"
    client = live.connect(secret)
    live.follow(client, topic)
    before = client.seqs[topic]
    assert not client.states[topic]["log"]["all"]["complete"]
    move(job, "stopped")
    wait_until(lambda: client.states[topic]["log"]["all"]["complete"], what="the end of the log")
    assert client.seqs[topic] > before


def test_a_log_topic_moves_to_the_next_attempt_with_a_fresh_state(live, people, job):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    log = writer(job)
    log.feed(STDOUT, b"one\n")
    topic = f"job:{job.pk}:logs:0"
    client = live.connect(secret)
    live.follow(client, topic)
    before = client.seqs[topic]
    again = writer(job, attempt=2)
    again.feed(STDOUT, b"anew\n")
    move(job, "running", attempt=2)
    wait_until(lambda: client.states[topic]["lines"]["1"]["text"] == "anew", what="the new attempt's log")
    assert client.states[topic]["log"]["all"]["attempt"] == 2
    assert client.seqs[topic] > before
    log.close()
    again.close()


def test_a_log_storm_is_shown_from_its_end_with_a_hole(live, people, job):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    log = writer(job)
    topic = f"job:{job.pk}:logs:0"
    client = live.connect(secret)
    live.follow(client, topic)
    log.feed(STDOUT, b"".join(b"%0100d\n" % number for number in range(20_000)))
    wait_until(lambda: "20000" in client.states[topic]["lines"], what="the last line")
    assert len(client.states[topic]["lines"]) < 5_000
    assert max(len(json.dumps(frame)) for frame in client.frames) < 400_000
    log.close()


@pytest.mark.parametrize("forged", [b"2 99999999999999999999 O hi\n", b"9" * 5000 + b" 1 O hi\n"])
def test_a_forged_record_freezes_nobody(live, people, job, forged: bytes):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    log = writer(job)
    log.feed(STDOUT, b"one\n")
    with open(log_path(settings.LOG_DIR, str(job.pk), 1, 0), "ab") as file:
        file.write(forged)
    log.feed(STDOUT, b"two\n")
    log.close()
    client = live.connect(secret)
    live.follow(client, f"job:{job.pk}:logs:0")
    live.follow(client, "overview")
    assert "two" in [line["text"] for line in client.states[f"job:{job.pk}:logs:0"]["lines"].values()]


def test_a_log_that_cannot_be_read_leaves_the_others_alone(live, people, job, caplog, monkeypatch):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    for rank in (0, 1):
        log = writer(job, rank=rank)
        log.feed(STDOUT, b"one\n")
        log.close()
    client = live.connect(secret)
    good, bad = f"job:{job.pk}:logs:0", f"job:{job.pk}:logs:1"
    live.follow(client, bad)
    live.follow(client, good)
    is_broken = True

    def read(path, *arguments):
        if is_broken and path.name == "1-1.log":
            raise ValueError("broken on purpose")
        return read_page(path, *arguments)

    monkeypatch.setattr(logtail, "read_page", read)
    for rank in (1, 0):
        log = writer(job, rank=rank)
        log.feed(STDOUT, b"two\n")
        log.close()
    wait_until(lambda: "2" in client.states[good]["lines"], what="the good log's line")
    assert "2" not in client.states[bad]["lines"]
    wait_until(lambda: f"{bad} cannot be read" in caplog.text, what="a word in our log")
    is_broken = False
    wait_until(lambda: "2" in client.states[bad]["lines"], what="the line after the mending")
    assert caplog.text.count("cannot be read") == 1  # not at every look


def test_who_asks_for_a_log_that_cannot_be_read_is_told_and_nobody_else_waits(live, people, job, caplog):
    secret = accounts.issue_token(people.ben, "test", actor=people.actor("ben"))[1]
    log_path(settings.LOG_DIR, str(job.pk), 1, 0).mkdir(parents=True)  # a directory in its place
    client = live.connect(secret)
    live.subscribe(client, f"job:{job.pk}:logs:0")
    live.follow(client, "overview")
    errors = [frame for frame in client.frames if frame["type"] == "error"]
    assert [error["code"] for error in errors] == ["unreadable"]
    assert "cannot be read" in caplog.text


def test_every_gap_of_a_line_is_told_and_stands_behind_it(job):
    log = writer(job)
    log.add([(1, b"o", b"one")])
    log.gap("output may be missing before noon")
    log.gap("the node died")
    log.add([(2, b"o", b"two")])
    log.end("exit 0")
    log.close()
    tail = logtail.LogTail(str(job.pk), 0)
    tail.open()
    told = [gap["message"] for gap in tail.state()["gaps"].values()]
    assert told == ["output may be missing before noon", "the node died"]
    text = "".join(log_text(job, 1, 0))
    assert text == "one\n[output may be missing before noon]\n[output is missing here: the node died]\ntwo\n"


def test_followers_at_one_place_share_what_is_read(server, job, headers, monkeypatch):
    """150 followers of one log raised another user's latency to 5-10 s."""
    reads: list[int] = []
    read_page_once = logstream.read_page

    def counting(path, offset, *rest):
        reads.append(offset)
        return read_page_once(path, offset, *rest)

    monkeypatch.setattr(logstream, "read_page", counting)
    monkeypatch.setattr(logstream, "POLL_SECONDS", 1.0)
    log = writer(job)
    log.feed(STDOUT, b"one\n")
    followers = [iter(Events(server, f"/api/v1/jobs/{job.pk}/logs?follow=true", headers)) for _ in range(20)]
    assert {next(follower)[2]["text"] for follower in followers} == {"one"}
    assert reads.count(0) < 10
    finish(job, log)


def test_a_user_follows_so_many_logs_and_no_more(server, job, headers, monkeypatch):
    monkeypatch.setattr(logstream._streams_of_user, "most", 2)
    path = f"/api/v1/jobs/{job.pk}/logs?follow=true"
    held = [Events(server, path, headers) for _ in range(2)]
    refused = server.request("GET", path, headers=headers)
    assert refused.status == 429
    assert refused.headers["retry-after"]
    assert json.loads(refused.read())["code"] == "too_many_log_streams"
    held[0].close()
    wait_until(lambda: server.request("GET", path, headers=headers).status == 200, what="a free place")


def test_followers_leave_the_hub_alone(server, job, headers, monkeypatch):
    log = writer(job)
    log.feed(STDOUT, b"one\n")
    monkeypatch.setattr(logstream, "read_page", lambda *_: pytest.fail("not on the hub's thread"))
    monkeypatch.setattr(
        logstream, "read_part", lambda *_: logstream.Part(threading.current_thread().name, 0, True)
    )
    response = server.request("GET", f"/api/v1/jobs/{job.pk}/logs?follow=true", headers=headers)
    assert response.read(9) == b"log-strea"
    finish(job, log)
