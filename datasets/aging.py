"""Which caches go: those unused for long, and, where room is short, those unused for longest. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

# A cache that no job asked to keep stays this long after its last job: the next one may be on its way.
TEMPORARY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Aged:
    """A cache that holds room. `is_wanted`: an unfinished job mounts it."""

    key: str
    used_at: datetime
    charged_bytes: int
    is_wanted: bool = False
    is_pinned: bool = False
    is_kept: bool = True


def too_old(caches: Iterable[Aged], now: datetime, unused_days: int) -> list[str]:
    """Return the caches whose time is over. Pinned ones and those that a job wants have no end."""
    kept, temporary = now - timedelta(days=unused_days), now - TEMPORARY
    return [
        cache.key for cache in _removable(caches) if cache.used_at < (kept if cache.is_kept else temporary)
    ]


def to_make_room(caches: Iterable[Aged], wanted_bytes: int) -> list[str] | None:
    """Return the caches to remove for `wanted_bytes`, those unused for longest first; None when all that may be removed
    are not enough. What a cache frees is estimated by its charge, the least that its contents take."""
    chosen: list[str] = []
    for cache in sorted(_removable(caches), key=lambda cache: (cache.is_kept, cache.used_at, cache.key)):
        if wanted_bytes <= 0:
            break
        chosen.append(cache.key)
        wanted_bytes -= cache.charged_bytes
    return chosen if wanted_bytes <= 0 else None


def _removable(caches: Iterable[Aged]) -> Sequence[Aged]:
    return [cache for cache in caches if not (cache.is_wanted or cache.is_pinned)]
