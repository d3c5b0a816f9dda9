"""`make demo`: create four teams with users, quotas, and jobs that exceed their quota, wait or idle."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from controlplane.access import SYSTEM, Actor
from controlplane.actions.accounts import create_user
from controlplane.actions.errors import Conflict
from controlplane.actions.projects import create_project, set_member
from controlplane.loop.claims import is_fresh
from controlplane.models import Cluster, Project, Role, User
from controlplane.supervisor.instance import running_url
from jobs.actions import submit_job

# The loop completes a cycle every second; if none was completed for this long, it is not running.
LOOP_SECONDS = 10
QUOTAS = {"team-a": 4, "team-b": 2, "team-c": 2, "team-d": 8}
OWNERS = {"team-a": "ana", "team-b": "ben", "team-c": "chi", "team-d": "dora"}
ABOUT = {
    "team-a": "Lane detection",
    "team-b": "Speech",
    "team-c": "Chest X-ray",
    "team-d": "Language models, often away",
}


@dataclass(frozen=True)
class DemoJob:
    """A job of the demo. `seconds`: run time of its replayed training; 0 for a job with nothing but a shell."""

    project: str
    name: str
    gpus: float
    kind: str = "train"
    seconds: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the body with which the job is submitted."""
        work: dict[str, Any] = {"image": "ubuntu"}
        if self.seconds:
            work = {"image": "replay", "env": {"DURATION_SECONDS": str(self.seconds)}}
        return {"name": self.name, "kind": self.kind, "gpus": self.gpus, "cpus": 1, **work, **self.extra}


JOBS = (
    DemoJob("team-a", "jupyter", 1, "interactive", extra={"image": "jupyter", "ports": [{"port": 8888}]}),
    DemoJob("team-a", "lanes-baseline", 1, seconds=900),
    DemoJob("team-a", "lanes-wide", 2, seconds=1500),
    DemoJob("team-b", "probe", 0.5, "interactive", 1200),
    DemoJob("team-b", "labels", 0.5, "interactive", 1200),
    DemoJob("team-b", "speech-small", 1, seconds=700),
    DemoJob("team-b", "speech-large", 2, seconds=1300),
    DemoJob("team-c", "notes", 0.5, "interactive"),
    DemoJob("team-c", "viewer", 0.3, "interactive", 1800),
    DemoJob("team-c", "scratch", 0.2, "interactive", 1800),
    DemoJob("team-c", "xray-resnet", 2, seconds=1100),
    DemoJob("team-c", "xray-sweep", 1, seconds=600),
    DemoJob("team-a", "lanes-deep", 4, seconds=1600),
    DemoJob("team-b", "speech-tune", 2, seconds=500),
    DemoJob("team-c", "xray-big", 4, seconds=500),
)


class Command(BaseCommand):
    """Create the demo's projects, users and jobs, except existing ones; print the address and the names to
    sign in with."""

    help = "Create four teams with quotas, people and running jobs."

    def handle(self, *args: Any, **options: Any) -> None:
        cluster = _first_cluster()
        if cluster is None:
            raise CommandError(
                f"There is no cluster in {settings.STATE_DIR} yet: start `make up`, then run `make demo` while it"
                " runs, with the same TRAINYARD_STATE_DIR."
            )
        self._print_people(dict(self._people()))
        for name, quota in QUOTAS.items():
            self._project(cluster, name, quota)
        submitted = sum(self._submit(job) for job in JOBS)
        self.stdout.write(f"Four teams are there; {submitted} jobs were submitted. {_where_to_look()}")

    def _print_people(self, new: dict[str, str]) -> None:
        """Print who can sign in: new users with their passwords, and how to reset the password of the
        others."""
        if new:
            self.stdout.write("Sign in as one of these; the passwords are shown this once:")
        for name, password in new.items():
            self.stdout.write(f"  {name:<6} {password}")
        known = [name for name in OWNERS.values() if name not in new]
        if known:
            self.stdout.write(f"Users from before keep their passwords: {', '.join(known)}.")
            self.stdout.write(f"  a new one: .venv/bin/python manage.py changepassword {known[0]}")

    def _people(self) -> Iterator[tuple[str, str]]:
        """Create the project owners that do not exist yet; yield the name and password of each new one."""
        for name in OWNERS.values():
            if not User.objects.filter(username=name).exists():
                password = secrets.token_urlsafe(12)
                create_user(name, password, actor=SYSTEM)
                yield name, password

    def _project(self, cluster: Cluster, name: str, quota: int) -> None:
        project = Project.objects.filter(name=name).first()
        if project is None:
            fields = {
                "name": name,
                "cluster": cluster,
                "gpu_quota_milli": quota * 1000,
                "description": ABOUT[name],
            }
            project = create_project(fields, actor=SYSTEM)
        owner = User.objects.get(username=OWNERS[name])
        set_member(project, owner, Role.OWNER, actor=SYSTEM)

    def _submit(self, job: DemoJob) -> int:
        project = Project.objects.get(name=job.project)
        try:
            submit_job(project, job.body(), actor=Actor(user=User.objects.get(username=OWNERS[job.project])))
        except Conflict:
            # The job exists from an earlier run.
            return 0
        return 1


def _where_to_look() -> str:
    if is_fresh("loop", LOOP_SECONDS):
        # The instance may have been started with another TRAINYARD_PORT than this command.
        return (
            f"Watch them at {settings.STATED_URL or running_url(settings.STATE_DIR) or settings.PUBLIC_URL}/"
        )
    # A loop that has just been started on a busy machine has completed no cycle yet.
    return (
        "The jobs wait: `make up` is not running, or its loop has not begun yet. Once it has, watch them at"
        f" {settings.PUBLIC_URL}/"
    )


def _first_cluster() -> Cluster | None:
    try:
        return Cluster.objects.filter(detached_at=None).order_by("pk").first()
    except DatabaseError:
        # Trainyard was never started here, so the database has no tables.
        return None
