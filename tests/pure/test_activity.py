"""The topic `activity`: an event moves only the parts whose pages it can change."""

import pytest

from controlplane.live.activity import MOVED_BY, activity_after, activity_at, parts_of


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("dataset.version_created", ["datasets"]),
        ("dataset.registration_progressed", ["datasets"]),
        ("cache.progressed", ["caches"]),
        ("snapshot.ready", ["volumes"]),
        ("artifact.keeping", []),
        ("code.uploaded", []),
    ],
)
def test_an_event_about_data_redraws_no_other_list(kind: str, parts: list[str]):
    assert parts_of(kind) == parts


def test_an_unknown_event_may_change_everything():
    assert parts_of("user.created") == [*MOVED_BY]


def test_only_the_part_of_an_event_moves():
    moved = activity_after(activity_at(4), [(7, "dataset.created"), (8, "code.uploaded")])["moved"]
    assert {part: at["seq"] for part, at in moved.items()} == dict.fromkeys(MOVED_BY, 4) | {"datasets": 7}
