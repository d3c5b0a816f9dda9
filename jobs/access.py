"""Access to jobs: the only functions that turn an actor into the jobs it may use, by the roles of
`controlplane.access`."""

import uuid

from django.db.models import Q, QuerySet

from controlplane.access import Actor, NotVisible, require_role, uuid_of
from controlplane.models import Role
from jobs.models import Job


def visible_jobs(actor: Actor) -> QuerySet[Job]:
    """Return the jobs of the projects of which the actor is a member; for an admin, all jobs."""
    if actor.is_admin:
        return Job.objects.all()
    return Job.objects.filter(Q(project__memberships__user=actor.user))


def job_for(actor: Actor, job_id: uuid.UUID | str, *, needed: str = Role.VIEWER) -> Job:
    """Return a job by id, with its project and user. Raises NotVisible for a malformed id and if there is none that
    the actor may view, Forbidden if the actor has a lower role than `needed`."""
    missing = NotVisible("There is no such job that you can see.")
    key = job_id if isinstance(job_id, uuid.UUID) else uuid_of(job_id, missing)
    job = Job.objects.select_related("project__cluster", "user").filter(pk=key).first()
    if job is None:
        raise missing
    require_role(actor, job.project, needed, missing)
    return job
