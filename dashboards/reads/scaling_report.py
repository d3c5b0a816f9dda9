"""Scaling reports: runs of one program with different numbers of workers, grouped by a label of their jobs."""

from collections import Counter
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from controlplane.access import Actor
from controlplane.logstore.progress import Progress
from dashboards import formats
from dashboards.charts.scaling import Measured, Scaled, scaled
from dashboards.reads.series import job_reports
from jobs.access import visible_jobs
from jobs.models import Job

LABEL = "scaling-report"
# Limits on the newest jobs that are searched for reports, and on the runs of one report.
JOBS_MOST, RUNS_MOST = 1000, 50
# Progress lines at the start of a run that are ignored, while caches and buffers fill, if there are others.
WARM_UP_LINES = 1
# Accepted samples per second. Values outside are program errors, and the quotient of two could be infinite.
LEAST_RATE, MOST_RATE = 1e-6, 1e12


@dataclass(frozen=True, slots=True)
class Report:
    """A report: project, name, and the number of its newest jobs."""

    project: str
    name: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Run:
    """A job of a report, with its measurements compared with the smallest run."""

    job: Job
    scaled: Scaled

    @property
    def cells(self) -> dict[str, str]:
        """Return the texts of the run's cells in the table, by column; a dash for a measurement that is missing."""
        run = self.scaled.run
        shares = {
            "efficiency": self.scaled.efficiency,
            "allreduce": run.allreduce_share,
            "utilization": run.gpu_utilization,
        }
        percents = {name: formats.percent(share) for name, share in shares.items()}
        rate, speed_up = f"{run.samples_per_second:,.1f}", f"{self.scaled.speed_up:.2f}"
        memory = "–" if run.gpu_memory_mib is None else f"{run.gpu_memory_mib:,} MiB"
        return {"rate": rate, "speed_up": speed_up, "memory": memory, **percents}


def reports(actor: Actor) -> list[Report]:
    """Return the reports with jobs that the actor may see, newest first."""
    jobs = visible_jobs(actor).filter(labels__has_key=LABEL).order_by("-created_at", "-pk")[:JOBS_MOST]
    found = Counter(
        (project, labels[LABEL]) for project, labels in jobs.values_list("project__name", "labels")
    )
    return [Report(project, name, count) for (project, name), count in found.items()]


def report_runs(actor: Actor, project: str, name: str) -> tuple[list[Run], list[Job]]:
    """Return (runs, jobs) of a report, from the newest RUNS_MOST of its jobs that the actor may see: the newest
    measured run for each number of workers, and the jobs without measurements."""
    labelled: dict[str, Any] = {f"labels__{LABEL}": name}
    jobs = (
        visible_jobs(actor)
        .filter(project__name=project, **labelled)
        .order_by("-created_at", "-pk")[:RUNS_MOST]
    )
    newest: dict[int, tuple[Job, Measured]] = {}
    silent = []
    for job in jobs.select_related("project"):
        run = measured(job.spec["workers"], job_reports(job, max(1, job.attempt)))
        if run is None:
            silent.append(job)
        else:
            newest.setdefault(run.workers, (job, run))
    job_of = {workers: job for workers, (job, _run) in newest.items()}
    return [
        Run(job_of[one.run.workers], one) for one in scaled([run for _job, run in newest.values()])
    ], silent


def measured(workers: int, progress: tuple[Progress, ...]) -> Measured | None:
    """Return the measurements in a run's progress lines, None if they contain no rate. `workers`: the run's number
    of workers."""
    lines = [line for line in progress if LEAST_RATE <= (line.samples_per_second or 0.0) <= MOST_RATE]
    lines = lines[WARM_UP_LINES:] if len(lines) > WARM_UP_LINES else lines
    rates = [line.samples_per_second for line in lines if line.samples_per_second]
    if not rates:
        return None
    shares = [line.allreduce_share for line in lines if line.allreduce_share is not None]
    uses = [line.gpu_utilization for line in lines if line.gpu_utilization is not None]
    sizes = [line.gpu_memory_mib for line in lines if line.gpu_memory_mib is not None]
    return Measured(
        workers,
        median(rates),
        median(shares) if shares else None,
        fmean(uses) if uses else None,
        max(sizes) if sizes else None,
    )
