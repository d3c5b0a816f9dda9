"""A project with a dataset of two versions, and jobs that mount them."""

from pathlib import Path
from typing import Any

from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command, Project
from datasets.actions.caches import (
    EVICT_CACHE,
    FILL_CACHE,
)
from datasets.queries.job_data import dataset_mounts
from jobs.actions import submit_job
from jobs.models import Job
from tests.cast import Cast
from tests.waiting import wait_until

LONG = (FILL_CACHE, EVICT_CACHE)
ONE, TWO = {"a": "one", "b": "same"}, {"a": "two!", "b": "same"}


def submit(cast: Cast, name: str = "job", project: Project | None = None, **mount: Any) -> Job:
    mounts = [{"dataset": "xray", "mount_path": "/data", **mount}]
    body = {"name": name, "kind": "train", "image": "quickstart", "gpus": 1, "datasets": mounts}
    project = project or cast.project
    return submit_job(project, body, actor=cast.actor("ana" if project == cast.project else "chi"))


def work() -> None:
    """Carry out all long commands. They are due by the database's clock, which may be some milliseconds behind."""
    wait_until(lambda: not (carry_out_due() or Command.objects.of_kinds(LONG).unfinished().exists()))


def files_of(job: Job) -> dict[str, str]:
    [(source, _, is_read_only, *_)] = dataset_mounts(job)[""]
    assert is_read_only
    return {path.name: path.read_text() for path in Path(source).iterdir()}
