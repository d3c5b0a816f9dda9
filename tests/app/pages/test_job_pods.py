"""The pods of a job's page."""

from collections.abc import Callable

from django.test import Client

from controlplane.models import User
from jobs.models import Pod
from tests.app.pages.conftest import Yard


def test_each_pod_has_its_role_and_one_that_was_stopped_has_not_failed(
    yard: Yard, visit: Callable[[User | None], Client]
):
    pod = Pod.objects.filter(job__name="running").get()
    path = f"/jobs/{pod.job_id}/pods"
    Pod.objects.filter(pk=pod.pk).update(role="launcher", state="failed", reason="stopped")
    page = visit(yard.cast.ana).get(path).content.decode()
    assert '<td class="quiet">Launcher</td><td>Stopped</td>' in page
    Pod.objects.filter(pk=pod.pk).update(reason="killed")
    assert "<td>Failed</td>" in visit(yard.cast.ana).get(path).content.decode()
