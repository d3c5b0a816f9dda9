"""The loop over PostgreSQL: 1,250 nodes of 8 GPUs, 200 projects, 100,000 queued jobs; then 4,000 jobs from submission
to running. The engine is the memory engine, so the figures contain only our own work and PostgreSQL's.

Run: python -m bench.loop [--queued 100000] [--profile first|steady|ended]

The first cycle has the rows but no cached state. In a steady cycle nothing changed, or one job ended and the next one
starts. The goals are for a machine on which `python -c pass` takes 8 ms of CPU, and are scaled as in bench.scheduling.
Other programs lengthen the wall times, so the CPU times of steady cycles follow: ours and that of PostgreSQL's session.
The peer of a cycle is the least that any loop must do: one SELECT of the columns that it reads of all unfinished jobs,
fetched by the driver.
"""

import argparse
import cProfile
import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Row, report, time_ms
from bench.lists import django_on
from bench.scheduling import NODES, PROJECTS, QUEUED, REFERENCE_MS, python_ms

GPUS, STEADY, ENDED, FLOOR_REPEATS = 8, 60, 30, 5
BULK = 5_000
# The second scenario of the issue: all jobs fit.
SMALL_NODES, SMALL_JOBS = 500, 4_000


def main() -> None:
    """Measure both scenarios on a PostgreSQL server of our own and report."""
    from tests import servers

    parser = argparse.ArgumentParser()
    parser.add_argument("--queued", type=int, default=QUEUED)
    parser.add_argument("--profile", choices=("first", "steady", "ended"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory, servers.postgres() as url:
        os.environ["DATABASE_URL"] = url
        with django_on(Path(directory)):
            collect_as_the_loop()
            start_ms = python_ms()
            scale = max(1.0, sorted(start_ms)[len(start_ms) // 2] / REFERENCE_MS)
            if chosen.profile:
                profile(Crowd(chosen.queued), chosen.profile)
                return
            rows = [
                Row("python -c pass, CPU", "8 ms on the reference", "ms", start_ms, note=f"scale {scale:.2f}")
            ]
            rows.append(end_to_end(scale))
            forget_all()
            rows += crowd_rows(Crowd(chosen.queued), scale)
    report("loop", rows)


def collect_as_the_loop() -> None:
    """Set the garbage collector's thresholds of the loop's process."""
    from controlplane.loop.garbage import THRESHOLDS

    gc.set_threshold(*THRESHOLDS)


class Crowd:
    """A cluster with more queued jobs than GPUs, equal quotas for all projects, and no running job."""

    def __init__(self, queued: int) -> None:
        from tests.builders import make_project
        from tests.loop.plant import Plant

        self.queued, self.plant = queued, Plant(nodes=NODES, gpus=GPUS)
        quota = NODES * GPUS / PROJECTS
        self.projects = [make_project(f"team-{number}", quota=quota) for number in range(PROJECTS)]
        self.number = 0
        self.add(queued)

    def add(self, count: int, **columns: Any) -> list[Any]:
        """Create queued one-GPU jobs in bulk, distributed over the projects; `columns` overrides their columns.
        Return them."""
        from jobs.models import Job
        from tests.builders import make_user

        user, spec = make_user(), spec_of()
        self.number += count
        made: list[Any] = []
        for first in range(self.number - count, self.number, BULK):
            made += Job.objects.bulk_create(
                Job(name=f"job-{number}", project=self.projects[number % PROJECTS], submit_rank=number + 1, user=user,
                    kind="train", spec=spec, milli_gpus=1000, **columns)
                for number in range(first, min(first + BULK, self.number))
            )  # fmt: skip
        return made

    def fill(self) -> None:
        """Create a running job on every GPU, with rows as the loop would have written them."""
        from controlplane.engines.base import PodSpec, pod_name
        from controlplane.models import Command, Device
        from jobs.models import Allocation, Attempt, Job, Pod

        now = self.plant.clock()
        Command.objects.all().delete()
        Job.objects.filter(state="starting").delete()
        jobs = self.add(
            NODES * GPUS, state="running", attempt=1, allocated_milli=1000, pods_started=1, started_at=now
        )
        attempts = Attempt.objects.bulk_create(Attempt(job=job, number=1, started_at=now) for job in jobs)
        devices = Device.objects.select_related("node").order_by("pk")
        names = [pod_name(str(job.pk), 1, 0) for job in jobs]
        pods = Pod.objects.bulk_create(
            Pod(
                job=job,
                attempt=attempt,
                node=device.node,
                rank=0,
                name=name,
                milli_cpus=1000,
                memory_mib=1024,
            )
            for job, attempt, device, name in zip(jobs, attempts, devices, names, strict=True)
        )
        Allocation.objects.bulk_create(
            Allocation(pod=pod, device=device, milli_gpus=1000)
            for pod, device in zip(pods, devices, strict=True)
        )
        for job, device, name in zip(jobs, devices, names, strict=True):
            spec = {
                "job_id": str(job.pk),
                "job_name": job.name,
                "project": job.project.name,
                "attempt": 1,
                "rank": 0,
            }
            self.plant.engine.start(
                PodSpec(name=name, node=device.node.name, command=("sleep", "infinity"), **spec)
            )
        while self.steady():
            pass

    def first(self) -> None:
        """Run the first cycle, which also begins the first starts, and what precedes it in the loop's process."""
        from controlplane.loop.cycle import run_cycle
        from controlplane.loop.garbage import long_lived
        from controlplane.loop.statistics import refresh_statistics

        refresh_statistics()
        with long_lived():
            run_cycle(self.plant.clock())

    def steady(self) -> bool:
        """Run one cycle. Return whether the next one is due soon, such as for the rest of a long queue."""
        from controlplane.loop.cluster_context import context_of
        from controlplane.loop.cycle import run_cycle

        context_of(self.plant.cluster).plan_seconds = 0.0
        return bool(run_cycle(self.plant.clock()))

    def end_one(self) -> None:
        """Let one running job end by itself."""
        self.plant.engine.finish(next(one for one in self.plant.engine.pods() if one.state == "running").name)


def spec_of() -> dict[str, Any]:
    """Return the stored spec of a one-GPU job."""
    from jobs.kinds.spec import parse_spec

    return parse_spec({"name": "job", "kind": "train", "command": ["sleep", "infinity"], "gpus": 1})


def crowd_rows(crowd: Crowd, scale: float) -> list[Row]:
    """Return the rows of a crowd's first cycle and of steady cycles. `scale`: factor for the goals on this
    machine."""
    first = time_ms(crowd.first, 1, warm_up=0)
    crowd.fill()
    floor = time_ms(floor_of(crowd), FLOOR_REPEATS)
    for _ in range(3):
        crowd.steady()
    steady = [cost_of(crowd.steady) for _ in range(STEADY)]
    ended = [after(crowd) for _ in range(ENDED)]
    crowd.plant.close()
    peer = "one SELECT of the unfinished jobs"
    shared: dict[str, Any] = {"peer": peer, "peer_samples": floor}
    return [
        Row(f"first cycle, {crowd.queued:,} queued", "<= 3 s x scale", "ms", first, limit=3000 * scale,
            note="with the starts of its first second", **shared),
        *steady_rows("nothing changed", steady, scale, shared),
        *steady_rows("one job ended and one starts", ended, scale, shared),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """What one cycle took: wall time, and CPU time of this process and of its PostgreSQL session."""

    wall_ms: float
    ours_ms: float
    server_ms: float


def cost_of(cycle: Callable[[], object]) -> Cost:
    """Run a cycle and return what it took."""
    from django.db import connection

    connection.ensure_connection()
    # The CPU clock of another process, as clock_getcpuclockid(3) returns it on Linux.
    server = ~connection.connection.info.backend_pid << 3 | 2
    clocks: Sequence[Callable[[], float]] = (
        time.perf_counter,
        time.process_time,
        lambda: time.clock_gettime(server),
    )
    before = [clock() for clock in clocks]
    cycle()
    return Cost(*(1000 * (clock() - began) for clock, began in zip(clocks, before, strict=True)))


def steady_rows(what: str, costs: Sequence[Cost], scale: float, shared: Mapping[str, Any]) -> list[Row]:
    """Return the rows of steady cycles. `shared`: the peer of the wall time."""
    wall = [one.wall_ms for one in costs]
    return [
        Row(f"steady, {what}, p99", "<= 250 ms x scale", "ms", wall, limit=250 * scale, quantile=0.99, **shared),
        Row(f"steady, {what}, CPU of ours", "", "ms", [one.ours_ms for one in costs]),
        Row(f"steady, {what}, CPU of PostgreSQL", "", "ms", [one.server_ms for one in costs]),
    ]  # fmt: skip


def after(crowd: Crowd) -> Cost:
    """Return what one cycle took after a job of the crowd ended, in which another starts. Its commands run afterwards
    and are not included."""
    from controlplane.loop.execute import execute_due

    crowd.end_one()
    cost = cost_of(crowd.steady)
    while execute_due():
        pass
    crowd.steady()
    return cost


def floor_of(crowd: Crowd) -> Callable[[], object]:
    """Return a function that runs the peer's SELECT and fetches all rows."""
    from django.db import connection

    from controlplane.loop.observe import _JOB_COLUMNS, _unfinished

    sql, parameters = _unfinished(crowd.plant.cluster).values_list(*_JOB_COLUMNS).query.sql_with_params()

    def read() -> object:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

    return read


def end_to_end(scale: float) -> Row:
    """Submit 4,000 one-GPU jobs, 100 per call, and wait until the loop's own threads have all of them running.
    `scale`: factor for the goal on this machine. Return the row."""
    from controlplane.access import Actor
    from controlplane.loop.runner import Runner
    from jobs.actions import submit_jobs
    from jobs.models import Job
    from tests.builders import make_cluster, make_project, make_user
    from tests.waiting import wait_until

    cluster = make_cluster("small", nodes=SMALL_NODES, gpus=GPUS)
    project = make_project("small", quota=SMALL_JOBS, cluster=cluster)
    actor, runner = Actor(user=make_user()), Runner(has_broker=False)
    runner.start()
    running = Job.objects.filter(project=project, state="running")
    began = time.monotonic()
    body = {"kind": "train", "command": ["sleep", "infinity"], "gpus": 1}
    for first in range(0, SMALL_JOBS, 100):
        submit_jobs(project, [body | {"name": f"job-{first + one}"} for one in range(100)], actor=actor)
    wait_until(lambda: running.count() == SMALL_JOBS, 300, "4,000 running jobs")
    seconds = time.monotonic() - began
    runner.stop()
    return Row(
        f"{SMALL_JOBS:,} one-GPU jobs on {SMALL_NODES} nodes, submit to all running", "<= 10 s x scale", "s", [seconds],
        limit=10 * scale,
    )  # fmt: skip


def forget_all() -> None:
    """Empty the database and drop the loop's cached state."""
    from django.core.management import call_command

    from controlplane.loop.cluster_context import forget_contexts
    from tests.builders import make_counters

    call_command("flush", interactive=False, verbosity=0)
    make_counters()
    forget_contexts()


def profile(crowd: Crowd, what: str) -> None:
    """Print a profile of one cycle of the crowd. `what`: `first`, `steady`, or `ended` (after one job ended)."""
    if what != "first":
        crowd.fill()
        crowd.steady()
    if what == "ended":
        crowd.end_one()
    work = crowd.first if what == "first" else crowd.steady
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(work)
    profiler.print_stats("cumtime")


if __name__ == "__main__":
    main()
