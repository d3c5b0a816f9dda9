"""Which caches go, and what caches that share contents cost."""

from datetime import UTC, datetime, timedelta
from random import Random

from datasets.aging import Aged, to_make_room, too_old
from datasets.cache_shares import charges
from datasets.manifests import FILE, Entry, Manifest, make_manifest

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def aged(key: str, hours: float, size: int = 10, **flags: bool) -> Aged:
    return Aged(key, NOW - timedelta(hours=hours), size, **flags)


def manifest(*contents: int) -> Manifest:
    return make_manifest(
        Entry(str(number).encode(), FILE, number, number.to_bytes(32, "big")) for number in contents
    )


def test_what_was_unused_for_the_days_of_the_location_goes():
    caches = [
        aged("old", 25),
        aged("young", 23),
        aged("wanted", 99, is_wanted=True),
        aged("pinned", 99, is_pinned=True),
    ]
    assert too_old(caches, NOW, 1) == ["old"]
    assert too_old(caches, NOW, 2) == []


def test_what_no_job_asked_to_keep_goes_after_minutes():
    assert too_old([aged("just", 0.1, is_kept=False), aged("later", 0.2, is_kept=False)], NOW, 1) == ["later"]


def test_room_is_made_from_those_unused_for_longest_and_no_more_than_needed():
    caches = [aged("new", 1), aged("old", 9), aged("older", 10), aged("job", 0.1, is_kept=False)]
    assert to_make_room(caches, 15) == ["job", "older"]
    assert to_make_room(caches, 40) == ["job", "older", "old", "new"]
    assert to_make_room(caches, 41) is None
    assert to_make_room(caches, 0) == []
    assert to_make_room([aged("pinned", 9, is_pinned=True)], 1) is None


def test_shared_contents_are_charged_in_equal_parts():
    found = charges({"a": manifest(3, 4), "b": manifest(4, 8), "c": manifest(4)})
    assert found.used_bytes == 15
    assert found.by_cache == {"a": 3 + 1, "b": 8 + 1, "c": 1}


def test_together_caches_are_charged_what_they_use():
    draw = Random(5)
    for _ in range(50):
        caches = {
            key: manifest(*draw.sample(range(1, 200), draw.randint(0, 40)))
            for key in range(draw.randint(1, 6))
        }
        found = charges(caches)
        assert 0 <= found.used_bytes - sum(found.by_cache.values()) < len(caches)
        distinct = {number for each in caches.values() for number in each.sizes}
        assert found.used_bytes == sum(distinct)
