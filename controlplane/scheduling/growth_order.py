"""Choose which running elastic job grows first, and by how much. Pure.

Speed grows less than in proportion to workers, so the next worker gains most in the smallest job; and of jobs of one
size, the one with the least work left frees its GPUs for the others soonest. bench/elastic_trace.py has what this
reaches on a real trace, beside growing jobs to their full size in the order in which they came.
"""

from collections.abc import Sequence

from controlplane.scheduling.sizes import largest_size

# With 0 the work left would not count, with 1 long jobs would wait for all short ones: mean completion is best between.
WORK_EXPONENT = 0.25
LEAST_SECONDS = 60.0
# For a job that does not report how long it will take.
UNKNOWN_SECONDS = 86_400.0


def growth_rank(workers: int, left_seconds: float | None) -> float:
    """Return the place of a job among those that can grow: lower ones first. `left_seconds`: until its end with the
    workers that it has."""
    left = UNKNOWN_SECONDS if left_seconds is None else max(LEAST_SECONDS, left_seconds)
    return float(workers * (workers * left) ** WORK_EXPONENT)


def next_size(sizes: Sequence[int], workers: int, most: int) -> int:
    """Return the size, at most `most`, to which a job of so many workers grows while others want to grow, too: twice as
    many, or the next allowed size beyond; `workers` if there is none."""
    doubled = largest_size(sizes, min(2 * workers, most))
    if doubled > workers:
        return doubled
    return next((size for size in sizes if workers < size <= most), workers)
