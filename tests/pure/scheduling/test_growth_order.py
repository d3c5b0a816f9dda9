"""Which elastic job grows first, and by how much."""

import pytest

from controlplane.scheduling.growth_order import growth_rank, next_size


def test_the_smaller_job_grows_first_and_of_equal_ones_that_with_less_left() -> None:
    assert growth_rank(1, 3_600) < growth_rank(2, 3_600)
    assert growth_rank(2, 600) < growth_rank(2, 3_600)
    # Four times the workers weigh more than a thousandth of the time.
    assert growth_rank(1, 360_000) < growth_rank(4, 360)


def test_a_job_that_reports_no_time_comes_after_those_that_are_nearly_done() -> None:
    assert growth_rank(2, 3_600) < growth_rank(2, None) < growth_rank(4, 3_600)
    assert growth_rank(2, 0.0) == growth_rank(2, 59.0) > 0


@pytest.mark.parametrize(
    ("sizes", "workers", "most", "to"),
    [
        ((), 2, 8, 4),
        ((), 2, 3, 3),
        ((), 2, 2, 2),
        ((1, 4, 6), 1, 6, 4),  # the next size is beyond the double
        ((1, 2, 3, 4), 2, 9, 4),
        ((1, 4), 1, 3, 1),
    ],
)
def test_a_job_doubles_or_takes_the_next_allowed_size(
    sizes: tuple[int, ...], workers: int, most: int, to: int
) -> None:
    assert next_size(sizes, workers, most) == to
