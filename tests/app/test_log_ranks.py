"""Whose log is that of an elastic job."""

from jobs.log_ranks import default_log_rank, default_log_ranks
from jobs.models import Attempt, Generation, Job
from tests.builders import make_job
from tests.cast import Cast


def test_the_newest_generation_says_who_speaks_and_its_row_alone_is_read(
    cast: Cast, django_assert_num_queries
):
    bounds = {"min_workers": 1, "workers": 2, "max_workers": 3}
    job: Job = make_job(cast.project, "grows", kind="elastic", gpus=0, **bounds)
    attempt = Attempt.objects.create(job=job, number=1)
    assert (default_log_rank(job, 1), default_log_ranks(job, 1)) == (0, [0])
    # The first worker is replaced, and one with a lower rank comes first again. None is left in the end.
    for number, ranks in enumerate(([0, 1], [1, 2], [0, 1], []), start=1):
        members = [{"id": rank, "address": ""} for rank in ranks]
        Generation.objects.create(attempt=attempt, number=number, cause="loss", members=members)
    with django_assert_num_queries(1) as asked:
        assert default_log_rank(job, 1) == 0
    assert "LIMIT 1" in asked[0]["sql"]
    assert default_log_ranks(job, 1) == [1, 0]
    assert (default_log_rank(job, 2), default_log_ranks(job, 2)) == (0, [0])
