"""A followed log that is silent: what the job waits for goes to standard error."""

import threading

import pytest

from tests.cli.conftest import JOB_ID, job
from tests.cli.scripted import Reply, events, page, problem

JOB, LOG = f"jobs/{JOB_ID}", f"jobs/{JOB_ID}/logs"
LINE = {"n": 1, "time": "t", "stream": "stdout", "text": "epoch 1", "offset": 8}
SUCCEEDED = ("end", {"state": "succeeded", "exit_code": 0})


@pytest.fixture
def impatient_yard(yard, monkeypatch):
    """`yard`, for which a twentieth of a second is a silence."""
    monkeypatch.setattr("controlplane.cli.silence.QUIET_SECONDS", 0.05)
    for name in ("LOOK_SECONDS", "LOOK_PRINTING_SECONDS"):
        monkeypatch.setattr(f"controlplane.cli.silence.{name}", 0.01)
    return yard


def waits(message, state="queued", **status):
    return job(state=state, reason={"code": "", "message": message, "details": {}}, **status)


def looked(server, times):
    """Return a condition: the job was read so often that all answers but the last have been dealt with."""
    return lambda: len(server.requests("GET", JOB)) > times


@pytest.mark.parametrize("words", [("logs", JOB_ID, "-f"), ("attach", JOB_ID)])
def test_a_silent_log_says_why_once_and_again_when_it_changes(server, impatient_yard, words):
    full, behind = waits("No GPU is free."), waits("2 jobs are ahead.")
    server.on("GET", JOB, full, full, behind, behind, job(state="running"))
    server.on("GET", LOG, Reply(body=events(("line", LINE), SUCCEEDED).body, when=looked(server, 5)))
    ran = impatient_yard(*words)
    assert (ran.code, ran.out) == (0, "epoch 1\n")
    assert ran.err.splitlines() == [
        "hyper1 is queued: No GPU is free.",
        "hyper1 is queued: 2 jobs are ahead.",
        "hyper1 is running",
    ]


def test_what_was_said_at_the_start_is_not_said_again(server, impatient_yard):
    full = waits("No GPU is free.")
    server.on("GET", "projects/team-a/jobs", page(full))
    server.on("GET", JOB, full)
    server.on("GET", LOG, Reply(body=events(("line", LINE), SUCCEEDED).body, when=looked(server, 2)))
    ran = impatient_yard("logs", "hyper1", "-f")
    assert (ran.out, ran.err) == ("epoch 1\n", "hyper1 is queued: No GPU is free.\n")


def test_submit_and_follow_says_it_too_and_exits_as_the_job(server, impatient_yard):
    is_over = threading.Event()

    def ends():
        if looked(server, 1)():
            server.on("GET", JOB, waits("It ended with exit code 5.", state="failed", exit_code=5))
            is_over.set()
        return is_over.is_set()

    server.on("POST", "projects/team-a/jobs", Reply(201, job(state="queued")))
    server.on("GET", JOB, waits("No GPU is free."))
    server.on("GET", LOG, Reply(body=events(("end", {"state": "failed", "exit_code": 5})).body, when=ends))
    ran = impatient_yard("submit", "hyper1", "--logs")
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.splitlines()[1:] == [
        "hyper1 is queued: No GPU is free.",
        "job hyper1 failed: It ended with exit code 5.",
    ]


def test_a_running_job_that_has_printed_may_be_silent(server, impatient_yard):
    # On a busy machine the first look may come before the line: it is answered when the line was printed.
    server.on("GET", JOB, Reply(body=job(state="running"), when=lambda: len(server.requests("GET", LOG)) > 1))
    server.on(
        "GET",
        LOG,
        events(("line", LINE, "1-8")),
        Reply(body=events(SUCCEEDED).body, when=looked(server, 2)),
    )
    ran = impatient_yard("logs", JOB_ID, "-f")
    assert (ran.out, ran.err) == ("epoch 1\n", "")


def test_a_job_that_cannot_be_read_is_read_again(server, impatient_yard):
    server.on("GET", JOB, problem(404, "not_found", "Gone."), waits("No GPU is free."))
    server.on("GET", LOG, Reply(body=events(("line", LINE), SUCCEEDED).body, when=looked(server, 2)))
    assert impatient_yard("logs", JOB_ID, "-f").err == "hyper1 is queued: No GPU is free.\n"


@pytest.mark.parametrize(
    ("words", "nothing"),
    [
        (["-f"], " (it has printed nothing)"),
        ([], " (it has printed nothing)"),
        (["--search", "x"], " (it has no line with 'x')"),
        (["--rank", "1"], " (rank 1 has printed nothing)"),
    ],
)
def test_a_job_that_ended_without_a_line(server, yard, words, nothing):
    empty = {"lines": [], "next_offset": 0, "complete": True, "gaps": []}
    server.on("GET", LOG, events(SUCCEEDED) if "-f" in words else empty)
    server.on("GET", JOB, waits("ana stopped it.", state="stopped"))
    ran = yard("logs", JOB_ID, *words)
    assert (ran.code, ran.out, ran.err) == (0, "", f"hyper1 stopped: ana stopped it.{nothing}\n")


def test_a_log_of_which_only_new_lines_were_asked_for_may_have_old_ones(server, yard):
    server.on("GET", LOG, events(SUCCEEDED))
    ran = yard("logs", JOB_ID, "-f", "-t", "0")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
