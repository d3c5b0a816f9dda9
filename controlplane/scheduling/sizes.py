"""Allowed sizes and speeds of elastic jobs. `sizes` are ascending; an empty sequence allows every size."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

MOST_WORKERS = 10_000
# Bounds of declared speeds, in any unit: products and quotients of such numbers stay in the range of a float.
SLOWEST, FASTEST = 1e-6, 1e9


def largest_size(sizes: Sequence[int], most: int) -> int:
    """Return the largest allowed size up to `most` (`most` itself if all sizes are allowed); 0 if there is none."""
    if not sizes:
        return most
    below = bisect_right(sizes, most)
    return sizes[below - 1] if below else 0


def nearest_sizes(sizes: Sequence[int], wanted: int) -> tuple[int, ...]:
    """Return the allowed sizes next to `wanted`, which is not allowed: the smaller and the larger one, as far as they
    exist."""
    place = bisect_left(sizes, wanted)
    return tuple(sizes[max(0, place - 1) : place + 1])


def next_size(sizes: Sequence[int], has: int) -> int:
    """Return the smallest allowed size above `has` (`has` + 1 if all sizes are allowed); 0 if there is none."""
    if not sizes:
        return has + 1
    above = bisect_right(sizes, has)
    return sizes[above] if above < len(sizes) else 0
