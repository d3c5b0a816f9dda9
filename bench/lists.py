"""The list of jobs beside a plain Django REST framework ModelSerializer view of the same rows and fields, measured in
turn in one process; and page 1,000 beside page 1. CPU time of the whole request, from WSGI environ to bytes.

Run: python -m bench.lists [--profile]
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Row, report

JOBS, PAGE, DEEP = 100_000, 100, 1000
REPEATS = 60


def main() -> None:
    """Fill a new database, measure and report."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with django_on(Path(directory)):
            from bench import lists_peer

            fill(JOBS)
            secret = token()
            ours = reader(f"/api/v1/jobs?limit={PAGE}", secret, "controlplane.urls")
            peer = reader(f"/peer?limit={PAGE}", secret, lists_peer.__name__)
            lists_peer.assert_same(ours(), peer())
            deep = reader(deep_path(secret), secret, "controlplane.urls")
            if "--profile" in sys.argv:
                profile(ours)
                return
            report("lists", rows(*in_turn(ours, peer, deep)))


def rows(ours: list[float], peer: list[float], deep: list[float]) -> list[Row]:
    """Return rows for the two goals: our list (`ours`) relative to the peer's, and page DEEP relative to ours.
    All lists are CPU milliseconds of the same run."""
    return [
        Row(
            f"list of {PAGE} out of {JOBS:,} jobs, CPU of the request",
            "<= 0.25x plain DRF",
            "ms",
            ours,
            peer="DRF ModelSerializer, the same fields",
            peer_samples=peer,
            ratio_limit=0.25,
        ),
        Row(
            f"page {DEEP:,} of the list, CPU of the request",
            "<= 1.2x page 1",
            "ms",
            deep,
            peer="page 1",
            peer_samples=ours,
            ratio_limit=1.2,
        ),
    ]


@contextmanager
def django_on(directory: Path) -> Iterator[None]:
    """Context manager in which Django is set up with an empty SQLite database in `directory`."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "TRAINYARD_STATE_DIR": str(directory)}
    os.environ["TRAINYARD_LOG_LEVEL"] = "error"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
    (directory / "static").mkdir(exist_ok=True)
    yield


def fill(count: int) -> None:
    """Create `count` jobs of one project: the newest 16 run, the next 200 are queued, the others have finished."""
    from controlplane.access import SYSTEM
    from controlplane.actions.accounts import create_user
    from jobs.kinds.spec import parse_spec
    from jobs.models import Job
    from tests.builders import make_project

    project, user = make_project("team-a", 8), create_user("ana", None, actor=SYSTEM)
    body = {
        "name": "job",
        "kind": "train",
        "image": "quickstart",
        "command": ["python", "train.py"],
        "gpus": 1,
    }
    spec = parse_spec(body | {"env": {"BATCH_SIZE": "33"}, "labels": {"experiment": "a1"}})
    for start in range(0, count, 5000):
        Job.objects.bulk_create(
            job_of(project, user, spec, number, count) for number in range(start, start + 5000)
        )
    place_running()


def job_of(project: Any, user: Any, spec: dict[str, Any], number: int, count: int) -> Any:
    """Return an unsaved job. `number`: its place among `count` jobs, oldest first, which decides its state."""
    from django.utils import timezone

    from jobs.models import Job

    age = count - number
    state = "running" if age <= 16 else "queued" if age <= 216 else "succeeded"
    now, is_started = timezone.now(), state != "queued"
    return Job(
        project=project,
        user=user,
        name=f"job-{number}",
        kind="train",
        spec={**spec, "name": f"job-{number}"},
        labels=spec["labels"],
        milli_gpus=1000,
        submit_rank=number + 1,
        state=state,
        reason="started_in_quota" if is_started else "cluster_full",
        message="Started inside the quota of team-a (8)." if is_started else "All 16 GPUs are in use.",
        details={"request_milli_gpus": 1000, "quota_milli_gpus": 8000, "project": "team-a"},
        attempt=1 if is_started else 0,
        allocated_milli=1000 if state == "running" else 0,
        queue_position=None if is_started else age,
        started_at=now if is_started else None,
        finished_at=now if state == "succeeded" else None,
        exit_code=0 if state == "succeeded" else None,
        progress={"epoch": 1, "step": 40, "total_steps": 100, "loss": 0.3} if is_started else {},
    )


def place_running() -> None:
    """Give each running job a pod and a whole device."""
    from controlplane.models import Device
    from jobs.models import Allocation, Attempt, Job, Pod

    for job, device in zip(Job.objects.filter(state="running"), Device.objects.order_by("pk"), strict=True):
        attempt = Attempt.objects.create(job=job, number=1)
        pod = Pod.objects.create(
            job=job, attempt=attempt, node=device.node, rank=0, name=str(job.pk), state="running"
        )
        Allocation.objects.create(pod=pod, device=device, milli_gpus=1000)


def token() -> str:
    """Return an API token of a new admin."""
    from controlplane.access import SYSTEM
    from controlplane.actions.accounts import create_user, issue_token

    return issue_token(create_user("root", None, actor=SYSTEM, is_admin=True), "bench", actor=SYSTEM)[1]


def reader(path: str, secret: str, urlconf: str) -> Callable[[], bytes]:
    """Return a function that sends one GET request through the whole WSGI application and returns the body.
    `secret`: an API token; `urlconf`: the module of URLs. The function asserts that the status is 200."""
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.test import RequestFactory

    settings.ROOT_URLCONF = urlconf
    application: Any = get_wsgi_application()
    environ = (
        RequestFactory(headers={"Authorization": f"Bearer {secret}", "Host": "localhost"}).get(path).environ
    )

    def read() -> bytes:
        settings.ROOT_URLCONF = urlconf
        statuses: list[str] = []
        body = b"".join(application(dict(environ), lambda status, headers: statuses.append(status)))
        assert statuses == ["200 OK"], (statuses, body[:500])
        return body

    return read


def deep_path(secret: str) -> str:
    """Return the URL of page DEEP, with a cursor as the server makes it. `secret` is not used."""
    from controlplane.api.paging import make_cursor

    cursor = make_cursor(["-created_at", False, [JOBS + 1 - (DEEP - 1) * PAGE]], "/api/v1/jobs")
    return f"/api/v1/jobs?limit={PAGE}&cursor={cursor}"


def in_turn(*works: Callable[[], object]) -> tuple[list[float], ...]:
    """Return the CPU milliseconds of each function, called in turn, after five rounds of warm-up."""
    samples: tuple[list[float], ...] = tuple([] for _ in works)
    for number in range(REPEATS + 5):
        for work, kept in zip(works, samples, strict=True):
            began = time.process_time()
            work()
            if number >= 5:
                kept.append((time.process_time() - began) * 1000)
    return samples


def profile(work: Callable[[], object]) -> None:
    """Print a profile of 30 calls of `work`, sorted by the last command-line argument if that is not `--profile`."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(30):
        work()
    profiler.disable()
    pstats.Stats(profiler).sort_stats(sys.argv[-1] if sys.argv[-1] != "--profile" else "tottime").print_stats(
        60
    )


if __name__ == "__main__":
    main()
