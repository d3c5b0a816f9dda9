"""The replay of traces in virtual time, on a few jobs whose course is worked out by hand."""

from __future__ import annotations

from bench.trace_replay import Replay, TraceJob, easy
from bench.trace_waits import GangReasons
from bench.traces import quotas_by_gpu_hours, read_jobs
from controlplane.scheduling.cycle import decide
from tests.pure.scheduling.builders import nodes, project

# the form of itp_jobs.csv, with times of our own
EXCERPT = """tenant,submit_s,duration_s,num_gpu
itp07,0,7200,8
itp07,10,3600,8
itp02,2000,600,8
itp02,2100,600,16
"""


def trace(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(EXCERPT)
    return read_jobs(path)


def by_id(outcome):
    return {job.id: job for job in outcome.jobs}


def test_the_reasons_of_the_gangs_that_waited_longest_are_counted_by_the_hour():
    """The first holds both nodes for four hours. The second waits three; arrivals of others make the cycles."""
    jobs = [TraceJob("first", "p", 0, 4 * 3600, 16), TraceJob("second", "p", 3600, 60, 16)]
    jobs += [TraceJob(f"s{hour}", "p", hour * 3600, 60, 8) for hour in (2, 3)]
    reasons = GangReasons()
    outcome = Replay(nodes(2), (project("p", 16),), decide, on_plan=reasons.on_plan).run(jobs)
    [line] = reasons.lines(outcome.jobs, 1)
    assert "second p: 16 GPUs" in line
    assert "waited 10800 s: over_fair_share 3 h" in line


def test_a_preempted_job_falls_back_to_its_checkpoint_and_pays_the_restart(tmp_path):
    jobs = trace(tmp_path)[:3]
    outcome = Replay(nodes(2), (project("itp07", 8), project("itp02", 8)), decide).run(jobs)
    first, victim, taker = outcome.jobs
    assert (first.wait, victim.wait, taker.wait) == (0, 0, 0)
    assert outcome.preemptions == outcome.most_preemptions == 1
    # it had worked 1,990 s, of which 1,800 s are kept; 120 s are for the restart
    assert outcome.lost_gpu_seconds == 8 * (190 + 120)
    assert taker.finished == 2600
    assert victim.finished == 2600 + 120 + 1800
    assert outcome.in_quota_within_a_minute == 1.0


def test_easy_backfills_what_does_not_delay_the_oldest(tmp_path):
    outcome = easy(trace(tmp_path), 2)
    assert [(job.first_start, job.finished) for job in outcome.jobs] == [
        (0, 7200),
        (10, 3610),
        (3610, 4210),
        (7200, 7800),
    ]


def test_a_job_is_inside_its_quota_with_all_that_its_project_asks_for(tmp_path):
    outcome = Replay(nodes(2), (project("itp07", 8), project("itp02", 8)), decide).run(trace(tmp_path))
    assert [job.is_inside_quota for job in outcome.jobs] == [True, False, True, False]


def test_quotas_follow_gpu_hours_in_whole_gpus():
    jobs = [TraceJob("a", "a", 0, 100, 2), TraceJob("b", "b", 0, 100, 1)]
    assert quotas_by_gpu_hours(jobs, 16) == {"a": 11, "b": 5}
