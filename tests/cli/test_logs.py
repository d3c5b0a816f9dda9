"""Output of a job: whole, the end of it, or as it comes over a connection that breaks."""

import json

import pytest

from controlplane.cli.commands.logs import spelt_progress
from controlplane.cli.sse import Event, EventParser
from tests.browser.samples import PROGRESS_LINES
from tests.cli.conftest import JOB_ID, job
from tests.cli.scripted import Reply, events, page, problem

PATH = f"jobs/{JOB_ID}/logs"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("controlplane.cli.session.Session.pause", lambda session, seconds: None)


def line(number: int, text: str) -> dict:
    return {
        "n": number,
        "time": "2026-01-02T03:04:05Z",
        "stream": "stdout",
        "text": text,
        "offset": number * 10,
    }


def log_page(*lines: dict, next_offset: int, gaps: tuple = ()) -> dict:
    return {"lines": list(lines), "next_offset": next_offset, "complete": True, "gaps": list(gaps)}


def test_every_page_is_printed(server, yard):
    server.on(
        "GET",
        PATH,
        log_page(line(1, "a"), next_offset=10),
        log_page(line(2, "b"), next_offset=20),
        log_page(next_offset=20),
    )
    ran = yard("logs", JOB_ID)
    assert ran.out == "a\nb\n"
    assert [asked.query["offset"] for asked in server.asked] == ["0", "10", "20"]


def test_tail_is_one_page(server, yard):
    server.on("GET", PATH, log_page(line(9, "last"), next_offset=90))
    assert yard("logs", JOB_ID, "-t", "1", "--rank", "2", "--attempt", "3").out == "last\n"
    assert [asked.query for asked in server.asked] == [{"rank": "2", "attempt": "3", "tail": "1"}]


def test_into_a_pipe_text_goes_as_it_came(server, yard):
    raw = "\x1b[31mred\x1b[0m \x1b]0;t\x07 10%\r20%"
    server.on("GET", PATH, log_page(line(1, raw), next_offset=10), log_page(next_offset=10))
    assert yard("logs", JOB_ID).out == f"{raw}\n"


@pytest.mark.parametrize(("text", "spelt"), PROGRESS_LINES)
def test_which_lines_are_progress(text, spelt):
    assert spelt_progress(text) == spelt


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("3 lines", "[output is missing after line 4: 3 lines]"),
        ("output may be missing here: gone", "[after line 4: output may be missing here: gone]"),
        (
            "output may be missing before 12:00: gone",
            "[after line 4: output may be missing before 12:00: gone]",
        ),
    ],
)
def test_gaps_are_shown(server, yard, message, said):
    server.on(
        "GET",
        PATH,
        log_page(line(5, "x"), next_offset=5, gaps=({"after": 4, "message": message},)),
        log_page(next_offset=5),
    )
    ran = yard("logs", JOB_ID)
    assert ran.out == "x\n"
    assert said in ran.err


def test_json_is_one_page_of_all_lines(server, yard):
    server.on(
        "GET",
        PATH,
        log_page(line(1, "a"), next_offset=10),
        log_page(line(2, "b"), next_offset=20),
        log_page(next_offset=20),
    )
    whole = json.loads(yard("logs", JOB_ID, "-o", "json").out)
    assert [each["text"] for each in whole["lines"]] == ["a", "b"]
    assert whole["next_offset"] == 20


def test_follow_goes_on_where_the_connection_broke_and_repeats_nothing(server, yard):
    server.on(
        "GET",
        PATH,
        events(("line", line(1, "a"), "1-10"), ("line", line(2, "b"), "1-20")),
        Reply(is_cut=True),
        problem(503, "not_ready", "Restarting."),
        events(("line", line(3, "c")), ("end", {"state": "succeeded", "exit_code": 0})),
    )
    ran = yard("logs", JOB_ID, "-f", "-t", "5")
    assert ran.out == "a\nb\nc\n"
    assert ran.code == 0
    assert [asked.headers.get("Last-Event-ID") for asked in server.asked] == [None, "1-20", "1-20", "1-20"]
    assert server.asked[0].query == {"follow": "true", "tail": "5"}


def test_a_resumed_follow_goes_on_into_the_next_attempt(server, yard):
    server.on(
        "GET",
        PATH,
        events(("line", line(1, "first"), "1-10")),
        events(("end", {"state": "running", "exit_code": None})),
        events(("line", line(1, "second"), "2-10"), ("end", {"state": "succeeded", "exit_code": 0})),
    )
    ran = yard("logs", JOB_ID, "-f")
    assert ran.out == "first\nsecond\n"
    assert [asked.headers.get("Last-Event-ID") for asked in server.asked] == [None, "1-10", None]


def test_one_attempt_asked_for_is_followed_alone(server, yard):
    server.on("GET", PATH, events(("end", {"state": "running", "exit_code": None})))
    assert yard("logs", JOB_ID, "-f", "--attempt", "1").code == 0
    assert len(server.asked) == 1


def test_the_log_of_a_queued_job_says_aside_why_it_waits(server, yard):
    server.on("GET", "projects/team-a/jobs", page(job(state="queued", reason={"message": "No GPU is free."})))
    server.on("GET", PATH, events(("line", line(1, "a")), ("end", {"state": "succeeded"})))
    ran = yard("logs", "hyper1", "-f")
    assert (ran.code, ran.out, ran.err) == (0, "a\n", "hyper1 is queued: No GPU is free.\n")


def test_a_new_attempt_is_announced_aside(server, yard):
    server.on(
        "GET",
        PATH,
        events(("attempt", {"attempt": 2}), ("line", line(1, "a")), ("end", {"state": "succeeded"})),
    )
    ran = yard("logs", JOB_ID, "-f")
    assert (ran.out, ran.err) == ("a\n", "[attempt 2]\n")


def test_pieces_of_a_long_line_are_joined(server, yard):
    pieces = ({**line(1, "a" * 5), "partial": True}, line(2, "b"))
    server.on("GET", PATH, log_page(*pieces, next_offset=20), log_page(next_offset=20))
    assert yard("logs", JOB_ID).out == "aaaaab\n"


def test_follow_does_not_retry_a_refusal(server, yard):
    server.on("GET", PATH, problem(403, "forbidden", "Not yours."))
    assert yard("logs", JOB_ID, "-f").code == 4
    assert len(server.asked) == 1


def test_follow_gives_up_on_a_server_that_stays_away(server, yard):
    server.on("GET", PATH, Reply(is_cut=True))
    assert yard("logs", JOB_ID, "-f").code == 6


def test_follow_as_json_lines(server, yard):
    server.on("GET", PATH, events(("line", line(1, "a")), ("end", {})))
    assert json.loads(yard("logs", JOB_ID, "-f", "-o", "json").out) == line(1, "a")


def test_attach_starts_near_the_end(server, yard):
    server.on("GET", PATH, events(("end", {})))
    assert yard("attach", JOB_ID).code == 0
    assert server.asked[0].query == {"follow": "true", "tail": "10"}


STREAM = (
    'event: line\r\ndata: {"a": "日"}\r\n\r\n: alive\n\n'
    "id: 7\nevent: x\ndata: one\ndata:two\n\ndata: plain\n\n"
).encode()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_however_the_bytes_are_cut(size):
    parser = EventParser()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    found = [event for piece in pieces for event in parser.feed(piece)]
    assert found == [
        Event("line", '{"a": "日"}'),
        Event("x", "one\ntwo", "7"),
        Event("message", "plain"),
    ]
