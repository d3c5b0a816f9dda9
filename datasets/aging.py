"""Choose the caches to remove: those unused for too long and, to free space, the least recently used. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

# A cache that no job asked to keep is kept for this long after its last job, since the next job may need it.
TEMPORARY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Aged:
    """A cache that uses space. `used_at`: its last use. `charged_bytes`: its share of the space (see cache_shares).
    `is_wanted`: an unfinished job mounts it. `is_pinned`: never removed. `is_kept`: False for one that no user asked to
    keep beyond its jobs."""

    key: str
    used_at: datetime
    charged_bytes: int
    is_wanted: bool = False
    is_pinned: bool = False
    is_kept: bool = True


def too_old(caches: Iterable[Aged], now: datetime, unused_days: int) -> list[str]:
    """Return the keys of the caches to remove: those unused for more than `unused_days`, or for TEMPORARY if no user
    asked to keep them. Pinned ones, and those that unfinished jobs mount, never expire."""
    kept, temporary = now - timedelta(days=unused_days), now - TEMPORARY
    return [
        cache.key for cache in _removable(caches) if cache.used_at < (kept if cache.is_kept else temporary)
    ]


def to_make_room(caches: Iterable[Aged], wanted_bytes: int) -> list[str] | None:
    """Return the keys of caches whose removal frees `wanted_bytes`: first those that no user asked to keep, then the
    least recently used; never pinned ones or those that unfinished jobs mount. None if all of these are too small.
    Assumes that a removal frees the cache's charge (see cache_shares), a lower bound of what it really frees."""
    chosen: list[str] = []
    for cache in sorted(_removable(caches), key=lambda cache: (cache.is_kept, cache.used_at, cache.key)):
        if wanted_bytes <= 0:
            break
        chosen.append(cache.key)
        wanted_bytes -= cache.charged_bytes
    return chosen if wanted_bytes <= 0 else None


def _removable(caches: Iterable[Aged]) -> Sequence[Aged]:
    return [cache for cache in caches if not (cache.is_wanted or cache.is_pinned)]
