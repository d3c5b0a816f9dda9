"""`yard cache-location`: what is sent for the options that are given."""

import pytest

LOCATION = {"name": "zone-b", "cluster": "prod", "free_bytes": 1 << 30}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (["--room", "5Gi"], {"room_bytes": 5 << 30}),
        (["--room", "disk", "--unused-days", "7"], {"room_bytes": None, "unused_days": 7}),
        (["--clear", "node-pools", "--clear", "node-labels"], {"node_pools": [], "node_labels": {}}),
        (["--clear", "node-labels", "--node-pool", "a"], {"node_pools": ["a"], "node_labels": {}}),
        (
            ["--node-pool", "a", "--node-pool", "b", "--node-label", "zone=b"],
            {"node_pools": ["a", "b"], "node_labels": {"zone": "b"}},
        ),
    ],
)
def test_edit_sends_what_is_given_and_nothing_else(server, yard, given, sent):
    server.on("PATCH", "cache-locations/zone-b", LOCATION)
    ran = yard("cache-location", "edit", "zone-b", *given)
    assert (ran.code, server.asked[-1].body) == (0, sent)
    assert "zone-b changed" in ran.out


def test_edit_without_a_change_or_with_a_wrong_one_asks_nothing(server, yard):
    for wrong in (
        [],
        ["--room", "much"],
        ["--unused-days", "x"],
        ["--clear", "node-pools", "--node-pool", "a"],
    ):
        ran = yard("cache-location", "edit", "zone-b", *wrong)
        assert ran.code == 2, wrong
    assert server.asked == []


@pytest.mark.parametrize("words", [["cache-location", "list"], ["list", "cache-locations"]])
def test_list_shows_the_room_of_each(server, yard, words):
    more = {"room_bytes": None, "committed_bytes": 0, "caches": 2, "hits": 5, "unused_days": 1}
    server.on("GET", "cache-locations", {"results": [LOCATION | more], "next": None})
    ran = yard(*words)
    assert ran.code == 0
    assert ran.out.splitlines()[1].split() == ["zone-b", "prod", "disk", "0", "B", "1.1", "GB", "2", "5", "1"]


def test_create_takes_the_same_options(server, yard):
    server.on("POST", "cache-locations", LOCATION)
    options = [
        "--cluster",
        "prod",
        "--node-label",
        "zone=b",
        "--room",
        "1Gi",
        "--unused-days",
        "3",
        "--one-node",
    ]
    assert yard("cache-location", "create", "zone-b", *options, "-o", "json").code == 0
    assert server.asked[-1].body == {
        "name": "zone-b",
        "cluster": "prod",
        "node_labels": {"zone": "b"},
        "access_mode": "ReadWriteOnce",
        "room_bytes": 1 << 30,
        "unused_days": 3,
    }


def test_create_sends_zeros_too(server, yard):
    """A room of 0 left out made a location without a limit; 0 days are for the server to refuse."""
    server.on("POST", "cache-locations", LOCATION)
    options = ["--cluster", "prod", "--node-pool", "a", "--unused-days", "0", "--room", "0"]
    yard("cache-location", "create", "zone-b", *options)
    body = {"name": "zone-b", "cluster": "prod", "node_pools": ["a"], "room_bytes": 0, "unused_days": 0}
    assert server.asked[-1].body == body
