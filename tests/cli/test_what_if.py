"""`yard project what-if`: what it asks, and the text that it makes of the answer."""

from controlplane.cli import client
from tests.cli.scripted import problem


def effect(before, after):
    return {"before": before, "after": after}


ANSWER = {
    "followed_seconds": 3600,
    "projects": [
        {
            "project": "team-a",
            "fair_share_gpus": effect(4, 6),
            "held_gpus": effect(4, 6),
            "mean_wait_seconds": effect(7200, None),
            "recorded_mean_wait_seconds": None,
        }
    ],
    "record": None,
    "counts": {"sooner": 2, "later": 0, "preempted": 1, "spared": 0},
    "sooner": [{"project": "team-a", "job": "1", "name": "hyper1", "wait_seconds": effect(7200, 0)}],
    "later": [],
    "preempted": [{"project": "team-b", "job": None, "name": None, "wait_seconds": effect(None, None)}],
    "spared": [],
}


def test_it_shows_what_starts_and_stops(server, yard):
    server.on("POST", "projects/team-a/what-if", ANSWER)
    ran = yard("project", "what-if", "team-a", "--gpu-quota", "6", "--gpu-limit", "none")
    assert ran.code == 0
    assert server.asked[-1].body == {"gpu_quota": 6, "gpu_limit": None}
    for text in (
        "4 -> 6",
        "2h00m -> -",
        "hyper1 (team-a) starts sooner: 2h00m -> 0s",
        "1 more: starts sooner",
    ):
        assert text in ran.out
    assert "a job of team-b would be stopped" in ran.out


def test_the_last_week_is_asked_for_and_said(server, yard):
    record = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-08T00:00:00Z", "jobs": 12, "left_out": 3}
    server.on("POST", "projects/team-a/what-if", ANSWER | {"record": record})
    ran = yard("project", "what-if", "team-a", "--gpu-quota", "6", "--last-week")
    assert ran.code == 0
    assert server.asked[-1].query == {"last_week": "true"}
    assert "12 jobs since 2026-01-01T00:00:00Z, 1h00m replayed; 3 never ran" in ran.out


def test_a_replayed_week_is_waited_for_longer_than_other_answers(server, yard, monkeypatch):
    server.on("POST", "projects/team-a/what-if", ANSWER)
    waits, opened = [], client.open_connection
    monkeypatch.setattr(client, "open_connection", lambda parts, s: waits.append(s) or opened(parts, s))
    assert yard("project", "what-if", "team-a", "--gpu-quota", "6").code == 0
    assert yard("project", "what-if", "team-a", "--gpu-quota", "6", "--last-week").code == 0
    assert waits == [client.TIMEOUT_SECONDS, 90]


def test_it_needs_a_change_and_passes_refusals_on(server, yard):
    assert yard("project", "what-if", "team-a").code == 2
    server.on("POST", "projects/team-a/what-if", problem(403, "forbidden", "Only owners ask."))
    assert yard("project", "what-if", "team-a", "--priority", "3").code == 4
