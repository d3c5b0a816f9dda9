"""Choose which running elastic job grows first, and by how much. Pure.

Speed grows less than in proportion to workers, so one more worker gains most in the smallest job; among jobs of
one size, the one with the least work left frees its GPUs soonest. bench/elastic_trace.py compares this on a
recorded trace with growing jobs to their full size in order of submission.
"""

from collections.abc import Sequence

from controlplane.scheduling.sizes import largest_size

# With 0 the remaining work would not count; with 1 long jobs would wait for all short ones. Mean completion is
# best between them.
WORK_EXPONENT = 0.25
LEAST_SECONDS = 60.0
# Assumed for a job that does not report its remaining time.
UNKNOWN_SECONDS = 86_400.0


def growth_rank(workers: int, left_seconds: float | None) -> float:
    """Return the sort key of a job that can grow; the lowest grows first. `left_seconds`: time until its end
    with its current workers."""
    left = UNKNOWN_SECONDS if left_seconds is None else max(LEAST_SECONDS, left_seconds)
    return float(workers * (workers * left) ** WORK_EXPONENT)


def next_size(sizes: Sequence[int], workers: int, most: int) -> int:
    """Return the size, at most `most`, to which a job grows in one turn while other jobs want to grow too:
    twice its workers, or else the next larger allowed size. Returns `workers` if it cannot grow."""
    doubled = largest_size(sizes, min(2 * workers, most))
    if doubled > workers:
        return doubled
    return next((size for size in sizes if workers < size <= most), workers)
