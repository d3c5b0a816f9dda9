"""`yard audit`: what it asks for, and how it shows changes."""

from typing import Any

from tests.cli.scripted import ScriptedServer, page

ENTRY = {
    "id": 7, "at": "2026-11-29T03:00:00Z", "actor": "ana", "token_prefix": "", "address": "10.0.0.7", "request_id": "r",
    "object_type": "project", "object_name": "team-a",
}  # fmt: skip


def entry(verb: str, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {**ENTRY, "verb": verb, "before": before, "after": after}


def test_changes_are_shown_with_both_values_and_new_ones_alone(server: ScriptedServer, yard: Any):
    edited = entry("project.edit", {"gpu_quota": 4, "priority": 0}, {"gpu_quota": 8, "priority": 0})
    made, gone = (
        entry("project.create", {}, {"name": "team-a"}),
        entry("project.delete", {"name": "team-a"}, {}),
    )
    server.on("GET", "audit", page(edited, made, gone))
    lines = yard("audit").out.splitlines()
    assert [line.split("project team-a")[1].strip() for line in lines[1:]] == [
        "gpu_quota: 4 -> 8", "name: team-a", "name: team-a"
    ]  # fmt: skip
    assert "10.0.0.7" in yard("audit", "-o", "wide").out


def test_filters_are_sent_and_no_others(server: ScriptedServer, yard: Any):
    server.on("GET", "audit", page())
    yard(
        "audit",
        "--user",
        "ben",
        "--verb",
        "volume.delete",
        "--type",
        "volume",
        "--object",
        "data",
        "--limit",
        "5",
    )
    asked = {
        "actor": "ben",
        "verb": "volume.delete",
        "object_type": "volume",
        "object_name": "data",
        "limit": "5",
    }
    assert server.asked[0].query == asked
    yard("audit", "--since", "2h")
    assert sorted(server.asked[1].query) == ["after", "limit"]
    assert server.asked[1].query["after"].endswith("+00:00")
