"""Requests to move a job, made with an older state of it."""

import pytest
from django.db import transaction

from controlplane.access import SYSTEM
from jobs.lifecycle import QUEUED, STOPPED, SUSPENDED
from jobs.models import Job
from jobs.transitions import Target, request_transition
from tests.builders import make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("target", "state"), [(QUEUED, SUSPENDED), (STOPPED, STOPPED)])
def test_a_drain_does_not_resume_a_job_that_was_suspended_meanwhile(cast: Cast, target: str, state: str):
    job = make_job(cast.project, "held", cast.ben)
    Job.objects.filter(pk=job.pk).update(state=SUSPENDED)
    with transaction.atomic():
        event = request_transition(job, Target(target, "node_drained", "n0 is being drained."), SYSTEM)
    job.refresh_from_db()
    assert (job.state, event is not None) == (state, state == STOPPED)
