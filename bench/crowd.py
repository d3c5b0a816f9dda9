"""One cycle over a full cluster of 500 nodes with 4,000 running one-GPU jobs and no change to make, on SQLite.

This is the cost that the loop has every second. The engine is the memory engine, so the figure contains only our own
work. Run: python -m bench.crowd
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.harness import Row, report, time_ms
from bench.lists import django_on

NODES, GPUS, REPEATS = 500, 8, 10


def main() -> None:
    """Fill the cluster, then time cycles."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory, django_on(Path(directory)):
        from controlplane.loop.cycle import run_cycle
        from jobs.models import Job
        from tests.builders import make_job, make_project
        from tests.loop.plant import Plant

        plant = Plant(nodes=NODES, gpus=GPUS)
        project = make_project("crowd", quota=NODES * GPUS)
        began = datetime.now(UTC)
        for number in range(NODES * GPUS):
            make_job(project, f"job-{number}")
        submitted = datetime.now(UTC)
        plant.settle()
        seconds = (datetime.now(UTC) - submitted).total_seconds()
        samples = time_ms(lambda: run_cycle(plant.clock()), REPEATS, warm_up=2)
        running = Job.objects.filter(state="running").count()
        plant.close()
    spent = (
        f"submitted in {(submitted - began).total_seconds():.0f} s, all of them running {seconds:.0f} s later"
    )
    note = f"{running} running on {NODES} nodes; {spent}"
    report(
        "crowd",
        [
            Row(
                "one cycle over 4,000 running jobs, through SQLite",
                "< 1,000 ms",
                "ms",
                samples,
                limit=1000,
                note=note,
            )
        ],
    )


if __name__ == "__main__":
    main()
